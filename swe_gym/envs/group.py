"""The sandboxes that one task needs at a time: the one that is worked in, and those that judge the work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from ..errors import SandboxClosed, SandboxError
from ..sandboxes import BACKENDS, Sandbox, SandboxSpec, make_spec
from ..types import Task


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
    """

    def __init__(self, task: Task, backend: str, options: dict[str, Any]) -> None:
        self.task = task
        self._kind: type[Sandbox] = BACKENDS.load(backend)
        self._spec = task_spec(task, options)
        self._sandboxes: list[Sandbox] = []
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> Sandbox:
        """Start one more sandbox in the task's original state. A failure that may pass is tried once more.

        Raises:
            SandboxError: It did not come up.
            SandboxClosed: The group was closed before or meanwhile.
            TaskError: The task's workspace or Python environment cannot be built.
        """
        try:
            return self._start()
        except SandboxError as error:
            if not error.retryable:
                raise
        return self._start()

    def _start(self) -> Sandbox:
        sandbox = self._kind(self._spec)
        with self._lock:
            if self._closed:
                raise SandboxClosed("closed while a sandbox was about to start")
            self._sandboxes.append(sandbox)
        return sandbox.start()

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Sandbox]:
        """One more sandbox in the task's original state, to judge work in; closed at the end of the block."""
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
