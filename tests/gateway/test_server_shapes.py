"""What a server refuses of an agent's conversations is told before the first episode."""

import contextlib
import re
from typing import Any

import pytest
from gateway_parts import TOOLS, asked

from swe_gym.errors import UsageError
from swe_gym.gateway.agents import make_agent
from swe_gym.gateway.model_server import ServerSampler, check_shapes
from swe_gym.gateway.session import Session
from swe_gym.rollout.policies.llm import LLMPolicies
from swe_gym.testing.loopback import HttpAnswer
from swe_gym.testing.openai_server import ModelReply, OpenAIServer

FIRST = "System message must be at the beginning."


def refusing(pattern: str, said: str) -> Any:
    """Return a model whose chat template refuses conversations whose roles match a pattern."""

    def reply(request: dict[str, Any]) -> ModelReply:
        if re.search(pattern, " ".join(message["role"] for message in request["messages"])):
            raise HttpAnswer(400, {"error": {"message": said}})
        return ModelReply("pong")

    return reply


def options_of(server: OpenAIServer, **more: Any) -> LLMPolicies:
    return LLMPolicies(model="m", base_url=server.base_url, api_key=server.api_key, **more)


@pytest.mark.parametrize(
    ("agent", "pattern", "told"),
    [
        ("claude-code", r"\w+ system", f"'claude-code' sends .*{FIRST[:-1]}.*policy.later_system=user"),
        ("claude-code", r"^system", r"refuses the first messages of the agent 'claude-code' \(system, user, system\)"),
        ("codex", "user user", r"refuses the first messages of the agent 'codex' .*--chat-template"),
        ("mini", "tool", "refuses a tool call and its result: .*--chat-template"),
    ],
)
def test_messages_that_a_server_refuses_are_named_with_what_helps(agent: str, pattern: str, told: str) -> None:
    with OpenAIServer(refusing(pattern, FIRST), model="m") as server, pytest.raises(UsageError, match=told):
        check_shapes(options_of(server), agent, make_agent(agent))


class DroppingServer(OpenAIServer):
    """A server whose chat template drops system messages after the first message."""

    def answer(self, exchange: Any) -> None:
        messages = exchange.asked.body["messages"]
        messages[1:] = [one for one in messages[1:] if one["role"] != "system"]
        super().answer(exchange)


@pytest.mark.parametrize("later", ["system", "user"])
def test_a_server_that_drops_later_system_messages_is_named(later: Any) -> None:
    with DroppingServer(lambda _: ModelReply("pong"), model="m") as server:
        options = options_of(server, later_system=later)
        dropped = pytest.raises(UsageError, match=r"drops system messages .*'claude-code'.*policy.later_system=user")
        with dropped if later == "system" else contextlib.nullcontext():
            check_shapes(options, "claude-code", make_agent("claude-code"))


def test_a_dropping_server_is_named_although_its_answers_take_long() -> None:
    def think(request: dict[str, Any]) -> ModelReply:
        if request.get("max_tokens") != 1:
            raise HttpAnswer(504, {"error": {"message": "too slow"}})
        return ModelReply("p")

    with DroppingServer(think, model="m") as server, pytest.raises(UsageError, match="drops system messages"):
        check_shapes(options_of(server), "claude-code", make_agent("claude-code"))


def test_a_dropping_server_is_named_although_it_takes_no_limit_of_one_token() -> None:
    def refuse(request: dict[str, Any]) -> ModelReply:
        if "max_tokens" in request:
            raise HttpAnswer(400, {"error": {"message": "use max_completion_tokens"}})
        return ModelReply("pong")

    with DroppingServer(refuse, model="m") as server, pytest.raises(UsageError, match="drops system messages"):
        check_shapes(options_of(server), "claude-code", make_agent("claude-code"))


@pytest.mark.parametrize("agent", ["mini", "codex"])
def test_an_agent_that_sends_no_later_system_message_needs_no_option(agent: str) -> None:
    with OpenAIServer(refusing(r"\w+ system", FIRST), model="m") as server:
        check_shapes(options_of(server), agent, make_agent(agent))
        assert len(server.requests) == 2


def test_a_server_that_is_busy_is_not_blamed_for_messages(caplog: pytest.LogCaptureFixture) -> None:
    def busy(_: Any) -> ModelReply:
        raise HttpAnswer(429, {"error": {"message": "slow down"}})

    with OpenAIServer(busy, model="m") as server:
        check_shapes(options_of(server), "claude-code", make_agent("claude-code"))
    assert "nothing is known of system messages after the first message" in caplog.text


@pytest.mark.parametrize(("later", "sent"), [("system", "system user system"), ("user", "system user user")])
def test_system_messages_at_the_start_become_one_and_later_ones_follow_the_option(later: Any, sent: str) -> None:
    roles = ("system", "system", "user", "system")
    messages = [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]
    with OpenAIServer(lambda _: ModelReply("So."), model="m") as server:
        sampler = ServerSampler(options_of(server, later_system=later))
        asked(Session(sampler), "/v1/chat/completions", {"messages": messages, "tools": TOOLS})
        sampler.close()
        (request,) = server.requests
    assert " ".join(message["role"] for message in request.body["messages"]) == sent
    assert request.body["messages"][0]["content"] == "system 0\n\nsystem 1"
    assert sampler.info.options["later_system"] == later
