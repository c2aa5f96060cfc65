"""`Sampler`: the protocol of what answers the calls of agents, and whose fault a failed call is.

The request is at fault, and is refused, or the model, which ends the episode. Nothing that an agent sends may end its
episode without a verdict: a policy could learn to drop its failures.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Protocol

from ..errors import PolicyError
from ..trajectories import PolicyInfo
from .calls import NO_TOOLS, Answer, Call, Refusal
from .history import CallPlace


class Sampler(Protocol):
    """Answers calls. Called from many threads at once.

    Attributes:
        model: Name of the model.
        settings: Names of the settings of calls that have an effect, or NAME=VALUE if only that value has one.
        info: Description for the records.
    """

    model: str
    settings: frozenset[str]
    info: PolicyInfo

    def sample(self, call: Call, place: CallPlace, *, seed: int | None) -> Answer:
        """Answer a call.

        Args:
            call: The call.
            place: What it continues.
            seed: Sampling seed.

        Raises:
            Refusal: The agent asks for something that is not supported.
            PolicyError: The model did not answer; its reason is "context" if the conversation is too long.
        """
        ...

    def count(self, call: Call) -> int:
        """Return the tokens of the prompt, perhaps estimated."""
        ...


logger = logging.getLogger(__name__)

PROBE = Call(model="", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
"""A call that every model answers."""

BUSY = frozenset({408, 409, 429, 502, 503, 504})
"""Statuses of a server that cannot answer now, whatever the request."""

SAID = 500
"""Characters of a server's error that an agent gets."""


def sample(sampler: Sampler, call: Call, place: CallPlace, *, seed: int | None) -> Answer:
    """Answer a call. If it fails while the model answers another call, it is tried a second time.

    Raises:
        Refusal: The request is at fault: it is invalid or too long, or it failed twice.
        Exception: The sampler failed.
    """
    try:
        return _try(sampler, call, place, seed)
    except Exception as error:
        if not _may_be_the_request(error) or not _answers(sampler):
            raise
        logger.info("the model failed on a request and answers others; trying it again: %s", error)
    try:
        return _try(sampler, call, place, seed)
    except Exception as error:
        if not _may_be_the_request(error):
            raise
        raise Refusal(400, f"the model failed on this request twice: {_explain(error)}") from error


def _try(sampler: Sampler, call: Call, place: CallPlace, seed: int | None) -> Answer:
    try:
        return sampler.sample(call, place, seed=seed)
    except PolicyError as error:
        if error.reason == "context":
            # Claude Code and litellm recognize these words.
            text = f"prompt is too long: maximum context length exceeded ({_explain(error)})"
            raise Refusal(400, text, code="context_length_exceeded") from error
        if error.reason == "refused" and _status(error) in (400, 413, 422):
            raise Refusal(400, f"the model's server refused the request: {_explain(error)}") from error
        raise


def _may_be_the_request(error: Exception) -> bool:
    if isinstance(error, Refusal):
        return False
    if not isinstance(error, PolicyError):
        return True
    if error.reason == "bad_reply":
        return not error.retryable
    status = _status(error)
    return status is not None and status not in BUSY


def _answers(sampler: Sampler) -> bool:
    """Return whether the model answers a harmless call."""
    place = CallPlace(None, False, tuple(PROBE.messages), "", b"", NO_TOOLS)
    try:
        sampler.sample(PROBE, place, seed=None)
    except Exception as error:  # noqa: BLE001  whatever it is, the model does not answer
        logger.info("the model does not answer a harmless call either: %s", error)
        return False
    return True


def _status(error: Exception) -> int | None:
    """Return the HTTP status that caused an error."""
    found = getattr(error.__cause__, "status_code", None)
    return found if isinstance(found, int) else None


_ADDRESS = re.compile(r"(?<!\w)\w++://[^\s'\")>\]]+")


def _explain(error: Exception) -> str:
    """Return what an agent is told of an error: the server's words, without addresses."""
    said = getattr(error.__cause__, "message", None) or (str(error) if isinstance(error, PolicyError) else repr(error))
    return _ADDRESS.sub("[address]", str(said))[:SAID]


@contextlib.contextmanager
def refuse_errors(what: str) -> Iterator[None]:
    """Turn errors of a block that only handles a request into refusals: the agent wrote its input.

    Args:
        what: What failed, for the agent.
    """
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        logger.debug("%s", what, exc_info=error)
        raise Refusal(400, f"{what}: {_explain(error)}") from error
