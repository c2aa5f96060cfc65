"""Retries of a request to a model's server: which failures are tried again, when, and how many there were."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping

import openai

from ...errors import PolicyError
from ...types import Json

logger = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
"""Seconds before the first retry, which double up to the longest delay."""

LONGEST_ASKED = 120.0
"""Longest delay that a server may ask for. A request that would wait longer fails."""
_jitter = random.Random()


class Retries:
    """Sends a request until it succeeds. Each retry is logged before its delay, and counted as it is sent.

    The SDK could retry as well, but does not say how often.

    Args:
        most: Largest number of retries.
        say: Returns what a failure means, for the log.

    Attributes:
        count: Number of requests that were sent again so far.
    """

    def __init__(self, most: int, say: Callable[[openai.OpenAIError], object]) -> None:
        self.count = 0
        self._most, self._say = most, say

    async def run(self, send: Callable[[], Awaitable[Json]]) -> Json:
        """Return the answer; raise the last failure."""
        while True:
            try:
                return await send()
            except openai.OpenAIError as error:
                wait = delay_after(error, self.count) if self.count < self._most else None
                if wait is None:
                    raise
                logger.info("%s; retry %d of %d in %.1f s", self._say(error), self.count + 1, self._most, wait)
            await asyncio.sleep(wait)  # the deadline may end here: then it is not sent again
            self.count += 1


def delay_after(error: openai.OpenAIError, retries: int) -> float | None:
    """Return the seconds between a failure and the next try; None if there is none.

    Args:
        error: The failure.
        retries: Retries before it.
    """
    backoff = min(FIRST_DELAY * 2.0 ** min(retries, 10), LONGEST_DELAY) * _jitter.uniform(0.75, 1.0)
    if isinstance(error.__cause__, PolicyError):
        return None
    if isinstance(error, openai.APIConnectionError):  # includes timeouts
        return backoff
    if not isinstance(error, openai.APIStatusError):
        return None
    asked = _read_delay(error.response.headers)
    if asked > LONGEST_ASKED or not _is_transient(error):
        return None
    return asked if asked > 0 else backoff


def _is_transient(error: openai.APIStatusError) -> bool:
    told: str = error.response.headers.get("x-should-retry", "")
    if told in ("true", "false"):
        return told == "true"
    status: int = error.status_code
    return status in (408, 409, 429) or status >= 500


def _read_delay(headers: Mapping[str, str]) -> float:
    """Return the seconds that the server asks to wait; 0 if it asks for none."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return email.utils.mktime_tz(date) - time.time() if date else 0.0
