"""What a sandbox may send: nothing foreign reaches the server, and no request costs an episode its verdict."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_parts import Feed, asked, post, tokens
from hostile_parts import Hostile
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.errors import PolicyError
from swe_gym.gateway.model_server import ServerSampler
from swe_gym.gateway.session import Session
from swe_gym.grading.signs import signs_in_call
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.testing.openai_server import CHAT, ModelReply, OpenAIServer
from swe_gym.trajectories.trajectory import Turn
from swe_gym.types import ToolCall

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
INSIDE = "http://169.254.169.254/"
FOREIGN = {
    "uuid": "u",
    "image_url": {"url": INSIDE},
    "video_url": {"url": INSIDE},
    "input_audio": INSIDE,
    "x": {"y": INSIDE},
}
PIXEL = "data:image/png;base64,AA"
TEXT = {**FOREIGN, "type": "text", "text": "a"}
IMAGE = {**FOREIGN, "type": "image_url", "image_url": {"url": PIXEL, "detail": "low", "file_id": INSIDE}}
FUNCTION = {**FOREIGN, "name": "bash", "parameters": {"type": "object"}}
CALL = {**FOREIGN, "id": "1", "type": "function", "function": {**FUNCTION, "arguments": "{}"}}
CHAT_BODY = {
    "messages": [
        {**FOREIGN, "role": "user", "content": [TEXT, IMAGE]},
        {**FOREIGN, "role": "assistant", "content": [TEXT, IMAGE], "tool_calls": [CALL]},
        {**FOREIGN, "role": "tool", "tool_call_id": "1", "content": [TEXT, IMAGE]},
    ],
    "tools": [{**FOREIGN, "type": "function", "function": FUNCTION}],
    "tool_choice": {**FOREIGN, "type": "function", "function": {**FOREIGN, "name": "bash"}},
}
RESPONSES_BODY = {
    "input": [
        {
            **FOREIGN,
            "role": "user",
            "content": [
                {**TEXT, "type": "input_text"},
                {**FOREIGN, "type": "input_image", "image_url": PIXEL},
            ],
        },
        {**FOREIGN, "type": "function_call", "call_id": "1", "name": "bash", "arguments": "{}"},
        {**FOREIGN, "type": "function_call_output", "call_id": "1", "output": [{**TEXT, "type": "input_text"}]},
    ],
    "tools": [{**FUNCTION, "type": "function"}],
    "tool_choice": {**FOREIGN, "type": "function", "name": "bash"},
}
PICTURE = {**FOREIGN, "type": "image", "source": {**FOREIGN, "type": "base64", "media_type": "image/png", "data": "AA"}}
USE = {**FOREIGN, "type": "tool_use", "id": "1", "name": "bash", "input": {}}
MESSAGES_BODY = {
    "max_tokens": 9,
    "system": [TEXT],
    "messages": [
        {**FOREIGN, "role": "user", "content": [TEXT, PICTURE]},
        {**FOREIGN, "role": "assistant", "content": [TEXT, USE]},
        {**FOREIGN, "role": "user", "content": [{**FOREIGN, "type": "tool_result", "content": [TEXT, PICTURE]}]},
    ],
    "tools": [{**FOREIGN, "name": "bash", "input_schema": {"type": "object"}}],
    "tool_choice": {**FOREIGN, "type": "tool", "name": "bash"},
}


@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (RESPONSES, RESPONSES_BODY), (MESSAGES, MESSAGES_BODY)])
def test_only_known_keys_of_messages_and_tools_reach_the_server(
    server: OpenAIServer, session: Session, path: str, body: dict[str, Any]
) -> None:
    seen: list[str] = []

    def say(request: dict[str, Any]) -> ModelReply:
        seen.append(json.dumps(request))
        return ModelReply("ok")

    server.reply = say
    assert asked(session, path, body)[0] == 200
    (request,) = seen
    assert INSIDE not in request
    assert "uuid" not in request
    assert PIXEL in request
    assert json.loads(request)["tool_choice"] == {"type": "function", "function": {"name": "bash"}}


@pytest.mark.parametrize("name", ["name", "tool_call_id", "reasoning_content", "reasoning"])
def test_fields_of_messages_are_texts(session: Session, name: str) -> None:
    message = {"role": "user", "content": "hi", name: {"image_url": {"url": INSIDE}}}
    status, answer = asked(session, CHAT, {"messages": [message]})
    assert (status, answer["error"]["message"]) == (400, f"{name}: expected a string, not an object")


@pytest.mark.parametrize(
    "setting", [{"temperature": "hot"}, {"stop": [1]}, {"tool_choice": {"url": INSIDE}}, {"seed": 1.5}, {"top_k": {}}]
)
def test_settings_have_types(session: Session, setting: dict[str, Any]) -> None:
    status, answer = asked(session, CHAT, {"messages": [{"role": "user", "content": "hi"}], **setting})
    assert status == 400
    assert next(iter(setting)) in answer["error"]["message"]


# --- no request costs an episode its verdict -----------------------------------------------------------------

HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": 5}
DEEP = "[" * 3000
PREVIOUS = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": DEEP}}

VOIDING: dict[str, tuple[str, Any]] = {
    "reasoning only": (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}),
    "deep arguments": (CHAT, {"messages": [HI, {"role": "assistant", "tool_calls": [PREVIOUS]}]}),
    "deep call": (RESPONSES, {"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": DEEP}]}),
    "deep body": (CHAT, b'{"messages": [' + DEEP.encode() + b"]" * 3001 + b"}"),
    "many values": (CHAT, b'{"messages": [' + b"{}," * 200_000 + b"{}]}"),
}


@pytest.mark.parametrize("name", VOIDING)
def test_what_nobody_can_read_is_refused(server: OpenAIServer, session: Session, name: str) -> None:
    server.reply = lambda request: ModelReply(json.dumps(request))
    by_ids, _ = tokens(str)
    for one in (session, Session(by_ids)):
        path, body = VOIDING[name]
        assert (asked(one, path, body)[0], one.failure) == (400, None)
        assert asked(one, CHAT, {"messages": [HI]})[0] == 200


def test_a_tool_that_cannot_be_described_is_refused() -> None:
    sampler, _ = tokens(str, shows_tools=False)
    session = Session(sampler)
    tool = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    status, answer = asked(session, CHAT, {"messages": [HI], "tools": [tool]})
    assert (status, session.failure) == (400, None)
    assert "cannot render" in answer["error"]["message"]


def poisoned(request: dict[str, Any]) -> ModelReply:
    """A model that a word breaks."""
    if "poison" in json.dumps(request):
        raise RuntimeError("no such token at http://10.0.0.1:8000/v1")  # the server answers with status 500
    return ModelReply("ok")


def test_a_request_that_fails_twice_is_refused_and_the_episode_goes_on(server: OpenAIServer, session: Session) -> None:
    server.reply = poisoned
    status, answer = asked(session, CHAT, {"messages": [{"role": "user", "content": "poison"}]})
    assert status == 400
    assert "the model failed on this request twice" in answer["error"]["message"]
    assert "10.0.0.1" not in answer["error"]["message"]
    assert [one.body["messages"][0]["content"] for one in server.requests] == ["poison", "Hi", "poison"]
    assert (asked(session, CHAT, {"messages": [HI]})[0], session.failure) == (200, None)


def test_a_request_that_fails_once_is_answered(server: OpenAIServer, session: Session) -> None:
    server.inject(CHAT, status=500)
    assert (asked(session, CHAT, {"messages": [HI]})[0], session.failure) == (200, None)


def test_a_server_that_is_busy_or_broken_ends_the_episode(server: OpenAIServer, session: Session) -> None:
    server.inject(CHAT, status=503)
    assert asked(session, CHAT, {"messages": [HI]})[0] == 500
    assert isinstance(session.failure, PolicyError)
    assert session.failure.reason == "server"


REQUESTS = 8
"""Requests of an episode."""


def play(session: Session, hostile: Hostile) -> list[int]:
    """Send hostile requests and then a good one; return the statuses. Check that the episode has a verdict."""
    statuses = []
    for _ in range(REQUESTS):
        path, body = hostile.request()
        feed = Feed(post(path, body))
        session.handle(feed)
        statuses.append(int(feed.received.split()[1]))
        assert session.failure is None, body
        assert statuses[-1] == 200 or 400 <= statuses[-1] < 500, (statuses[-1], body)
    assert asked(session, CHAT, {"messages": [HI]})[0] == 200
    session.close()
    report = session.report()
    assert len(session.turns) >= 1
    for turn in session.turns:
        assert Turn.model_validate_json(turn.model_dump_json()) == turn
        signs_in_call(ToolCall(name=turn.tool, arguments=turn.arguments))
    json.dumps([report.messages, [tool.openai() for tool in report.tools]], ensure_ascii=False).encode()
    return statuses


SEEDS = st.integers(0, 2**32)


@pytest.mark.thorough
@given(seed=SEEDS, style=st.sampled_from(["", "hermes", "qwen3_coder", "llama"]))
def test_no_request_costs_the_verdict_of_an_episode_sampled_by_token_ids(seed: int, style: str) -> None:
    hostile = Hostile(seed)
    sampler, _ = tokens(lambda _: hostile.answer(), style=style, shows_tools=not style, max_context=1 << 20)
    play(Session(sampler), hostile)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[OpenAIServer, ServerSampler]]:
    """A server and what asks it, for all examples of a test."""
    with OpenAIServer(lambda _: ModelReply(""), model="m") as server:
        sampler = ServerSampler(LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, retries=0))
        yield server, sampler
        sampler.close()


@given(seed=SEEDS)
def test_no_request_costs_the_verdict_of_an_episode_on_a_server(
    shared: tuple[OpenAIServer, ServerSampler], seed: int
) -> None:
    (server, sampler), hostile = shared, Hostile(seed)

    def strict(request: dict[str, Any]) -> ModelReply:
        """Fail as servers do: on what their templates, parsers and images do not expect."""
        for message in request["messages"]:
            assert not isinstance(message["content"], list), "no images"
            for call in message.get("tool_calls") or ():
                json.loads(call["function"]["arguments"])
        for tool in request.get("tools") or ():
            assert set(tool["function"].get("parameters", {})) <= {"type", "properties", "required"}
        assert INSIDE + '"}}' not in json.dumps(request["messages"])
        return ModelReply(hostile.answer(), tool_calls=[("bash", hostile.answer())] * (seed % 2))

    server.reply = strict
    play(Session(sampler), hostile)
