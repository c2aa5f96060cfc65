"""The OpenAI server, with OpenAI's own SDK as the client."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import CHAT, COMPLETIONS, ModelReply, OpenAIServer, context_length_exceeded, in_turn

openai = pytest.importorskip("openai")

TALK: Any = [{"role": "user", "content": "hi"}]
CALLS = [("bash", '{"command": "ls -la"}'), ("submit", '{"not": json')]


def client_of(server: OpenAIServer, **options: Any) -> Any:
    usual = {"base_url": server.base_url, "api_key": server.api_key, "max_retries": 0, "timeout": 10}
    return openai.OpenAI(**{**usual, **options})


def chat(server: OpenAIServer, messages: Any = TALK, **request: Any) -> Any:
    with client_of(server) as client:
        answer = client.chat.completions.create(model="scripted", messages=messages, **request)
        return list(answer) if request.get("stream") else answer


def complete(server: OpenAIServer, prompt: Any, **request: Any) -> Any:
    with client_of(server) as client:
        answer = client.completions.create(model="scripted", prompt=prompt, **request)
        return list(answer) if request.get("stream") else answer


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(lambda request: ModelReply(f"{len(request['messages'])} so far")) as server:
        yield server


# --- answers --------------------------------------------------------------------------------------------------


def test_the_models() -> None:
    with OpenAIServer(in_turn(), model="tiny", context_length=4096) as server, client_of(server) as client:
        (model,) = client.models.list()
    assert (model.id, model.max_model_len) == ("tiny", 4096)


def test_a_reply(server: OpenAIServer) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "you"}]}
    answer = chat(server, [*TALK, {"role": "assistant", "content": None}, parts])
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "3 so far", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 8, 13)
    (request,) = server.requests
    assert request.body["messages"][0] == TALK[0]


def test_a_streamed_reply() -> None:
    said = ModelReply("a longer text\nof two lines — and more", reasoning="because it is so", tool_calls=CALLS)
    with OpenAIServer(in_turn(said)) as server:
        *pieces, last = chat(server, stream=True, stream_options={"include_usage": True})
    deltas = [piece.choices[0].delta for piece in pieces]
    assert "".join(delta.content or "" for delta in deltas) == said.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == said.reasoning
    calls: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls or []):
        name_and_text = calls.setdefault(call.index, ["", ""])
        name_and_text[0] += call.function.name or ""
        name_and_text[1] += call.function.arguments or ""
    assert list(calls.values()) == [list(call) for call in CALLS]
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason] == ["tool_calls"]
    assert last.choices == []
    assert last.usage.completion_tokens > len(said.content)


def test_tool_calls_are_sent_unchanged() -> None:
    with OpenAIServer(in_turn(ModelReply(tool_calls=CALLS))) as server:
        (choice,) = chat(server).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == CALLS
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_several_choices() -> None:
    with OpenAIServer(in_turn(ModelReply("a"), ModelReply("b", finish_reason="length"))) as server:
        choices = chat(server, n=2).choices
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_token_ids_in_and_out() -> None:
    asked: list[Any] = []

    def reply(request: dict[str, Any]) -> ModelReply:
        asked.append(request["prompt"])
        return ModelReply("né", token_ids=[7, 300], logprobs=[-0.25, -1.5])

    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    with OpenAIServer(reply) as server:
        answer = complete(server, [5, 6, 50_000], logprobs=0, max_tokens=10, extra_body=extra)
        pieces = complete(server, [5], logprobs=1, stream=True, extra_body=extra)
    assert asked == [[5, 6, 50_000], [5]]
    (choice,) = answer.choices
    assert (choice.text, choice.token_ids, choice.prompt_token_ids) == ("né", [7, 300], [5, 6, 50_000])
    assert choice.logprobs.tokens == ["token_id:7", "token_id:300"]
    assert choice.logprobs.token_logprobs == [-0.25, -1.5]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
    assert "".join(piece.choices[0].text for piece in pieces) == "né"
    assert pieces[-1].choices[0].token_ids == [7, 300]


def test_tokens_are_bytes_by_default() -> None:
    with OpenAIServer(lambda _: ModelReply("né")) as server:
        (talked,) = chat(server, logprobs=True, extra_body={"return_token_ids": True}).choices
        (completed,) = complete(server, "text", logprobs=0).choices
        assert complete(server, "text").choices[0].logprobs is None
    assert talked.token_ids == list("né".encode())
    assert [(row.token, row.logprob) for row in talked.logprobs.content] == [
        ("n", -0.5),
        ("<195>", -0.5),
        ("<169>", -0.5),
    ]
    assert completed.logprobs.tokens == ["n", "<195>", "<169>"]
    assert completed.logprobs.text_offset == [0, 1, 6]


def test_concurrent_requests(server: OpenAIServer) -> None:
    answers: list[str] = []
    with client_of(server) as client:

        def ask(number: int) -> None:
            messages: Any = TALK * number
            answers.append(
                client.chat.completions.create(model="scripted", messages=messages).choices[0].message.content
            )

        threads = [threading.Thread(target=ask, args=[number]) for number in range(1, 33)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(answers) == sorted(f"{number} so far" for number in range(1, 33))
    assert server.paths() == [f"POST {CHAT}"] * 32


# --- refusals and faults --------------------------------------------------------------------------------------


def test_invalid_requests(server: OpenAIServer) -> None:
    with client_of(server, api_key="sk-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with client_of(server) as client, pytest.raises(openai.NotFoundError, match="other") as unknown:
        client.chat.completions.create(model="other", messages=TALK)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="messages"):
        chat(server, [])
    with pytest.raises(openai.BadRequestError, match="prompt"):
        complete(server, [[1, 2], [3]])
    with client_of(server) as client, pytest.raises(openai.NotFoundError, match="unknown call"):
        client.embeddings.create(model="scripted", input="text")


def test_a_script_that_fails_or_ends() -> None:
    with OpenAIServer(in_turn(ModelReply("one"))) as server:
        chat(server)
        with pytest.raises(openai.BadRequestError, match="the script is over"):
            chat(server)
        server.reply = lambda request: ModelReply(request["nothing"])
        with pytest.raises(openai.InternalServerError, match="KeyError"):
            chat(server)


def test_a_prompt_that_is_too_long() -> None:
    with OpenAIServer(in_turn(ModelReply("fits")), context_length=100) as server:
        for prompt, room in (([1] * 101, 0), ([1] * 50, 51)):
            with pytest.raises(openai.BadRequestError, match="maximum context length is 100 tokens") as refused:
                complete(server, prompt, max_tokens=room)
            assert refused.value.code == "context_length_exceeded"
        assert complete(server, [1] * 50, max_tokens=50).choices[0].text == "fits"


def test_a_refusal_on_command(server: OpenAIServer) -> None:
    server.inject(CHAT, status=429, headers={"Retry-After": "7"}, skip=1)
    chat(server)
    with pytest.raises(openai.RateLimitError) as limited:
        chat(server)
    assert limited.value.response.headers["Retry-After"] == "7"
    server.inject("/v1/*", status=500)
    with pytest.raises(openai.InternalServerError):
        chat(server)
    server.inject(CHAT, status=400, body=context_length_exceeded(10, 11))
    with pytest.raises(openai.BadRequestError, match="10 tokens"):
        chat(server)
    chat(server)
    assert len(server.requests) == 5


def test_the_client_retries(server: OpenAIServer) -> None:
    server.inject(CHAT, status=503, headers={"Retry-After-Ms": "1"}, times=2)
    with client_of(server, max_retries=2) as client:
        assert client.chat.completions.create(model="scripted", messages=TALK).choices[0].message.content == "1 so far"
    assert len(server.requests) == 3


def test_a_hanging_server_recovers(server: OpenAIServer) -> None:
    server.inject(CHAT, hang=True, times=None)
    with client_of(server, timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="scripted", messages=TALK)
    server.mend()
    chat(server)


def test_a_lost_reply(server: OpenAIServer) -> None:
    server.inject(CHAT, lose_reply=True)
    with pytest.raises(openai.APIConnectionError):
        chat(server)


@pytest.mark.parametrize("after", [0, 10, 250])
def test_an_interrupted_stream(server: OpenAIServer, after: int) -> None:
    server.inject(CHAT, cut_after=after)
    with pytest.raises(Exception, match=r"(?i)connection|closed"):  # the class depends on the SDK
        chat(server, stream=True)
    assert len(chat(server, stream=True)) > 2


def test_a_reply_can_refuse() -> None:
    def reply(_: dict[str, Any]) -> ModelReply:
        raise HttpAnswer(429, {"error": {"message": "later"}}, {"Retry-After": "1"})

    with OpenAIServer(reply) as server, pytest.raises(openai.RateLimitError):
        complete(server, "text", extra_body={"best_of": 1})
    assert server.paths() == [f"POST {COMPLETIONS}"]
