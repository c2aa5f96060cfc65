"""The sandboxes of one task: the policy's, and those that grade the work."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from typing import NamedTuple, Self

from ..errors import SandboxClosed, SandboxError, SandboxStartError
from ..grading import Patch, apply_diff, hidden_places, list_work, seal_workspace, take_patch
from ..grading.in_place import (
    begin_in_place,
    begin_step,
    begin_verifier,
    clear_step,
    collect,
    grade_in_place,
    put_artifacts,
    run_solution,
    steps_of,
    take_artifacts,
)
from ..sandboxes import Sandbox, SandboxSpec, WarmPool, WarmSandbox, gate, load_backend, make_spec
from ..threads import in_thread
from ..types import JsonObject, Task, Verdict

logger = logging.getLogger(__name__)


LONGEST_WAIT = 0.25
"""Share of its `ttl` that a grading sandbox may have waited. An older one is replaced: the tests need the rest."""


class _Ahead(NamedTuple):
    """A grading sandbox that starts before it is needed, the place that it takes, and the time of its start."""

    warm: WarmSandbox
    place: contextlib.ExitStack
    started: float


def task_spec(task: Task, options: JsonObject, mounts: Mapping[str, str] | None = None) -> SandboxSpec:
    """Return the spec of a task's sandbox, with the user's `sandbox_options` and further `mounts` applied.

    Environment variables are added to the task's; other options replace the task's and its needs.

    Raises:
        UsageError: An option is unknown.
    """
    base = SandboxSpec(
        image=task.image,
        workspace=task.workspace,
        python=task.python,
        workdir=task.workdir,
        env=task.env,
        **task.needs.spec_fields(),
    )
    if "env" in options:
        options = {**options, "env": {**task.env, **options["env"]}}
    if mounts:
        options = {**options, "mounts": {**options.get("mounts", {}), **mounts}}
    return make_spec(base, options)


def apply_start(task: Task, sandbox: Sandbox) -> None:
    """Apply the oracle's `start_patch`, which most tasks do not have.

    Raises:
        TaskError: The patch does not apply.
        SandboxError: The sandbox failed.
    """
    apply_diff(sandbox, task.oracle.start_patch, what=f"task {task.task_id}: the start patch")


OF_THE_POLICY = ("image", "workspace", "python", "workdir", "user", "build", "mounts")
"""Fields of a user's `sandbox_options` that a verifier's own sandbox does not take."""


def verifier_spec(task: Task, options: JsonObject) -> SandboxSpec | None:
    """Return the spec of the sandbox of the task's verifier; None if it has none of its own.

    Raises:
        UsageError: An option is unknown.
    """
    script = task.oracle.in_place
    verifier = script.verifier if script else None
    if verifier is None:
        return None
    shared = {name: value for name, value in options.items() if name not in OF_THE_POLICY}
    own = {name: getattr(verifier, name) for name in ("image", "workdir", "env", "needs")}
    return task_spec(task.model_copy(update={**own, "workspace": None}), shared)


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
        options: JsonObject,
        pool: WarmPool | None = None,
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        self.task = self._step = task
        self._pool = pool
        self._kind = load_backend(backend)
        self.spec = task_spec(task, options, mounts)
        self._fresh_spec = task_spec(task, options)
        self._verifier_spec = verifier_spec(task, options)
        self._sandboxes: list[Sandbox] = []
        self._closing: list[Future[None]] = []
        self._quiet: set[Future[None]] = set()  # those in which nothing runs
        self._waiting = 0  # how many grading sandboxes may wait, over all processes
        self._ahead: _Ahead | None = None
        self.closed = False
        self._lock = threading.RLock()  # a signal handler may close what its own thread is using

    def open_sealed(self) -> Sandbox:
        """Start a policy's sandbox: the task's starting state without anything that a policy must not see.

        Raises:
            SandboxError: The sandbox did not start.
            SandboxClosed: The group is closed.
            TaskError: The task's workspace or Python environment cannot be built, or its image cannot be sealed.
            Unsupported: The task is judged in place, and the sandbox has no root folder of its own.
        """
        if self._verifier_spec is not None:
            self._kind.for_spec(self._verifier_spec)  # refuses what the backend cannot do
        return self._seal(self._take_warm() or self._start_twice(self.spec))

    @contextlib.contextmanager
    def another(self) -> Iterator[Sandbox]:
        """Open another sandbox for the block, as `open_sealed` does."""
        sandbox = self._seal(self._start_twice(self.spec))
        try:
            yield sandbox
        finally:
            self.drop(sandbox)

    def _seal(self, sandbox: Sandbox) -> Sandbox:
        # Through a network, the policy could reach a sandbox that waits.
        if sandbox.capabilities.network == "none" and not self.task.oracle.in_place:
            self._waiting = sandbox.waiting
        apply_start(self.task, sandbox)
        if self.task.oracle.in_place:
            begin_in_place(self.task, sandbox)  # the image is as the task means it: nothing is hidden
        else:
            seal_workspace(self.task, sandbox)
        return sandbox

    def begin_step(self, sandbox: Sandbox, number: int) -> Task:
        """Prepare a step of the task, and return it as a task; see `begin_step`. It is judged next."""
        begin_step(self.task, number, sandbox)
        self._step = steps_of(self.task)[number]
        return self._step

    def solve_steps(self, sandbox: Sandbox, number: int) -> None:
        """Bring a new sandbox to the beginning of a step, by the solutions of those before it that have one.

        Raises:
            SandboxStartError: A step cannot begin.
            GradingError, TaskError: A solution fails, or a script writes no reward.
            SandboxError: The sandbox was lost.
        """
        for before in range(number):
            step = self.begin_step(sandbox, before)
            if step.oracle.has_solution:
                run_solution(step, sandbox)
            self.judge_in_place(sandbox)
        self.begin_step(sandbox, number)

    def judge_in_place(self, sandbox: Sandbox) -> Verdict:
        """Grade what a policy left in its sandbox by the task's script. A verifier of its own gets the artifacts only.

        If the task has steps, the script is that of the step that was begun last.

        Raises:
            NoReward: The script gave no reward; see `grade_in_place`.
            TaskError: The verifier's sandbox cannot be prepared.
            SandboxError: A sandbox failed.
        """
        collect(self._step, sandbox)
        if self._verifier_spec is None:
            if self._step is not self.task:
                clear_step(self._step, sandbox)
            return grade_in_place(self._step, sandbox)
        artifacts = take_artifacts(self.task, sandbox)
        self.drop(sandbox).result()  # before the next one starts, as in Harbor
        verifier = self._start_twice(self._verifier_spec)
        try:
            begin_verifier(self.task, verifier)
            put_artifacts(self.task, artifacts, verifier)
            return grade_in_place(self.task, verifier)
        finally:
            self.drop(verifier)

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

    def open_ahead(self) -> None:
        """Start the grading sandbox of the next `take_work` in the background.

        Does nothing if one waits already, if the backend's limit of waiting ones is reached, or if the policy has a
        network.
        """
        with self._lock:
            if self._ahead is not None or self.closed or not self._waiting:
                return
            place, now = contextlib.ExitStack(), time.monotonic()
            sandbox = self._kind.for_spec(self._fresh_spec)
            with contextlib.suppress(SandboxStartError):  # no place is free
                place.enter_context(gate(f"{sandbox.name}-waiting", self._waiting, now))
                self._add(sandbox)
                started = in_thread(lambda: self._prepare(sandbox), "sandbox-group")
                self._ahead = _Ahead(WarmSandbox(sandbox, started), place, now)

    def _prepare(self, sandbox: Sandbox) -> Sandbox:
        sandbox.start()
        apply_start(self.task, sandbox)
        return sandbox

    def _take_ahead(self) -> Sandbox | None:
        """Take the sandbox that waits; None if there is none, it was lost, or it waited too long."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        with ahead.place:
            if time.monotonic() - ahead.started < LONGEST_WAIT * self._fresh_spec.ttl:
                return self._take_started(ahead.warm)
            self.drop(ahead.warm.sandbox)
        return None

    def take_work(self, sandbox: Sandbox) -> tuple[Patch, Sandbox]:
        """Return the work done in `sandbox`, and a fresh sandbox to grade it in.

        The work is the difference to the fresh sandbox: the one that waits, else one that starts while the work is
        read.

        Raises:
            SandboxError: A sandbox failed.
            TaskError: The fresh sandbox cannot be built.
        """
        fresh = in_thread(lambda: self._take_ahead() or self.open(), "sandbox-group")
        listing = list_work(sandbox)
        judge = fresh.result()
        return take_patch(sandbox, judge, hidden=hidden_places(self.task, judge), listing=listing), judge

    def _take_warm(self) -> Sandbox | None:
        """Take a sandbox from the pool; None if there is none or it failed."""
        warm = self._pool.claim(self.spec) if self._pool else None
        if warm is None:
            return None
        self._add(warm.sandbox)
        return self._take_started(warm)

    def _take_started(self, warm: WarmSandbox) -> Sandbox | None:
        """Return a sandbox that was started ahead; None if it failed: a normal start then raises the error."""
        try:
            return warm.started()
        except SandboxError as error:
            logger.info("a sandbox that was started ahead failed; starting another: %s", error)
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
        sandbox = self._kind.for_spec(spec)
        self._add(sandbox)
        return sandbox.start()

    def _add(self, sandbox: Sandbox) -> None:
        with self._lock:
            if self.closed:
                sandbox.close()
                raise SandboxClosed("closed while a sandbox was starting")
            self._sandboxes.append(sandbox)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Sandbox]:
        """Open a grading sandbox for the block, after those that are closing: their processes could slow it down.

        Those of an earlier grading sandbox have ended, so its removal is not waited for.
        """
        with self._lock:
            closing = [one for one in self._closing if one not in self._quiet]
        wait(closing)
        sandbox = self.open()
        try:
            yield sandbox
        finally:
            ended = _end_processes(sandbox)
            closing_it = self.drop(sandbox)
            if ended:
                self._quiet.add(closing_it)

    def drop(self, sandbox: Sandbox) -> Future[None]:
        """Close one sandbox of the group in the background, and return the pending result. `close` waits for it."""
        with self._lock:
            closing = in_thread(sandbox.close, "sandbox-group")  # if no thread can start, `close` still closes it
            self._closing.append(closing)
            if sandbox in self._sandboxes:
                self._sandboxes.remove(sandbox)
            return closing

    def release(self) -> None:
        """Close all sandboxes in the background, and open no others. `close` waits for them."""
        with self._lock:
            self.closed = True
            for sandbox in [*self._sandboxes]:
                self.drop(sandbox)
            self._give_place_back()

    def close(self) -> None:
        """Close all sandboxes; running calls raise `SandboxClosed`. Idempotent, never raises."""
        with self._lock:
            self.closed = True
            sandboxes, self._sandboxes = self._sandboxes, []
            closing = [*self._closing]
        for close in [*(sandbox.close for sandbox in sandboxes), *(one.result for one in closing)]:
            try:
                close()
            except SandboxError as error:  # the others must be closed too
                logger.warning("a sandbox was not closed; its ttl will end it: %s", error)
        self._give_place_back()

    def _give_place_back(self) -> None:
        with self._lock:
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.place.close()

    @property
    def gone(self) -> bool:
        """Whether the group is closed and nothing of it is left."""
        return self.closed and not self._sandboxes and all(closing.done() for closing in self._closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_processes(sandbox: Sandbox) -> bool:
    """End what runs in a sandbox; return whether nothing does."""
    try:
        return sandbox.end_processes(commands=True)
    except SandboxError:
        return False
