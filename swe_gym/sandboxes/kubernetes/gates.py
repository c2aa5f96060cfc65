"""Few at a time, so many per second, until a deadline, and not at all once the sandbox is closed."""

import contextlib
import threading
import time
from collections.abc import Iterator

from ...errors import SandboxClosed, SandboxStartError


class Rate:
    """Lets at most so many pass per second, a second's worth at once."""

    def __init__(self, per_second: float) -> None:
        self._step = 1.0 / per_second
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, deadline: float, cancelled: threading.Event) -> None:
        """Wait for one's turn.

        Raises:
            SandboxStartError: It does not come before the deadline.
            SandboxClosed: `cancelled` was set.
        """
        with self._lock:
            now = time.monotonic()
            turn = max(self._next, now - 1.0)
            if turn > deadline:
                raise too_late("its turn to be created")
            self._next = turn + self._step
        sleep(turn - now, cancelled)


@contextlib.contextmanager
def gate(semaphore: threading.BoundedSemaphore, deadline: float, cancelled: threading.Event) -> Iterator[None]:
    """Be one of the few who do something at a time."""
    while not semaphore.acquire(timeout=max(0.0, min(0.2, deadline - time.monotonic()))):
        sleep(0.0, cancelled)
        if time.monotonic() >= deadline:
            raise too_late("others who talk to the cluster")
    try:
        sleep(0.0, cancelled)
        yield
    finally:
        semaphore.release()


def sleep(seconds: float, cancelled: threading.Event) -> None:
    """Sleep, or raise `SandboxClosed` as soon as `cancelled` is set."""
    if cancelled.wait(max(0.0, seconds)):
        raise SandboxClosed("closed while it started")


def too_late(what: str) -> SandboxStartError:
    """The error of a start that waited for its turn until its deadline."""
    return SandboxStartError(f"the sandbox waited too long for {what}", reason="timeout", retryable=True)
