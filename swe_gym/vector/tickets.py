"""Tickets: numbered requests to slots, each answered and fetched exactly once."""

from __future__ import annotations

import dataclasses
import itertools
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

_SLICE = 0.5
"""Seconds of one wait. A signal just before a wait does not interrupt it, so no wait is endless."""
_WAKES = 16
"""Threads that a request wakes at once; each wakes the next. See `Tickets.hand_over`."""


class ResultsNotReady(multiprocessing.TimeoutError, TimeoutError):
    """Results were not ready in time. Nothing is lost: call again.

    It is both the error of `AsyncVectorEnv` and the built-in `TimeoutError`.
    """


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """One request to one slot.

    Attributes:
        number: Serial number in the vector environment.
        slot: Index of the slot.
        inbox: Queue of the slot's thread.
        work: Function that the thread runs; it never raises.
        answered: Whether `answer` is final.
        answer: Result of `work`.
        raised: Whether the error in the answer was raised to the caller.
    """

    number: int
    slot: int
    inbox: SimpleQueue[Ticket | None]
    work: Callable[[], object]
    answered: bool = False
    answer: Any = None
    raised: bool = False


Requests = Mapping[int, tuple[SimpleQueue[Ticket | None], Callable[[], object]]]
"""Slot -> queue of its thread, and the work."""


class Tickets:
    """All requests whose answers were not fetched yet.

    Each ticket is answered once and fetched once. Any thread may call. After an interrupt (Ctrl-C) at any point, both
    `wait` and `close` work.
    """

    def __init__(self) -> None:
        self.closed = False
        self._numbers = itertools.count()
        self._changed = threading.Condition()  # its lock is re-entrant: a signal handler may call close
        self._kind = ""
        self._open: dict[int, Ticket] = {}
        self._to_hand: dict[int, Ticket] = {}  # not yet given to a thread
        self._answered: dict[int, Ticket] = {}
        self._needed = math.inf  # answers that a waiting caller needs; fewer wake nobody

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, kind: str, requests: Requests) -> list[int]:
        """Issue all requests, or none if that is impossible.

        Args:
            kind: "reset", "step" or "call", one of which may be open at a time, or "send", one per slot.
            requests: Work of each slot.

        Returns:
            The tickets' numbers.

        Raises:
            AlreadyPendingCallError: Earlier results were not fetched yet.
            ClosedEnvironmentError: The vector environment is closed.
        """
        with self._changed:
            if self.closed:
                raise ClosedEnvironmentError("the vector environment is closed: make a new one")
            self._check_free(kind, requests)
            tickets = [Ticket(next(self._numbers), slot, *request) for slot, request in requests.items()]
            new = {ticket.number: ticket for ticket in tickets}
            self._kind = kind
            # Both or none: an interrupt cannot fall between two plain stores.
            self._open, self._to_hand = {**self._open, **new}, {**self._to_hand, **new}
        self._wake_some()
        return list(new)

    def wait(self, kind: str, least: float = math.inf, timeout: float | None = None) -> list[Ticket]:
        """Return the answered tickets, oldest first, once `least` of the open ones (or all) are answered.

        After `timeout` seconds, return those answered by then. Tickets stay until `fetch` takes them.

        Raises:
            NoAsyncCallError: No ticket of this kind is open.
            AlreadyPendingCallError: Tickets of another kind are open.
            ClosedEnvironmentError: No ticket is open and the vector environment is closed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._wake_some()  # an interrupt may have prevented it in `issue`
        with self._changed:
            while True:
                self._check_open(kind)
                needed = min(least, len(self._open))
                left = deadline - time.monotonic()
                if len(self._answered) >= needed or left <= 0:
                    return sorted(self._answered.values(), key=lambda ticket: ticket.number)
                self._needed = min(self._needed, needed)
                self._changed.wait(min(left, _SLICE))

    def fetch(self, tickets: list[Ticket]) -> bool:
        """Remove answered tickets. Return False and remove none if another thread has taken one."""
        gone = {ticket.number for ticket in tickets}
        with self._changed:
            if not gone <= self._answered.keys():
                return False
            still_open = {number: ticket for number, ticket in self._open.items() if number not in gone}
            answered = {number: ticket for number, ticket in self._answered.items() if number not in gone}
            self._open, self._answered = still_open, answered
            self._changed.notify_all()
            return True

    def answer(self, ticket: Ticket, answer: object) -> None:
        """Answer a ticket. Only the first answer counts."""
        with self._changed:
            if ticket.answered:
                return
            ticket.answer, ticket.answered = answer, True
            self._answered[ticket.number] = ticket
            if len(self._answered) >= self._needed:
                self._needed = math.inf
                self._changed.notify_all()

    def hand_over(self) -> None:
        """Give the next ticket to its thread. Every thread calls it when it starts on a ticket.

        Threads thus start one after another. Hundreds woken at once would all wait for the interpreter's lock and poll
        it every few milliseconds, which costs more than their work.
        """
        with self._changed:
            for number, ticket in self._to_hand.items():
                ticket.inbox.put(ticket)  # after an interrupt here the ticket is given twice, but its work runs once
                del self._to_hand[number]
                return

    def waiting(self) -> list[Ticket]:
        """Return the tickets without an answer."""
        with self._changed:
            return [ticket for ticket in self._open.values() if not ticket.answered]

    def slots(self) -> set[int]:
        """Return the slots that have an open ticket."""
        with self._changed:
            return {ticket.slot for ticket in self._open.values()}

    def pending(self) -> str:
        """Return the kind of the open tickets; empty if there are none."""
        return self._kind if self._open else ""

    def close(self) -> None:
        """Refuse further requests."""
        with self._changed:
            self.closed = True

    def _wake_some(self) -> None:
        for _ in range(_WAKES):
            self.hand_over()

    def _check_free(self, kind: str, slots: Mapping[int, object]) -> None:
        if not self._open:
            return
        if kind == self._kind == "send":
            busy = sorted(self.slots() & set(slots))
            if busy:
                raise AlreadyPendingCallError(f"slots {busy} have results that were not received: call recv()", kind)
        else:
            raise _pending(kind if kind == "send" else f"{kind}_async", self._kind)

    def _check_open(self, kind: str) -> None:
        caller = "recv" if kind == "send" else f"{kind}_wait"
        if not self._open and self.closed:
            raise ClosedEnvironmentError("the vector environment is closed and holds no more results")
        if not self._open:
            before = "send" if kind == "send" else f"{kind}_async"
            raise NoAsyncCallError(f"Calling `{caller}` without any prior call to `{before}`.", kind)
        if self._kind != kind:
            raise _pending(caller, self._kind)


def _pending(caller: str, kind: str) -> AlreadyPendingCallError:
    """Return the error; its message starts with Gymnasium's wording, which programs may match."""
    advice = "recv() or drain()" if kind == "send" else f"{kind}_wait()"
    return AlreadyPendingCallError(
        f"Calling `{caller}` while waiting for a pending call to `{kind}` to complete. Call {advice} first.", kind
    )
