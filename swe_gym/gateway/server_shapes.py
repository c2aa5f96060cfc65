"""Asks a model's server, before a run, whether it takes the conversations of an agent."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PolicyError, UsageError
from ..rollout.policies import LLMPolicies
from ..types import JsonObject
from .agents.base import Agent
from .calls import Call, tool_call
from .digests import NO_TOOLS
from .history import CallPlace
from .passthrough import ServerSampler

SECONDS = 20.0
"""Deadline of each request."""

TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "ping", "description": "Answers.", "parameters": {"type": "object", "properties": {}}},
}
TEMPLATE_FIX = "Start the server with a chat template that renders them (vLLM: --chat-template FILE)"
TEXTS = {"system": "Be brief.", "user": "Call the tool `ping`, then answer with one word."}

REFUSED = frozenset({400, 404, 413, 422, 500, 501})
"""Statuses of servers whose chat template fails."""


def check_shapes(options: LLMPolicies, name: str, agent: Agent) -> None:
    """Send the first messages of an agent, then a tool call and its result, as the run would send them.

    Args:
        options: Model and server, which answers a plain request.
        name: Name of the agent.
        agent: The agent.

    Raises:
        UsageError: The server refuses one of them. The message names the option that helps.
    """
    opening = [{"role": role, "content": TEXTS[role]} for role in agent.opening]
    said = _refusal(options, opening)
    roles = ", ".join(agent.opening)
    as_user = options.model_copy(update={"later_system": "user"})
    if said and options != as_user and not _refusal(as_user, opening):
        raise UsageError(
            f"{options.server} refuses system messages after the first message, which the agent {name!r} sends "
            f"({roles}): {said}. Send them as the user's: policy.later_system=user"
        )
    if said:
        what = f"the first messages of the agent {name!r} ({roles})"
        raise UsageError(f"{options.server} refuses {what}: {said}. {TEMPLATE_FIX}")
    call = tool_call("call00000", "ping", "{}")
    calls = [
        {"role": "assistant", "content": "I call it.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "pong"},
    ]
    if said := _refusal(options, [*opening, *calls]):
        raise UsageError(f"{options.server} refuses a tool call and its result: {said}. {TEMPLATE_FIX}")


def _refusal(options: LLMPolicies, messages: Sequence[JsonObject]) -> str:
    """Return what the server says against messages; empty if it takes them, or fails for another reason."""
    limits = {"retries": 0, "timeout": min(SECONDS, options.timeout), "deadline": min(SECONDS, options.deadline)}
    sampler = ServerSampler(options.model_copy(update=limits))
    call = Call(model=options.model, messages=messages, tools=[TOOL])
    place = CallPlace(None, False, tuple(messages), "", b"", NO_TOOLS)
    try:
        sampler.sample(call, place, seed=None)
    except PolicyError as error:
        status = getattr(error.__cause__, "status_code", None)
        return str(getattr(error.__cause__, "message", None) or error)[:300].rstrip(".") if status in REFUSED else ""
    finally:
        sampler.close()
    return ""
