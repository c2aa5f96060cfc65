"""Agents' clients at the door: the SDKs themselves, limits, failures, retries."""

import json
import logging
import socket
import threading
from typing import Any

import openai
import pytest
from gateway_parts import TOOLS, ByteTokenizer, Feed, Scripted, SocketConnection, asked, post, served, tokens

from swe_gym.errors import PolicyError
from swe_gym.gateway.calls import Call
from swe_gym.gateway.http import HttpLimits, HttpRequest
from swe_gym.gateway.model_server import ServedGenerator, ServerSampler
from swe_gym.gateway.protocols import DIALECTS, find_target
from swe_gym.gateway.session import Flight, Limits, Session, events_of
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.rollout.tokens import ChatTemplate, Completion
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer
from swe_gym.trajectories.trajectory import Prices, Turn

GOOGLE = "/v1beta/models/a/model:1"
HI = [{"role": "user", "content": "hi"}]


# --- the SDKs ------------------------------------------------------------------------------------------------


def test_openai_chat_completions(session: Session) -> None:
    with served(session) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        assert [one.id for one in client.models.list()] == ["m"]
        whole = client.chat.completions.create(model="gpt", messages=HI, tools=TOOLS)
        message = whole.choices[0].message
        assert (message.content, message.reasoning_content) == ("I do it.", "hm")
        (call,) = message.tool_calls
        told = [*HI, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "files"}]
        with client.chat.completions.stream(
            model="gpt", messages=told, tools=TOOLS, stream_options={"include_usage": True}
        ) as events:
            final = events.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"command": "ls"}'
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    first, second = session.turns
    assert (first.observation, second.parent, first.tool) == ("files", None, "bash")
    assert session.report().usage.cost == session.report().usage.prompt_tokens


def test_openai_responses(session: Session) -> None:
    tool = {"type": "function", **TOOLS[0]["function"], "strict": False}
    with served(session) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        whole = client.responses.create(model="gpt", instructions="be", input="hi", tools=[tool])
        reasoning, message, call = whole.output
        assert (reasoning.summary[0].text, whole.output_text, call.name) == ("hm", "I do it.", "bash")
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "files"}
        items = [{"role": "user", "content": "hi"}, *whole.output, output]
        with client.responses.stream(model="gpt", instructions="be", input=items, tools=[tool]) as events:
            kinds = [event.type for event in events]
            final = events.get_final_response()
        with pytest.raises(openai.BadRequestError, match="nothing is stored"):
            client.responses.create(model="gpt", input="hi", previous_response_id=whole.id)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert message.content[0].text == "I do it."
    assert [turn.observation for turn in session.turns] == ["files", ""]
    assert not session.reasons


def test_google_generate_content(session: Session) -> None:
    declared = {**TOOLS[0]["function"], "parameters": {"type": "OBJECT", "properties": {"command": {"type": "STRING"}}}}
    body: dict[str, Any] = {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "be"}]},
        "tools": [{"functionDeclarations": [declared]}],
        "generationConfig": {"maxOutputTokens": 99, "thinkingConfig": {"includeThoughts": True}},
    }
    status, whole = asked(session, f"{GOOGLE}:generateContent", body)
    (candidate,) = whole["candidates"]
    thought, text, call = candidate["content"]["parts"]
    assert (status, candidate["finishReason"], whole["modelVersion"]) == (200, "STOP", "a/model:1")
    assert (thought, text) == ({"text": "hm", "thought": True}, {"text": "I do it."})
    assert (call["functionCall"]["name"], call["functionCall"]["args"]) == ("bash", {"command": "ls"})
    without_id = {"name": "bash", "args": {"command": "ls"}}
    parts = [text, {"functionCall": without_id}]
    result = {"functionResponse": {"name": "bash", "response": {"output": "files"}}}
    body["contents"] += [{"role": "model", "parts": parts}, {"role": "user", "parts": [result]}]
    feed = Feed(post(f"{GOOGLE}:streamGenerateContent?alt=sse", body))
    session.handle(feed)
    lines = [line for line in feed.received.splitlines() if line.startswith(b"data: ")]
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    assert [len(one["candidates"][0]["content"]["parts"]) for one in chunks] == [1, 1, 1]
    assert chunks[-1]["usageMetadata"]["candidatesTokenCount"] == whole["usageMetadata"]["candidatesTokenCount"]
    assert asked(session, f"{GOOGLE}:countTokens", body)[1]["totalTokens"] > 0
    session.close()
    first, second = session.turns
    assert (first.observation, second.parent, first.tool) == ("files", None, "bash")
    assert not session.reasons


def calling(mode: str, *names: str) -> dict[str, Any]:
    """Return how functions are called in a request to Google."""
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"contents": []}, "at least one content"),
        ({"contents": [{"role": "model", "parts": [{"fileData": {}}]}]}, "a part with fileData"),
        ({"contents": [{"role": "robot", "parts": []}]}, "unknown role 'robot'"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "x", "response": {}}}]}]}, "follows no call"),
        ({"tools": [{"googleSearch": {}}]}, "runs on Google's servers only"),
        ({"generationConfig": {"candidateCount": 2}}, "only 1 is supported"),
        ({"generation_config": {"response_modalities": ["AUDIO"]}}, "'AUDIO' is not supported"),
        ({"generationConfig": {"responseLogprobs": True}}, "responseLogprobs: not supported"),
        ({"cached_content": "cachedContents/1"}, "cachedContent: not supported, since nothing is stored"),
        ({"contents": [{"parts": [{"inline_data": {"mime_type": "image/png"}}]}]}, "its data in base64"),
        ({"generationConfig": {"topK": 40.5}}, "topK: expected an integer, not a number"),
        ({"generationConfig": {"topK": 1, "top_k": 1}}, "topK: given twice"),
        (calling("any"), ".mode: expected MODE_UNSPECIFIED, AUTO, VALIDATED, ANY, NONE, not 'any'"),
        (calling("AUTO", "bash"), ".allowedFunctionNames: only allowed with the mode ANY or VALIDATED, not AUTO"),
        (calling("ANY", "g"), ".allowedFunctionNames: no declared function is named 'g'"),
    ],
)
def test_google_requests_that_are_refused(session: Session, change: dict[str, Any], said: str) -> None:
    body = {"contents": [{"parts": [{"text": "hi"}]}], **change}
    status, answer = asked(session, f"{GOOGLE}:generateContent", body)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert said in answer["error"]["message"]


def test_google_fields_may_be_in_snake_case(server: OpenAIServer, session: Session) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request["messages"] + request["tools"]))
    any_of = [{"type": "ARRAY", "min_items": "2"}, {"type": "OBJECT", "default": {"i_j": {"type": "A"}}}]
    schema = {"type": "OBJECT", "properties": {"a_b": {"any_of": any_of}}}
    call = {"function_call": {"name": "c_d", "args": {"a_b": {"e_f": 1}}}}
    result = {"function_response": {"name": "c_d", "response": {"g_h": 1}}}
    body = {
        "system_instruction": {"parts": [{"text": "be"}]},
        "contents": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [call]}, {"parts": [result]}],
        "tools": [{"function_declarations": [{"name": "c_d", "parameters": schema}]}],
    }
    _, answer = asked(session, f"{GOOGLE}:generateContent", body)
    system, _, called, told, tool = json.loads(answer["candidates"][0]["content"]["parts"][0]["text"])
    assert (system["content"], told["content"]) == ("be", '{"g_h": 1}')
    assert called["tool_calls"][0]["function"] == {"name": "c_d", "arguments": '{"a_b": {"e_f": 1}}'}
    read = [{"type": "array", "minItems": 2}, {"type": "object", "default": {"i_j": {"type": "A"}}}]
    assert tool["function"]["parameters"] == {"type": "object", "properties": {"a_b": {"anyOf": read}}}


@pytest.mark.parametrize(
    ("how", "tools", "choice"),
    [
        (("ANY", "a"), "abc", {"type": "function", "function": {"name": "a"}}),
        (("ANY", "a", "c"), "ac", "required"),
        (("VALIDATED", "a"), "a", None),
        (("NONE",), "abc", "none"),
    ],
)
def test_google_offers_the_functions_that_are_allowed(
    server: OpenAIServer, session: Session, how: tuple[str, ...], tools: str, choice: Any
) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request))
    image = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    body = {
        "contents": [{"parts": [image]}],
        "generationConfig": {"topK": 40.0},
        "tools": [{"functionDeclarations": [{"name": name} for name in "abc"]}],
        **calling(*how),
    }
    _, answer = asked(session, f"{GOOGLE}:generateContent", body)
    request = json.loads(answer["candidates"][0]["content"]["parts"][0]["text"])
    assert "".join(tool["function"]["name"] for tool in request["tools"]) == tools
    assert (request.get("tool_choice"), request["top_k"]) == (choice, 40)
    assert request["messages"][0]["content"][0]["image_url"]["url"] == "data:image/png;base64,+/8="


NO_FILE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        (CHAT, {"logprobs": True}, "logprobs: not supported"),
        (CHAT, {"web_search_options": {}}, "web_search_options: not supported, since nothing runs on a provider's"),
        (CHAT, {"functions": [{"name": "a"}]}, "functions: not supported, since they are deprecated; use tools"),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "1"}}]}, "messages[0].audio: not supported"),
        (CHAT, {"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call: not supported"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities: 'audio' is not supported"),
        (CHAT, {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools of type 'custom'"),
        (CHAT, {"tool_choice": "any"}, "tool_choice: expected auto, none, required or a function"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "parts of type 'input_audio'"),
        ("/v1/responses", {"tool_choice": "any"}, "tool_choice: expected auto, none, required or a function"),
        ("/v1/responses", {"prompt": {"id": "pmpt_1"}}, "prompt: not supported, since nothing is stored"),
        ("/v1/responses", {"top_logprobs": 2}, "top_logprobs: not supported"),
        ("/v1/responses", {"include": ["message.output_text.logprobs"]}, "include: 'message.output_text.logprobs' is"),
        ("/v1/messages", {"stop_sequences": [1]}, "stop_sequences: expected strings"),
        ("/v1/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "send a tool with an input_schema"),
        ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "runs on Anthropic's servers only"),
        ("/v1/messages", {"tool_choice": {"type": "required"}}, "tool_choice.type: expected auto, any, tool or none"),
        ("/v1/messages", {"mcp_servers": [{"type": "url"}]}, "mcp_servers: not supported"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [NO_FILE]}]}, "a source of type 'file'"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "its data in base64"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    session: Session, path: str, change: dict[str, Any], said: str
) -> None:
    status, answer = asked(session, path, {"messages": HI, "input": "hi", "max_tokens": 9, **change})
    assert (status, session.failure) == (400, None)
    assert said in answer["error"]["message"]


def test_settings_and_refusals_in_a_history_are_passed_on(server: OpenAIServer, session: Session) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request))
    one_call = {"type": "auto", "disable_parallel_tool_use": True}
    _, answer = asked(session, "/v1/messages", {"messages": HI, "max_tokens": 9, "tool_choice": one_call})
    assert json.loads(answer["content"][0]["text"])["parallel_tool_calls"] is False
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    for one in (refused, {"role": "assistant", "content": None, "refusal": "No.", "audio": None}):
        _, answer = asked(session, CHAT, {"messages": [*HI, one, *HI], "functions": None})
        assert json.loads(answer["choices"][0]["message"]["content"])["messages"][1]["content"] == "No."


# --- limits and failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit"),
    [({"calls": 2}, "calls"), ({"tokens": 60}, "tokens"), ({"cost": 3.0}, "cost"), ({"history": 100}, "history")],
)
def test_past_a_limit_agents_get_an_error_that_they_do_not_retry(
    server: OpenAIServer, limits: dict[str, Any], limit: str
) -> None:
    prices = Prices(input=1e6, output=0.0)
    sampler = ServerSampler(LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, prices=prices))
    session = Session(sampler, limits=Limits(**limits))
    with served(session) as url, openai.OpenAI(base_url=url, api_key="any") as client:
        answered = 1 if limit == "history" else 2
        for number in range(answered):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"h{number}"}])
        with pytest.raises(openai.PermissionDeniedError, match=f"limit on {limit}"):
            client.chat.completions.create(model="m", messages=HI)
    assert session.limit == limit
    assert session.failure is None
    assert len(session.turns) == answered
    sampler.close()


def test_retries_are_counted_whether_or_not_the_model_answers(server: OpenAIServer) -> None:
    options = LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, retries=1)
    sampler = ServerSampler(options)
    session = Session(sampler)
    again = {"status": 503, "headers": {"Retry-After": "0.01"}}
    server.inject(CHAT, **again)
    assert asked(session, CHAT, {"messages": HI})[0] == 200
    assert session.report().usage.retries == 1
    server.inject(CHAT, **again, times=2)
    assert asked(session, CHAT, {"messages": [*HI, *HI]})[0] == 500
    assert (session.report().usage.calls, session.report().usage.retries) == (1, 2)
    sampler.close()


def broken(request: dict[str, Any]) -> ModelReply:  # noqa: ARG001
    raise RuntimeError("no memory")  # the server answers with status 500


def test_a_refused_request_is_the_agents_and_a_failed_server_ends_the_episode(
    server: OpenAIServer, session: Session
) -> None:
    server.inject(CHAT, status=400, message="no such format")
    status, answer = asked(session, CHAT, {"messages": HI})
    assert (status, "no such format" in answer["error"]["message"]) == (400, True)
    assert "127.0.0.1" not in answer["error"]["message"]
    server.inject(CHAT, status=400, message="maximum context length is 10 tokens")
    status, answer = asked(session, CHAT, {"messages": HI})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "127.0.0.1" not in answer["error"]["message"]
    assert session.failure is None
    server.reply = broken
    assert asked(session, "/v1/messages", {"messages": HI, "max_tokens": 9})[0] == 500
    assert isinstance(session.failure, PolicyError)
    assert session.failure.reason == "server"
    assert asked(session, CHAT, {"messages": HI})[0] == 403
    assert session.turns == ()


def image(url: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": HI, "models": ["other"], "plugins": [{"id": "web"}]}, 200),
        ({"messages": HI, "tools": [{**TOOLS[0], "type": "web_search"}]}, 400),
        ({"messages": HI, "tools": [{**TOOLS[0], "web_search": {}}]}, 200),
        ({"messages": [image("data:image/png;base64,AA")]}, 200),
        ({"messages": [image("http://169.254.169.254/")]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "http://web"}}]}]}, 400),
        ({"messages": [{**HI[0], "tool_calls": [{}]}]}, 200),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', 400),
    ],
)
def test_nothing_in_a_request_makes_the_server_do_more_or_fail(
    server: OpenAIServer, session: Session, body: Any, status: int
) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request))
    found, answer = asked(session, CHAT, body)
    assert (found, session.failure) == (status, None)
    if status == 200:
        request = json.loads(answer["choices"][0]["message"]["content"])
        assert request.keys() <= {"model", "messages", "tools"}
        assert "web" not in str(request)


def text_with(half: bytes) -> bytes:
    return b'{"max_tokens": 9, "messages": [{"role": "user", "content": "' + half + b'"}], "input": "' + half + b'"}'


def arguments_with(half: str) -> bytes:
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": half})}}
    return json.dumps({"messages": [*HI, {"role": "assistant", "tool_calls": [call]}, *HI], "tools": TOOLS}).encode()


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (text_with(rb"\ud83d"), 200),
        (text_with("\ud83d".encode("utf-8", "surrogatepass")), 400),
        (text_with(rb"\ud83d").decode().encode("utf-16"), 400),
        (arguments_with("\ud83d"), 200),
    ],
)
def test_half_a_surrogate_pair_is_replaced_or_refused(
    server: OpenAIServer, session: Session, path: str, body: bytes, status: int
) -> None:
    if path != CHAT and b"tool_calls" in body:
        status = 400  # a form of chat completions
    server.reply = lambda _: ModelReply("ok", tool_calls=[("bash", r'{"command": "\ud83d"}')])
    by_ids, _ = tokens(lambda _: r'<tool_call>{"name": "bash", "arguments": {"command": "\ud83d"}}</tool_call>')
    for one in (session, Session(by_ids)):
        assert (asked(one, path, body)[0], one.failure) == (status, None)
        one.close()
        for turn in one.turns:
            assert Turn.model_validate_json(json.dumps(turn.model_dump())) == turn
            json.dumps(turn.model_dump(), ensure_ascii=False).encode()


def test_an_agent_sets_what_is_listed_and_the_log_names_the_rest(
    server: OpenAIServer, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request))
    listed = {"temperature": 0.5, "stop": ["x"], "reasoning_effort": "low"}
    biased = {"chat_template_kwargs": {"enable_thinking": False}, "logit_bias": {"1": 100}, "response_format": {}}
    by_ids, generator = tokens(lambda _: "yes", temperature=0.7)
    said = []
    for one in (session, Session(by_ids)):
        with caplog.at_level(logging.INFO, "swe_gym"):
            for _ in range(2):
                status, answer = asked(one, CHAT, {"messages": HI, **listed, **biased})
                assert status == 200
                said.append(answer["choices"][0]["message"]["content"])
    request = json.loads(said[0])
    assert {name: request[name] for name in listed} == listed
    assert not biased.keys() & request.keys()
    told = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert told == [
        f"settings of the agent without effect: {sorted(names)}"
        for names in (biased, [*biased, "reasoning_effort", "temperature"])
    ]
    assert generator.temperatures == {0.7}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            "/v1/messages",
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "tools": [{"name": "a", "strict": True}]},
            ["thinking.budget_tokens", "tools.strict"],
        ),
        (
            f"{GOOGLE}:generateContent",
            {"toolConfig": {"retrievalConfig": {}}, "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
            ["generationConfig.thinkingConfig.thinkingBudget", "toolConfig.retrievalConfig"],
        ),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}, ["tools.type=web_search"]),
        (CHAT, {"tool_choice": "auto", "stream_options": {"x": 1}}, ["stream_options.x"]),
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, ["tool_choice"]),
    ],
)
def test_the_log_names_parts_of_fields_without_effect(
    path: str, body: dict[str, Any], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    by_ids, _ = tokens(lambda _: "yes")
    given = {
        "/v1/responses": {"input": "hi"},
        CHAT: {"messages": HI},
        "/v1/messages": {"messages": HI, "max_tokens": 9},
    }
    google = {"contents": [{"parts": [{"text": "hi"}]}]}
    with caplog.at_level(logging.INFO, "swe_gym"):
        assert asked(Session(by_ids), path, {**given.get(path, google), **body})[0] == 200
    assert f"settings of the agent without effect: {told}" in caplog.text


class Held(Scripted):
    """Answers once it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda number: f"answer {number}")
        self.asked, self.go = threading.Semaphore(0), threading.Event()

    def generate(self, prompt: Any, **options: Any) -> Completion:
        self.asked.release()
        assert self.go.wait(60)
        return super().generate(prompt, **options)


@pytest.fixture
def held() -> tuple[Session, Held]:
    generator = Held()
    return Session(TokenSampler(generator, ChatTemplate(ByteTokenizer()))), generator


def client_of(session: Session, data: bytes) -> socket.socket:
    """Send bytes to a session, and return the client's end."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=session.handle, args=(SocketConnection(theirs),), daemon=True).start()
    ours.sendall(data)
    return ours


def answer_of(client: socket.socket) -> Any:
    client.settimeout(60)
    received = b""
    while b"\r\n\r\n" not in received or not received.endswith(b"}"):
        received += client.recv(65536)
    return json.loads(received.partition(b"\r\n\r\n")[2])


def test_a_call_that_was_cut_off_is_not_sampled_again(held: tuple[Session, Held]) -> None:
    session, generator = held
    client = client_of(session, post(CHAT, {"messages": HI}))
    assert generator.asked.acquire(timeout=60)
    client.close()
    again = client_of(session, post(CHAT, {"messages": HI}))
    generator.go.set()
    assert answer_of(again)["choices"][0]["message"]["content"] == "answer 0"
    again.close()
    session.close()
    assert len(generator.sampled) == 1
    assert [turn.info.get("used", True) for turn in session.turns] == [True]
    assert len(session.report().segments) == 1


def test_an_answer_that_nobody_took_is_recorded_as_unused(held: tuple[Session, Held]) -> None:
    session, generator = held
    client = client_of(session, post(CHAT, {"messages": HI}))
    assert generator.asked.acquire(timeout=60)
    client.close()
    other = client_of(session, post(CHAT, {"messages": [{"role": "user", "content": "other"}]}))
    assert generator.asked.acquire(timeout=60)
    generator.go.set()
    answer_of(other)
    for thread in [one for one in threading.enumerate() if one.name == "agent call"]:
        thread.join(60)
    session.close()
    assert sorted(turn.info.get("used", True) for turn in session.turns) == [False, True]
    assert len(session.report().segments) == 1
    other.close()


@pytest.mark.parametrize(
    ("path", "sign", "end"),
    [
        (CHAT, b": waiting", b"data: [DONE]\n\n"),
        ("/v1/responses", b": waiting", b"response.completed"),
        ("/v1/messages", b"event: ping", b"event: message_stop"),
    ],
)
def test_a_stream_shows_signs_of_life_until_the_answer(path: str, sign: bytes, end: bytes) -> None:
    generator = Held()
    sampler = TokenSampler(generator, ChatTemplate(ByteTokenizer()))
    session = Session(sampler, limits=Limits(http=HttpLimits(wait=0.01)))
    client = client_of(session, post(path, {"messages": HI, "input": HI, "max_tokens": 99, "stream": True}))
    client.settimeout(60)
    received = b""
    while sign not in received:
        received += client.recv(65536)
    generator.go.set()
    while not received.endswith(b"0\r\n\r\n"):
        received += client.recv(65536)
    assert b"answer 0" in received
    assert end in received
    client.close()
    session.close()
    assert [turn.action for turn in session.turns] == ["answer 0"]


@pytest.mark.parametrize("name", [*DIALECTS, "/v1beta/models/m:streamGenerateContent"])
def test_the_first_sign_of_life_comes_with_the_first_wait(name: str) -> None:
    call, request = Call(model="m", messages=HI, stream=True), HttpRequest("POST", name, {}, b"")
    target, flight = find_target(name), Flight(b"", 0)
    assert target is not None
    dialect = target.dialect
    assert next(events_of(dialect, call, flight, request, 3600.0, late=True)) == dialect.PING


def test_a_server_samples_by_token_ids() -> None:
    said, question = ModelReply("So.", token_ids=[*b"So.", ByteTokenizer.end]), {"role": "user", "content": "?"}
    with OpenAIServer(lambda _: said, model="m") as server:
        options = LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, retries=0)
        generator = ServedGenerator(options, version=3)
        session = Session(TokenSampler(generator, ChatTemplate(ByteTokenizer())))
        _, answer = asked(session, CHAT, {"messages": [question]})
        asked(session, CHAT, {"messages": [question, answer["choices"][0]["message"], question]})
        server.reply = broken
        server.inject("/v1/completions", status=200, body={"choices": [{"finish_reason": "stop", "text": "no ids"}]})
        assert asked(session, CHAT, {"messages": [question]})[0] == 500
        generator.close()
    (segment,) = session.report().segments
    assert sum(segment.loss_mask) == 8
    assert set(segment.versions) == {3, -1}
    assert session.failure is not None
    assert "no token ids" in str(session.failure)
