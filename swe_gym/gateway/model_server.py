"""Models on servers: a sampler that passes calls on, a generator of token ids, and checks before a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import PolicyError, UsageError
from ..rollout.policies import TOKENS_PER_CHARACTER, LLMPolicies, action_of
from ..rollout.tokens import Completion, read_completion
from ..trajectories import PolicyInfo
from ..types import JsonObject
from .agents.base import Agent
from .calls import NO_TOOLS, Answer, Call, Finish, arrange_system_messages, keep_written_ids, tool_call
from .history import CallPlace
from .reading import SETTINGS

log = logging.getLogger(__name__)


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
        message = _with_ids(answer.message, call.messages)
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


def _with_ids(message: JsonObject, messages: Sequence[JsonObject]) -> JsonObject:
    """Return an answer of a server with ids that no earlier message has: some count the calls of each answer from 0."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    try:
        read = [
            tool_call(str(one.get("id")), str(one["function"]["name"]), str(one["function"].get("arguments") or "{}"))
            for one in calls
        ]
    except (AttributeError, LookupError, TypeError) as error:
        raise PolicyError(f"the server sent an invalid tool call: {str(calls)[:200]}", reason="bad_reply") from error
    return {**message, "tool_calls": keep_written_ids(read, messages)}


class ServedGenerator:
    """A `Generator` that samples from a vLLM server's `/v1/completions`, which takes and returns token ids.

    For log-probabilities under the sampling distribution, start the server with
    `--logprobs-mode processed_logprobs --generation-config vllm`.

    Args:
        options: Model, server, retries and further fields of the request.
        version: Version of the server's weights, for the record.
    """

    def __init__(self, options: LLMPolicies, *, version: int = 0) -> None:
        self._options, self.version = options, version
        self._client = options.connect(timeout=options.timeout, deadline=options.deadline, retries=options.retries)

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`."""
        request = {"model": self._options.model, "prompt": list(prompt), "return_token_ids": True, "logprobs": 0}
        request |= {"max_tokens": max_tokens, "temperature": temperature, **self._options.request}
        version = self.version
        reply = self._client.post("/completions", request if seed is None else {**request, "seed": seed})
        try:
            return read_completion(reply, version)
        except (LookupError, TypeError) as error:
            text = f"the server's answer holds no token ids; is it vLLM 0.10.2 or newer? {str(reply)[:200]}"
            raise PolicyError(text, reason="bad_reply") from error

    def close(self) -> None:
        """Close the connection: waiting calls raise `PolicyError`. Idempotent."""
        self._client.close()


CHECK_SECONDS = 20.0
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
        UsageError: The server refuses or drops one of them. The message names the option that helps.
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
    if options != as_user and _drops_later(options, opening):
        raise UsageError(
            f"the chat template of {options.server} drops system messages after the first message, which the agent "
            f"{name!r} sends ({roles}): the prompt is not longer with a longer one. Send them as the user's: "
            "policy.later_system=user"
        )
    call = tool_call("call00000", "ping", "{}")
    calls = [
        {"role": "assistant", "content": "I call it.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "pong"},
    ]
    if said := _refusal(options, [*opening, *calls]):
        raise UsageError(f"{options.server} refuses a tool call and its result: {said}. {TEMPLATE_FIX}")


def _drops_later(options: LLMPolicies, opening: Sequence[JsonObject]) -> bool:
    """Return whether the length of a later system message changes no count of prompt tokens."""
    at = max((at for at, one in enumerate(opening) if one["role"] == "system"), default=0)
    if all(one["role"] == "system" for one in opening[:at]):
        return False
    limited = options.model_copy(update={"max_tokens": 1})  # counts need no answer, and thoughts may take minutes
    if _refusal(limited, opening):
        limited = options
    longer = {**opening[at], "content": f"{TEXTS['system']} " * 20}
    counts = [_ask(limited, messages)[1] for messages in (opening, [*opening[:at], longer, *opening[at + 1 :]])]
    if not all(counts):
        log.warning(
            "%s did not say how long its prompts are, so nothing is known of system messages after the first message. "
            "If its chat template drops them, send them as the user's: policy.later_system=user",
            options.server,
        )
    return 0 < counts[0] == counts[1]


def _refusal(options: LLMPolicies, messages: Sequence[JsonObject]) -> str:
    """Return what the server says against messages; empty if it takes them, or fails for another reason."""
    return _ask(options, messages)[0]


def _ask(options: LLMPolicies, messages: Sequence[JsonObject]) -> tuple[str, int]:
    """Return what the server says against messages, and the tokens of their prompt; 0 if it does not say."""
    limits = {
        "retries": 0,
        "timeout": min(CHECK_SECONDS, options.timeout),
        "deadline": min(CHECK_SECONDS, options.deadline),
    }
    sampler = ServerSampler(options.model_copy(update=limits))
    call = Call(model=options.model, messages=messages, tools=[TOOL])
    place = CallPlace(None, False, tuple(messages), "", b"", NO_TOOLS)
    try:
        return "", sampler.sample(call, place, seed=None).usage.prompt_tokens
    except PolicyError as error:
        if getattr(error.__cause__, "status_code", None) not in REFUSED:
            return "", 0
        return str(getattr(error.__cause__, "message", None) or error)[:300].rstrip("."), 0
    finally:
        sampler.close()
