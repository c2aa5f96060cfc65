"""The engine: many episodes at once, each counted exactly once, whatever breaks meanwhile.

One thread plays one episode at a time, from the start of its sandbox to its grading, and again where the infrastructure
failed. The thread that called `rollout` watches: it counts, cancels stragglers, and hears Ctrl-C.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
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
from .losses import charged, lost_by_policy, lost_in_a_call
from .plan import Plan, hash_config
from .policies import make_policies
from .policy import PolicyFactory
from .progress import Failure, Progress, Tally

TICK = 0.2
"""Seconds between two looks at what runs."""

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


class _LetGo(Exception):
    """The watching thread has written down the end of this thread's try, and another thread plays on."""


class _Engine:
    """One rollout while it runs."""

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
        self._total = len(keys)
        self._queue = collections.deque(key for key in keys if key not in folder.finished)
        before = [folder.finished[key] for key in keys if key in folder.finished]
        self._tally = Tally(run.experiment, self._total, before)
        self._wall_clock = options.wall_clock or _time_limit(run.config) + GRADING_ALLOWANCE
        self._mutex = threading.Lock()  # guards the queue, the tries and the number of busy threads
        self._tries: set[Try] = set()
        self._busy = 0
        self._woken = threading.Event()
        self._stopping = ""
        self._stop = threading.Event()
        self._aborted = False
        self._error: BaseException | None = None
        self._too_many_failures = ""
        self._signals = 0
        self._reported = -math.inf

    # --- the watching thread ----------------------------------------------------------------------------------

    def run(self) -> RolloutResult:
        """Play what is left, and return or raise when nothing runs any more."""
        with self._hearing_signals():
            try:
                for _ in range(min(self._options.workers, len(self._queue))):
                    self._add_worker()
                while self._working():
                    self._woken.wait(TICK)
                    self._woken.clear()
                    self._look()
            except BaseException as error:  # noqa: BLE001  raised again below, when nothing runs any more
                self._fail(error)
            finally:
                self._wind_up()
        progress = self._report()
        if self._error is not None:
            raise self._error
        if self._signals:
            raise KeyboardInterrupt
        if self._too_many_failures:
            raise RolloutStopped(
                f"{self._too_many_failures}\n"
                f"What was judged stands in {self._folder.path}; the same rollout goes on from there."
            )
        return RolloutResult(self._folder.path, progress)

    def _add_worker(self) -> None:
        with self._mutex:
            self._busy += 1
        threading.Thread(target=self._work, name="episode", daemon=True).start()

    def _working(self) -> bool:
        with self._mutex:
            return self._busy > 0

    def _look(self) -> None:
        """What the watching thread does five times a second."""
        self._obey_signals()
        self._stop_if_due()
        self._cancel_stragglers()
        self._let_go_of_stuck()
        if time.monotonic() - self._reported >= REPORT_EVERY:
            self._report()

    def _obey_signals(self) -> None:
        if self._signals >= 1:
            self._drain("interrupted")
        if self._signals >= 2:
            self._abort("interrupted")

    def _stop_if_due(self) -> None:
        if self._error is not None:
            self._abort("stopped")
            return
        if self._stopping:
            return
        if message := self._tally.too_many_failures(self._options.max_failure_rate):
            self._too_many_failures = message
            self._drain("too many failures")

    def _cancel_stragglers(self) -> None:
        late = time.monotonic() - self._wall_clock
        with self._mutex:
            tries = list(self._tries)
            last = not self._queue and self._busy <= self._options.cancel_last * self._total
        for one in tries:
            if one.started < late:
                one.cancel("wall_clock")
        if last and tries and not self._stopping:
            self._abort("straggler")

    def _let_go_of_stuck(self) -> None:
        """Go on without threads that a cancelled try does not return from: somebody's policy waits for ever."""
        late = time.monotonic() - self._options.grace
        with self._mutex:
            stuck = [one for one in self._tries if one.cancelled and one.cancelled_at < late]
        for one in stuck:
            if one.claim():
                failure = one.cancellation()
                try:
                    self._write_failure(one.failed_record(one.so_far(), failure), failure)
                except Exception as error:  # noqa: BLE001  raised at the end: nobody else knows of this try any more
                    self._fail(error)
                self._tally.gave_up()
                self._leave(one)
                self._add_worker()

    def _drain(self, why: str) -> None:
        """Start no more episodes."""
        self._stopping = self._stopping or why
        self._stop.set()

    def _abort(self, why: str) -> None:
        """End what runs, now."""
        if self._aborted:
            return
        self._aborted = True
        self._drain(why)
        with self._mutex:
            tries = list(self._tries)
        for one in tries:
            one.cancel(why)
        if self._signals or self._error is not None:
            self._factory.close()

    def _wind_up(self) -> None:
        """Wait for the end of everything, after an error too."""
        if self._working():
            self._abort("stopped")
        while self._working():
            self._woken.wait(TICK)
            self._woken.clear()
            self._let_go_of_stuck()

    def _report(self) -> Progress:
        self._reported = time.monotonic()
        with self._mutex:
            waiting = [one.phase for one in self._tries]
        progress = self._tally.snapshot((phase for phase in waiting if phase != "over"), self._stopping)
        self._folder.progress(progress.model_dump(mode="json"))
        if self._on_progress is not None:
            self._on_progress(progress)
        return progress

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are counted here, and heard by the watching thread."""
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

    # --- the threads that play --------------------------------------------------------------------------------

    def _work(self) -> None:
        """Play one episode after the other until none is left."""
        try:
            while (key := self._next()) is not None:
                self._play_episode(key)
        except _LetGo:
            return
        except BaseException as error:  # noqa: BLE001  raised by the watching thread
            self._fail(error)
        self._leave()

    def _next(self) -> EpisodeKey | None:
        """The next episode to play, where one is to be."""
        if limit := self._options.budget.used_up(self._tally.usage, self._tally.seconds):
            self._drain(f"the run's budget is used up: {limit}")
        with self._mutex:
            return self._queue.popleft() if self._queue and not self._stop.is_set() else None

    def _fail(self, error: BaseException) -> None:
        """The run is over by a mistake of somebody's."""
        self._error = self._error or error
        self._stop.set()
        self._woken.set()

    def _leave(self, one: Try | None = None) -> None:
        """A thread is done, or is counted as done with the try that it is stuck in."""
        with self._mutex:
            self._busy -= 1
            self._tries -= {one}
        self._woken.set()

    def _play_episode(self, key: EpisodeKey) -> None:
        """Try until it counts, or cannot."""
        losses: list[Trajectory] = []
        for number in range(1, self._options.retries + 2):
            if number > 1 and self._stop.wait(retry_delay(number)):
                break
            failure = self._try(key, number, losses)
            if failure is None:
                return
            if not failure.retry:
                break
        self._tally.gave_up()

    def _try(self, key: EpisodeKey, number: int, losses: list[Trajectory]) -> Failure | None:
        """Play once and write down what came of it; the failure where it does not count.

        `losses` gathers the tries of this episode that lost their sandboxes in a call of the policy's.
        """
        one = Try(self._plan, self._folder.run, key, number, self._folder.start)
        with self._mutex:
            self._tries.add(one)
        if self._aborted:  # it began while the others were cancelled
            one.cancel(self._stopping)
        mistake: Exception | None = None
        try:
            record, failure = one.play(self._factory)
            if not one.cancelled and lost_by_policy(record, losses):
                record, failure = charged(record), None
            elif not one.cancelled and lost_in_a_call(record):
                losses.append(record)
        except Exception as error:  # noqa: BLE001  raised below, when it is written down
            mistake = error
            failure = Failure(type(error).__name__, one.phase, str(error), retry=False, counts=False)
            record = one.failed_record(one.so_far(), failure)
        with self._mutex:
            self._tries.discard(one)
        if not one.claim():
            raise _LetGo
        if failure is not None:
            self._write_failure(record, failure)
        else:
            self._folder.add(record)
            self._tally.finished(record)
        if mistake is not None:
            raise mistake
        self._woken.set()
        return failure

    def _write_failure(self, record: Trajectory, failure: Failure) -> None:
        self._folder.fail(record)
        self._tally.failed(failure, record.usage)


def retry_delay(number: int) -> float:
    """Seconds to wait before a try: 1, 2, 4, ... from the second on, at most 30."""
    return float(min(30.0, 2.0 ** (number - 2)))
