"""Limits that all processes of a user on this machine share: concurrent holders, and starts per second."""

import contextlib
import fcntl
import functools
import os
import threading
import time
from collections.abc import Iterator
from random import SystemRandom

from ..cache import cache_folder
from ..errors import SandboxClosed, SandboxStartError

NEVER = threading.Event()
"""An event that is never set."""

GLANCE = 0.2
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05


@contextlib.contextmanager
def gate(name: str, places: int, deadline: float, cancelled: threading.Event = NEVER) -> Iterator[None]:
    """Hold one of the `places` of the gate `name` during the block.

    A place is a locked file, so a process that dies releases its places. Threads of one process queue before they look
    for a file, so they do not compete.

    Args:
        name: Name of the gate, and of its files.
        places: Largest number of holders, over all processes of this user on this machine.
        deadline: Time of `time.monotonic` at which waiting fails.
        cancelled: Event that ends the waiting.

    Raises:
        SandboxStartError: No place became free in time (`reason="capacity"`, retryable).
        SandboxClosed: `cancelled` was set.
    """
    queue = _queue(os.getpid(), name, places)
    while not queue.acquire(timeout=max(0.0, min(GLANCE, deadline - time.monotonic()))):
        _check(name, places, deadline, cancelled)
    try:
        with _place(name, places, deadline, cancelled):
            yield
    finally:
        queue.release()


@functools.cache
def _queue(pid: int, name: str, places: int) -> threading.BoundedSemaphore:  # noqa: ARG001  a fork has its own
    return threading.BoundedSemaphore(places)


@contextlib.contextmanager
def _place(name: str, places: int, deadline: float, cancelled: threading.Event) -> Iterator[None]:
    folder = os.path.join(cache_folder(), "gates")
    os.makedirs(folder, exist_ok=True)
    pause = SHORTEST_PAUSE
    while (held := _find_free_place(folder, name, places)) is None:
        _check(name, places, deadline, cancelled)
        sleep(add_jitter(pause, 0.5, 1.5), cancelled)  # file locks cannot be waited for with a deadline
        pause = min(LONGEST_PAUSE, 1.5 * pause)
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a fork has a copy of the file: without this, its copy would keep the place
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)


def _find_free_place(folder: str, name: str, places: int) -> int | None:
    for place in SystemRandom().sample(range(places), places):
        fd = os.open(os.path.join(folder, f"{name}.{place}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            os.close(fd)
    return None


def _check(name: str, places: int, deadline: float, cancelled: threading.Event) -> None:
    sleep(0.0, cancelled)
    if time.monotonic() >= deadline:
        text = f"all {places} places of the gate {name!r} stayed taken until the deadline"
        raise SandboxStartError(text, reason="capacity", retryable=True)


class Rate:
    """Limits calls per second, with a burst of up to one second."""

    def __init__(self, per_second: float) -> None:
        self._step = 1.0 / per_second
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, deadline: float, cancelled: threading.Event) -> None:
        """Wait for a turn.

        Raises:
            SandboxStartError: There is no turn before the deadline.
            SandboxClosed: `cancelled` was set.
        """
        with self._lock:
            now = time.monotonic()
            turn = max(self._next, now - 1.0)
            if turn > deadline:
                text = "the sandbox was not created: too many others are waiting to be created"
                raise SandboxStartError(text, reason="timeout", retryable=True)
            self._next = turn + self._step
        sleep(turn - now, cancelled)


def sleep(seconds: float, cancelled: threading.Event) -> None:
    """Sleep, or raise `SandboxClosed` as soon as `cancelled` is set."""
    if cancelled.wait(max(0.0, seconds)):
        raise SandboxClosed("the sandbox was closed while it waited")


def add_jitter(seconds: float, least: float = 0.5, most: float = 1.0) -> float:
    """Return `seconds` times a random factor from `least` to `most`, so that clients do not retry all at once.

    It is drawn by the system: a program that seeds `random` draws the same numbers with any backend.
    """
    return seconds * SystemRandom().uniform(least, most)
