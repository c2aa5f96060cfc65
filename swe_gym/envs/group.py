"""The sandboxes that one task needs at a time: the one that is worked in, and those that judge the work."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from ..errors import SandboxClosed, SandboxError
from ..grading.patch import Patch, list_work, take_patch
from ..grading.seal import apply_start, hidden_places, seal
from ..sandboxes import BACKENDS, Sandbox, SandboxSpec, make_spec
from ..sandboxes.pool import WarmPool
from ..types import Task

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def task_spec(task: Task, options: dict[str, Any]) -> SandboxSpec:
    """The sandbox that a task starts in, with the user's `sandbox_options` on top.

    Environment variables are added to the task's; every other option replaces what the task says.

    Raises:
        UsageError: An option is unknown.
    """
    base = SandboxSpec(
        image=task.image, workspace=task.workspace, python=task.python, workdir=task.workdir, env=task.env
    )
    if "env" in options:
        options = {**options, "env": {**task.env, **options["env"]}}
    return make_spec(base, options)


class SandboxGroup:
    """Sandboxes of one task that live and end together. `close` works from any thread, also while one starts.

    Args:
        task: What they are for.
        backend: Their kind.
        options: The user's `sandbox_options`.
        pool: Where the sandbox to work in may be ready.
    """

    def __init__(self, task: Task, backend: str, options: dict[str, Any], pool: WarmPool | None = None) -> None:
        self.task = task
        self._pool = pool
        self._kind: type[Sandbox] = BACKENDS.load(backend)
        self.spec = task_spec(task, options)
        self._sandboxes: list[Sandbox] = []
        self._closed = False
        self._lock = threading.Lock()

    def open_sealed(self) -> Sandbox:
        """Start a sandbox to work in: the task's starting state, without anything that a policy must not see.

        Raises:
            SandboxError: It did not come up.
            SandboxClosed: The group was closed before or meanwhile.
            TaskError: The task's workspace or Python environment cannot be built, or its image cannot be sealed.
        """
        sandbox = self._take_warm()
        if sandbox is None:
            sandbox = self._start_twice()
        apply_start(self.task, sandbox)
        seal(self.task, sandbox)
        return sandbox

    def open(self) -> Sandbox:
        """Start a sandbox to judge in: the task's starting state. A failure that may pass is tried once more.

        Raises:
            SandboxError: It did not come up.
            SandboxClosed: The group was closed before or meanwhile.
            TaskError: The task's workspace or Python environment cannot be built.
        """
        sandbox = self._start_twice()
        apply_start(self.task, sandbox)
        return sandbox

    def take_work(self, sandbox: Sandbox) -> tuple[Patch, Sandbox]:
        """What was done in `sandbox`, and the new sandbox that it was compared with, in which it can be judged.

        The new one starts while the work is read.

        Raises:
            SandboxError: One of them failed.
            TaskError: The new one cannot be built.
        """
        fresh = _in_thread(self.open)
        listing = list_work(sandbox)
        judge = fresh()
        return take_patch(sandbox, judge, hidden=hidden_places(self.task, judge), listing=listing), judge

    def _take_warm(self) -> Sandbox | None:
        """One from the pool; None where it has none, or that one failed: a start of our own shows what is wrong."""
        warm = self._pool.claim(self.spec) if self._pool else None
        if warm is None:
            return None
        try:
            self._add(warm.sandbox)
            return warm.started()
        except SandboxError as error:
            logger.info("a warm sandbox failed, starting another: %s", error)
            self.drop(warm.sandbox)
            return None

    def _start_twice(self) -> Sandbox:
        try:
            return self._start()
        except SandboxError as error:
            if not error.retryable:
                raise
            logger.warning("a sandbox did not start, trying once more: %s", error)
        return self._start()

    def _start(self) -> Sandbox:
        sandbox = self._kind(self.spec)
        self._add(sandbox)
        return sandbox.start()

    def _add(self, sandbox: Sandbox) -> None:
        with self._lock:
            if self._closed:
                raise SandboxClosed("closed while a sandbox was about to start")
            self._sandboxes.append(sandbox)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Sandbox]:
        """One more sandbox as `open` starts it; closed at the end of the block."""
        sandbox = self.open()
        try:
            yield sandbox
        finally:
            self.drop(sandbox)

    def drop(self, sandbox: Sandbox) -> None:
        """Close one sandbox of the group."""
        with self._lock:
            if sandbox in self._sandboxes:
                self._sandboxes.remove(sandbox)
        sandbox.close()

    @contextlib.contextmanager
    def dropping(self, sandbox: Sandbox) -> Iterator[None]:
        """Close one sandbox of the group while the block runs; after it, that one is gone."""
        dropped = _in_thread(lambda: self.drop(sandbox))
        yield
        dropped()

    def close(self) -> None:
        """Close them all; calls that are running in them raise `SandboxClosed`. Idempotent, never raises."""
        with self._lock:
            self._closed = True
            sandboxes, self._sandboxes = self._sandboxes, []
        for sandbox in sandboxes:
            with contextlib.suppress(SandboxError):  # whatever it says, the others must be closed too
                sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _in_thread(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin to work in a thread. What is returned waits for the result, and raises what was raised."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  it is raised where the result is asked for
            future.set_exception(error)

    context = contextvars.copy_context()  # with the ids that log records show
    threading.Thread(target=context.run, args=(run,), name="sandbox-group", daemon=True).start()
    return future.result
