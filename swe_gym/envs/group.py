"""The sandboxes of one task: the policy's, and those that grade the work."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from ..errors import SandboxClosed, SandboxError
from ..grading.patch import Patch, list_work, take_patch
from ..grading.seal import apply_start, hidden_places, seal
from ..sandboxes import BACKENDS, Sandbox, SandboxSpec, make_spec
from ..sandboxes.pool import WarmPool
from ..types import Task

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def task_spec(task: Task, options: dict[str, Any], mounts: Mapping[str, str] | None = None) -> SandboxSpec:
    """Return the spec of a task's sandbox, with the user's `sandbox_options` and further `mounts` applied.

    Environment variables are added to the task's; other options replace the task's.

    Raises:
        UsageError: An option is unknown.
    """
    base = SandboxSpec(
        image=task.image, workspace=task.workspace, python=task.python, workdir=task.workdir, env=task.env
    )
    if "env" in options:
        options = {**options, "env": {**task.env, **options["env"]}}
    if mounts:
        options = {**options, "mounts": {**options.get("mounts", {}), **mounts}}
    return make_spec(base, options)


class SandboxGroup:
    """Sandboxes of one task that are closed together. `close` works from any thread, even while one starts.

    Args:
        task: The task.
        backend: Name of the backend.
        options: The user's `sandbox_options`.
        pool: Pool that may hold a started sandbox for the policy.
        mounts: Further `mounts` of the policy's sandbox.

    Attributes:
        spec: Description of the policy's sandbox.
        closed: Whether `close` was called.
    """

    def __init__(
        self,
        task: Task,
        backend: str,
        options: dict[str, Any],
        pool: WarmPool | None = None,
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        self.task = task
        self._pool = pool
        self._kind = BACKENDS.load(backend)
        self.spec = task_spec(task, options, mounts)
        self._fresh_spec = task_spec(task, options)
        self._sandboxes: list[Sandbox] = []
        self._closing: list[Callable[[], None]] = []
        self.closed = False
        self._lock = threading.RLock()  # a signal handler may close what its own thread is using

    def open_sealed(self) -> Sandbox:
        """Start a policy's sandbox: the task's starting state without anything that a policy must not see.

        Raises:
            SandboxError: The sandbox did not start.
            SandboxClosed: The group is closed.
            TaskError: The task's workspace or Python environment cannot be built, or its image cannot be sealed.
        """
        sandbox = self._take_warm()
        if sandbox is None:
            sandbox = self._start_twice(self.spec)
        apply_start(self.task, sandbox)
        seal(self.task, sandbox)
        return sandbox

    def open(self) -> Sandbox:
        """Start a grading sandbox: the task's starting state. A retryable failure is retried once.

        Raises:
            SandboxError: The sandbox did not start.
            SandboxClosed: The group is closed.
            TaskError: The task's workspace or Python environment cannot be built.
        """
        sandbox = self._start_twice(self._fresh_spec)
        apply_start(self.task, sandbox)
        return sandbox

    def take_work(self, sandbox: Sandbox) -> tuple[Patch, Sandbox]:
        """Return the work done in `sandbox`, and a fresh sandbox to grade it in.

        The work is the difference to the fresh sandbox, which starts while the work is read.

        Raises:
            SandboxError: A sandbox failed.
            TaskError: The fresh sandbox cannot be built.
        """
        fresh = _in_thread(self.open)
        listing = list_work(sandbox)
        judge = fresh()
        return take_patch(sandbox, judge, hidden=hidden_places(self.task, judge), listing=listing), judge

    def _take_warm(self) -> Sandbox | None:
        """Take a sandbox from the pool; None if there is none or it failed: a normal start then raises the error."""
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

    def _start_twice(self, spec: SandboxSpec) -> Sandbox:
        try:
            return self._start(spec)
        except SandboxError as error:
            if not error.retryable:
                raise
            logger.warning("a sandbox did not start, trying once more: %s", error)
        return self._start(spec)

    def _start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = self._kind(spec)
        self._add(sandbox)
        return sandbox.start()

    def _add(self, sandbox: Sandbox) -> None:
        with self._lock:
            if self.closed:
                raise SandboxClosed("closed while a sandbox was starting")
            self._sandboxes.append(sandbox)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Sandbox]:
        """Open a grading sandbox for the block."""
        sandbox = self.open()
        try:
            yield sandbox
        finally:
            self.drop(sandbox)

    def drop(self, sandbox: Sandbox) -> None:
        """Close one sandbox of the group in the background. `join` and `close` wait for it."""
        with self._lock:
            if sandbox in self._sandboxes:
                self._sandboxes.remove(sandbox)
                self._closing.append(_in_thread(sandbox.close))

    def join(self) -> None:
        """Wait until dropped sandboxes are closed. Raises the `SandboxError` of one that failed."""
        for closed in [*self._closing]:
            closed()

    def close(self) -> None:
        """Close all sandboxes; running calls raise `SandboxClosed`. Idempotent, never raises."""
        with self._lock:
            self.closed = True
            sandboxes, self._sandboxes = self._sandboxes, []
            closing = [*self._closing]
        for close in [*(sandbox.close for sandbox in sandboxes), *closing]:
            with contextlib.suppress(SandboxError):  # the others must be closed too
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_thread(work: Callable[[], Result]) -> Callable[[], Result]:
    """Run `work` in a thread. The returned function waits for its result or raises its error."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised by `result`
            future.set_exception(error)

    context = contextvars.copy_context()  # with the ids that log records show
    threading.Thread(target=context.run, args=(run,), name="sandbox-group", daemon=True).start()
    return future.result
