"""A sampler that passes calls on to an OpenAI-compatible server."""

from __future__ import annotations

from ..errors import PolicyError
from ..rollout.policies import TOKENS_PER_CHARACTER, LLMPolicies, action_of
from ..trajectories.trajectory import PolicyInfo
from ..types import JsonObject
from .calls import Answer, Call, Finish, new_id, tool_call
from .history import CallPlace
from .reading import SETTINGS
from .system_messages import arrange_system_messages


class ServerSampler:
    """Passes calls on to an OpenAI-compatible server. Keeps no tokens. System messages at the start become one.

    Sampling settings of `options` replace those of the agent, and `max_tokens` limits them. Retries, prices and
    deadlines are those of the policy `llm`.

    Args:
        options: Model, server and settings. `calls`, `system`, `seed` and `context` do not apply.
    """

    settings = SETTINGS

    def __init__(self, options: LLMPolicies) -> None:
        self.model = options.model
        asked = {"request": options.request, "later_system": options.later_system}
        self.info = PolicyInfo(name="agent", model=options.model, sampling=options.sampling, options=asked)
        self._options = options
        self._client = options.connect(timeout=options.timeout, deadline=options.deadline, retries=options.retries)

    def sample(self, call: Call, place: CallPlace, *, seed: int | None) -> Answer:  # noqa: ARG002  the server keeps no state
        """See `Sampler`."""
        answer = self._client.complete(self._request(call, seed))
        message = _with_ids(answer.message)
        finish: Finish = "length" if answer.finish_reason == "length" else "stop"
        return Answer(
            message=message,
            text=action_of(message),
            finish="tool_calls" if message.get("tool_calls") and finish == "stop" else finish,
            usage=answer.usage.priced(self._options.price),
        )

    def _request(self, call: Call, seed: int | None) -> JsonObject:
        limits = [limit for limit in (call.max_tokens, self._options.max_tokens) if limit is not None]
        request: JsonObject = {**call.settings, **self._options.sampling, "model": self.model}
        request |= {"messages": arrange_system_messages(call.messages, self._options.later_system)}
        if call.tools:
            request["tools"] = list(call.tools)
        if limits:
            request["max_tokens"] = min(limits)
        if seed is not None:
            request["seed"] = seed
        return {**request, **self._options.request}

    def count(self, call: Call) -> int:
        """Estimate the tokens of the prompt."""
        return estimate_tokens(call)

    def close(self) -> None:
        """Close the connection: waiting calls raise `PolicyError`. Idempotent."""
        self._client.close()


def estimate_tokens(call: Call) -> int:
    """Estimate the tokens of a prompt from its characters."""
    return int(len(str([*call.messages, *call.tools])) * TOKENS_PER_CHARACTER)


def _with_ids(message: JsonObject) -> JsonObject:
    """Return an answer of a server with ids of our own: some servers count the tool calls of each answer from 0."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    try:
        named = [(str(call["function"]["name"]), call["function"].get("arguments") or "{}") for call in calls]
    except (AttributeError, LookupError, TypeError) as error:
        raise PolicyError(f"the server sent an invalid tool call: {str(calls)[:200]}", reason="bad_reply") from error
    return {**message, "tool_calls": [tool_call(new_id(9), name, str(arguments)) for name, arguments in named]}
