"""The engine: many episodes at once, each counted exactly once, whatever breaks meanwhile.

One thread plays one episode at a time, from the start of its sandbox to its grading, and again where the infrastructure
failed. The thread that called `rollout` watches: it counts, cancels stragglers, and hears Ctrl-C.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import Field

from ..envs.sources import shared_source
from ..errors import SweGymError, UsageError
from ..trajectories.run_folder import EpisodeKey, RunFolder, RunInfo
from ..trajectories.trajectory import Trajectory
from ..types import Frozen
from .attempt import Try, now
from .budget import Budget
from .plan import Plan, hash_config
from .policies import make_policies
from .policy import PolicyFactory
from .pool import EpisodePool
from .progress import Progress, Tally

logger = logging.getLogger(__name__)

REPORT_EVERY = 1.0
"""Seconds between two counts."""

GRADING_ALLOWANCE = 1800.0
"""Seconds that start and grading may take beside an episode's time limit, where nothing else is asked for."""


class RolloutStopped(SweGymError):
    """Too many tries failed. The message names the call that failed; the run folder holds what was done before."""


class RolloutOptions(Frozen):
    """How a plan is played. None of it changes what an episode is.

    Attributes:
        workers: Episodes at once, one thread each.
        retries: How often an episode is played again when the infrastructure failed.
        budget: Of the whole run, earlier processes included; only `seconds` counts for this process alone.
        max_failure_rate: Share of the last 50 tries that may fail; above it the run stops.
        wall_clock: Seconds that one try may take, grading included, before it is cancelled. None is the episode's
            time limit and half an hour.
        grace: Seconds that a cancelled try has to notice; then it is counted as gone and its thread left to itself.
        cancel_last: Share of all episodes that are cancelled when they are the only ones left; 0 waits for all.
    """

    workers: int = Field(default=4, ge=1)
    retries: int = Field(default=2, ge=0)
    budget: Budget = Budget()
    max_failure_rate: float = Field(default=0.25, ge=0, le=1)
    wall_clock: float | None = Field(default=None, gt=0)
    grace: float = Field(default=10.0, gt=0)
    cancel_last: float = Field(default=0.0, ge=0, lt=1)


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutResult:
    """How a rollout ended.

    Attributes:
        folder: The run folder.
        progress: The last count; `progress.stopping` says why, where episodes are left that were not started.
    """

    folder: Path
    progress: Progress

    def trajectories(self) -> Iterator[Trajectory]:
        """The judged episodes, in the order in which they finished."""
        return Trajectory.read(self.folder / "trajectories.jsonl")


def rollout(
    plan: Plan,
    folder: str | os.PathLike[str],
    options: RolloutOptions | None = None,
    *,
    policies: PolicyFactory | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> RolloutResult:
    """Play a plan into a run folder, or go on where an earlier call stopped.

    Episodes that the folder holds as judged are never played again. In the main thread, the first Ctrl-C lets the
    running episodes end and starts no more; the second closes every sandbox at once, and so does SIGTERM. The folder
    is whole in every case.

    Args:
        plan: What to play.
        folder: The run folder; its name is the name of the run.
        options: How to play it.
        policies: Makes the policies; None makes them from the plan. The engine closes what it made itself.
        on_progress: Called in this thread about once a second, and at the end.

    Returns:
        How it ended.

    Raises:
        UsageError: The plan makes no sense, or the folder is taken. Nothing was played. Or a policy, a grader or a
            reward is used wrongly: what was judged before is in the folder.
        RolloutStopped: Too many tries failed.
        KeyboardInterrupt: After Ctrl-C or SIGTERM, when everything is closed and written.
    """
    options = options or RolloutOptions()
    folder = Path(folder)
    config = plan.config()
    source = shared_source(plan.source, plan.source_options)  # held here, so that it is read once for the whole run
    tasks = _check_tasks(plan, source.ids())
    _check_clock(options, config)
    factory = policies or make_policies(plan.policy, plan.policy_options)
    info = RunInfo(
        experiment=folder.resolve().name,
        config=config,
        config_hash=hash_config(config),
        settings=options.model_dump(),
        tasks=tasks,
        attempts=plan.attempts,
        swe_gym=version("swe-gym"),
        created=now(),
    )
    try:
        with RunFolder(folder, info) as run_folder:
            return _Engine(plan, run_folder, factory, options, on_progress).run()
    finally:
        if policies is None:
            factory.close()


def _check_tasks(plan: Plan, known: Any) -> tuple[str, ...]:
    """The tasks of a plan, all of which exist."""
    tasks = tuple(known if plan.tasks is None else plan.tasks)
    if unknown := set(tasks) - set(known):
        raise UsageError(f"{len(unknown)} of the {len(tasks)} tasks are not in {plan.source!r}: {min(unknown)!r}, ...")
    if len(set(tasks)) < len(tasks):
        raise UsageError("a task stands twice in the plan: ask for more attempts instead")
    return tasks


def _check_clock(options: RolloutOptions, config: dict[str, Any]) -> None:
    if options.wall_clock is not None and options.wall_clock <= _time_limit(config):
        raise UsageError(
            f"wall_clock={options.wall_clock:g} would cancel episodes before their time limit of "
            f"{_time_limit(config):g} s has them graded: raise it, or lower the limit"
        )


def _time_limit(config: dict[str, Any]) -> float:
    """Seconds after which an episode ends and is graded."""
    return float(min(config["env"]["time_limit"], config["budget"]["seconds"] or math.inf))


class _Engine:
    """One rollout while it runs: a pool of tries, and the folder that holds how they ended."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        factory: PolicyFactory,
        options: RolloutOptions,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._factory = factory
        self._options = options
        self._on_progress = on_progress
        run = folder.run
        keys = [EpisodeKey(task, attempt, run.config_hash) for task in run.tasks for attempt in range(run.attempts)]
        self._left = [key for key in keys if key not in folder.finished]
        before = [folder.finished[key] for key in keys if key in folder.finished]
        self._tally = Tally(run.experiment, len(keys), before)
        self._losses: dict[EpisodeKey, list[Trajectory]] = collections.defaultdict(list)
        self._pool: EpisodePool[EpisodeKey, Try] = EpisodePool(
            self._make_try,
            workers=options.workers,
            retries=options.retries,
            wall_clock=options.wall_clock or _time_limit(run.config) + GRADING_ALLOWANCE,
            grace=options.grace,
            stragglers=int(options.cancel_last * len(keys)),
            on_tick=self._tick,
        )
        self._error: BaseException | None = None
        self._too_many_failures = ""
        self._signals = 0
        self._given_up = 0
        self._reported = -math.inf

    def run(self) -> RolloutResult:
        """Play what is left. Returns or raises when nothing runs any more."""
        with self._hearing_signals(), self._pool as pool:
            self._stop_if_spent()
            for one in pool.run(() if pool.stopping else self._left):
                self._guarded(lambda one=one: self._write(one))  # type: ignore[misc]  # a default binds the loop's try
        progress = self._report()
        if self._error is not None:
            raise self._error
        if self._signals:
            raise KeyboardInterrupt
        if self._too_many_failures:
            raise RolloutStopped(
                f"{self._too_many_failures}\n"
                f"Judged episodes are in {self._folder.path}; run the same rollout again to resume it."
            )
        return RolloutResult(self._folder.path, progress)

    def _make_try(self, key: EpisodeKey, number: int) -> Try:
        return Try(
            self._plan, self._folder.run, key, number, self._factory, self._folder.start, losses=self._losses[key]
        )

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do something whose failure ends the run. The error is raised when nothing runs any more."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001  `run` raises it
            self._error = self._error or error
            self._pool.cancel("stopped")
            self._factory.close()

    def _write(self, one: Try) -> None:
        """Write down how a try ended."""
        record, failure = one.outcome()
        if failure is None:
            self._folder.add(record)
            self._tally.finished(record)
        else:
            logger.warning("%s in %s: %s", failure.name, failure.call, failure.message, extra=one.ids)
            self._given_up += not (failure.retry and self._pool.retry(one))
            self._folder.fail(record)
            self._tally.failed(failure, record.usage)
        if one.error is not None:
            raise one.error
        self._stop_if_spent()
        if message := self._tally.too_many_failures(self._options.max_failure_rate):
            self._too_many_failures = self._too_many_failures or message
            self._pool.drain("too many failures")

    def _stop_if_spent(self) -> None:
        if limit := self._options.budget.used_up(self._tally.usage, self._tally.seconds):
            self._pool.drain(f"the run's budget is used up: {limit}")

    def _tick(self) -> None:
        """Obey signals, and report about once a second."""
        if self._signals >= 1:
            self._pool.drain("interrupted")
        if self._signals >= 2:
            self._pool.cancel("interrupted")
            self._factory.close()
        self._stop_if_spent()
        if time.monotonic() - self._reported >= REPORT_EVERY:
            self._guarded(self._report)

    def _report(self) -> Progress:
        self._reported = time.monotonic()
        progress = self._tally.snapshot(
            (one.phase for one in self._pool.running), self._given_up + self._pool.dropped, self._pool.stopping
        )
        self._folder.progress(progress.model_dump(mode="json"))
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Count Ctrl-C and SIGTERM, which `_tick` obeys."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def count(number: int, _frame: FrameType | None) -> None:
            self._signals += 1 if number == signal.SIGINT else 2

        before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
