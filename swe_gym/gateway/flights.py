"""`Flight`: the sampling of a call, for one request or several equal ones."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator

from .calls import Answer, Call, Refusal
from .history import AnsweredCall
from .http import HttpRequest
from .protocols import Dialect

POLL = 0.5
"""Seconds after which a waiting call is checked for an agent that hung up."""


class Flight:
    """The sampling of a call, for one request or several equal ones. Guarded by the session's lock."""

    def __init__(self, key: bytes, number: int) -> None:
        self.key, self.number = key, number
        self.result: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self.node: AnsweredCall | None = None
        self.failed = self.delivered = False
        self.waiting = 1
        self.abandoned = threading.Event()

    def serves(self, *, again: bool) -> bool:
        """Return whether its answer is the one to an equal request: a retry, or the first one was cut off."""
        return not self.failed and (again or (not self.taken and not self.waiting))

    @property
    def taken(self) -> bool:
        """Whether the agent took the answer."""
        return self.delivered or (self.node is not None and self.node.taken)

    def join(self) -> None:
        """Add a request."""
        self.waiting += 1
        self.abandoned.clear()

    def leave(self, *, delivered: bool) -> None:
        """Remove a request."""
        self.waiting -= 1
        self.delivered = self.delivered or delivered
        if not self.waiting:
            self.abandoned.set()

    def wait(self, request: HttpRequest, seconds: float) -> Answer | None:
        """Return the answer; None if there is none yet.

        Raises:
            Refusal: The call failed.
            ConnectionError: The agent hung up.
        """
        deadline, answer = time.monotonic() + seconds, None
        while answer is None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                answer = self.result.result(min(left, POLL))
            if not request.alive():
                raise ConnectionError("the agent hung up")
        return answer


def events_of(
    dialect: Dialect, call: Call, flight: Flight, request: HttpRequest, wait: float, *, late: bool
) -> Iterator[bytes]:
    """Yield the events of an answer, and until it is there a sign of life every `wait` seconds, at once if `late`."""
    if late:
        yield dialect.PING
    try:
        while (answer := flight.wait(request, wait)) is None:
            yield dialect.PING
    except Refusal as refusal:
        yield dialect.error_event(refusal)
    else:
        yield b"".join(dialect.events(call, answer))
