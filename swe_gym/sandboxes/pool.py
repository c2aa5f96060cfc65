"""A pool of sandboxes that are started in advance."""

import dataclasses
import threading
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from ..errors import SandboxClosed, SandboxError, SandboxLost, UsageError
from . import load_backend, open_sandbox
from .base import Sandbox
from .types import SandboxSpec


@dataclasses.dataclass(frozen=True, eq=False)
class WarmSandbox:
    """A sandbox that is started or starting.

    Attributes:
        sandbox: The sandbox. Closing it also ends its start.
        start: Result of the start.
    """

    sandbox: Sandbox
    start: Future[Sandbox]

    def started(self) -> Sandbox:
        """Wait for the start, and check that the sandbox still answers.

        Raises:
            SandboxError: The sandbox did not start, or was lost while it waited.
        """
        try:
            sandbox = self.start.result(self.sandbox.spec.start_timeout + 10)
        except TimeoutError as error:
            self.sandbox.close()
            raise SandboxLost(f"{self.sandbox} did not start in time", reason="unresponsive") from error
        sandbox.exec(["true"], timeout=10.0)
        return sandbox


class WarmPool:
    """Keeps started sandboxes ready, so that a caller does not wait for one.

    `want` starts sandboxes, `take` or `claim` returns one. The caller closes what it took; the pool closes the rest.
    Sandboxes with equal specs are interchangeable. Any thread may call.

    Args:
        backend: Name of the backend.
        starting: Largest number of sandboxes that start at once.
        ready: Largest number of sandboxes in the pool, started or starting.
    """

    def __init__(self, backend: str = "local", *, starting: int = 4, ready: int = 16) -> None:
        if starting < 1 or ready < 1:
            raise UsageError(f"starting and ready must be at least 1: {starting=}, {ready=}")
        self.backend = backend
        self._ready = ready
        self._threads = ThreadPoolExecutor(starting, thread_name_prefix="warm-pool")
        self._shelf: dict[str, deque[WarmSandbox]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._closed = False

    def want(self, spec: SandboxSpec, count: int = 1) -> int:
        """Start up to `count` sandboxes of this spec in the background, as far as there is room; return how many."""
        kind = load_backend(self.backend)
        with self._lock:
            self._check_open()
            count = min(count, self._ready - sum(map(len, self._shelf.values())))
            for _ in range(count):
                sandbox = kind.for_spec(spec)
                self._shelf[_key(spec)].append(WarmSandbox(sandbox, self._threads.submit(sandbox.start)))
            return max(0, count)

    def unwant(self, spec: SandboxSpec) -> None:
        """Close one sandbox of this spec that is not needed any more, if there is one."""
        warm = self.claim(spec)
        if warm is not None:
            warm.start.cancel()
            warm.sandbox.close()

    def claim(self, spec: SandboxSpec) -> WarmSandbox | None:
        """Take a sandbox of this spec, started ones first. None if there is none."""
        with self._lock:
            shelf = self._shelf.get(_key(spec))
            if not shelf:
                return None
            found = next((warm for warm in shelf if warm.start.done()), shelf[0])
            shelf.remove(found)
            return found

    def take(self, spec: SandboxSpec, *, refill: bool = False) -> Sandbox:
        """Return a sandbox of this spec: one from the pool, else a new one.

        If its start failed in the background, another one is started here, so that the caller sees the error.

        Args:
            spec: Description of the sandbox.
            refill: Start another one for the next call.

        Raises:
            SandboxError: The sandbox did not start.
            SandboxClosed: The pool is closed.
        """
        with self._lock:
            self._check_open()
        found = self.claim(spec)
        if refill:
            self.want(spec)
        if found is not None:
            try:
                return found.started()
            except BaseException as error:
                found.sandbox.close()  # the caller never gets it
                if not isinstance(error, SandboxError):
                    raise
        return open_sandbox(spec, self.backend)

    def close(self) -> None:
        """Close all sandboxes that were not taken, also starting ones. Idempotent."""
        with self._lock:
            self._closed = True
            left = [warm for shelf in self._shelf.values() for warm in shelf]
            self._shelf.clear()
        with ThreadPoolExecutor(max(1, min(32, len(left))), thread_name_prefix="warm-pool-close") as closers:
            for warm in left:
                warm.start.cancel()
                closers.submit(warm.sandbox.close)
        self._threads.shutdown(wait=True)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the warm pool is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(spec: SandboxSpec) -> str:
    return spec.model_dump_json()
