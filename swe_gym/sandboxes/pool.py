"""Sandboxes that are started before they are asked for."""

import threading
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from ..errors import SandboxClosed, SandboxError, UsageError
from . import open_sandbox
from .base import Sandbox, SandboxSpec


class WarmPool:
    """Keeps started sandboxes ready, so that who needs one does not wait for it.

    `want` says what will be needed, `take` hands it over. What was taken belongs to the caller, who closes it; what was
    not is closed with the pool. Sandboxes are alike when their specs are equal. Any thread may call.

    Args:
        backend: Kind of sandbox.
        starting: How many may start at once.
        ready: How many may be started or starting and not yet taken.
    """

    def __init__(self, backend: str = "local", *, starting: int = 4, ready: int = 16) -> None:
        if starting < 1 or ready < 1:
            raise UsageError(f"starting and ready must be at least 1: {starting=}, {ready=}")
        self._backend = backend
        self._ready = ready
        self._threads = ThreadPoolExecutor(starting, thread_name_prefix="warm-pool")
        self._shelf: dict[str, deque[Future[Sandbox]]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._closed = False

    def want(self, spec: SandboxSpec, count: int = 1) -> int:
        """Start `count` sandboxes of this spec in the background, or as many as there is room for; says how many."""
        with self._lock:
            if self._closed:
                raise SandboxClosed("the warm pool is closed")
            count = min(count, self._ready - sum(map(len, self._shelf.values())))
            for _ in range(count):
                self._shelf[_key(spec)].append(self._threads.submit(open_sandbox, spec, self._backend))
            return max(0, count)

    def take(self, spec: SandboxSpec, *, refill: bool = False) -> Sandbox:
        """A sandbox of this spec: one that is ready or will be first, else a new one.

        A start that failed in the background is tried once more here, so the error has somebody to go to.

        Args:
            spec: What it should be.
            refill: Start another of the same, for the next time.

        Raises:
            SandboxError: It did not come up.
            SandboxClosed: The pool is closed.
        """
        with self._lock:
            if self._closed:
                raise SandboxClosed("the warm pool is closed")
            shelf = self._shelf[_key(spec)]
            found = next((future for future in shelf if future.done()), shelf[0] if shelf else None)
            if found is not None:
                shelf.remove(found)
        if refill:
            self.want(spec)
        if found is not None:
            try:
                return found.result(spec.start_timeout + 10)
            except (SandboxError, TimeoutError):
                found.add_done_callback(_close_result)
        return open_sandbox(spec, self._backend)

    def close(self) -> None:
        """Close what was not taken. Idempotent."""
        with self._lock:
            self._closed = True
            left = [future for shelf in self._shelf.values() for future in shelf]
            self._shelf.clear()
        for future in left:
            if not future.cancel():
                future.add_done_callback(_close_result)
        self._threads.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _key(spec: SandboxSpec) -> str:
    return spec.model_dump_json()


def _close_result(future: Future[Sandbox]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
