"""`rollout`: runs many episodes into a run folder, each counted exactly once; it can be stopped and resumed."""

import collections
import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

from pydantic import Field

from ..envs import shared_source
from ..errors import SweGymError, TaskError, UsageError
from ..sandboxes import WarmPool, load_backend
from ..tasks import TaskSource
from ..trajectories import ModelServer, Trajectory, Usage
from ..trajectories.run_folder import EpisodeKey, RunFolder, RunInfo
from ..types import Frozen, JsonObject
from .attempt import Try, now
from .executors import ON_THIS_MACHINE, open_executor
from .plan import Plan, hash_config, without_secrets
from .policies import PolicyFactory, make_players
from .policies.base import AsksServer, ChecksTasks
from .pool import EpisodePool, Executor
from .progress import PatchVotes, Progress, RolloutBudget, Tally, check_price

REPORT_EVERY = 1.0
"""Seconds between two reports of progress."""

GRADING_ALLOWANCE = 1800.0
"""Seconds for start and grading, beyond an episode's time limit, in the default of `wall_clock`."""


WORKERS = 4
"""Default number of episodes that run at once on this machine."""


class RolloutStopped(SweGymError):
    """Too many tries failed. The message names the call that failed; finished episodes are in the run folder."""


class RolloutOptions(Frozen):
    """How a plan is run. These options do not change the episodes themselves.

    Attributes:
        workers: Number of episodes that run at once. None: 4 on this machine, else as many as the nodes have room for.
        executor: Where episodes run: "threads" of this process, worker processes ("process"), "ray", or "module:Class".
        executor_options: Options of the executor, such as `address` of a Ray cluster.
        retries: Further tries at an episode whose infrastructure failed.
        budget: Budget of the whole run: failed tries, running episodes and earlier processes count. `seconds` counts
            for this process only.
        max_failure_rate: Share of the last 50 tries that may fail before the run stops.
        wall_clock: Seconds before a try is cancelled, grading included. None: the time limit plus half an
            hour, and what setup and scripts of a task that is judged in place may take.
        grace: Seconds that a cancelled try has to end before its thread is abandoned.
        cancel_last: Share of all episodes that are cancelled once only they remain. 0 waits for all.
        warm: Number of sandboxes that start before a worker is free.
        early_stop: "votes": start no further attempt at a task once no other patch can get as many votes as the one
            that leads. The first attempts at all tasks start before any second one. Empty: start all attempts.
        any_server: Whether the run may resume with another server, or another model under the same name.
    """

    workers: int | None = Field(default=None, ge=1)
    executor: str = "threads"
    executor_options: JsonObject = {}
    retries: int = Field(default=2, ge=0)
    budget: RolloutBudget = RolloutBudget()
    max_failure_rate: float = Field(default=0.25, ge=0, le=1)
    wall_clock: float | None = Field(default=None, gt=0)
    grace: float = Field(default=10.0, gt=0)
    cancel_last: float = Field(default=0.0, ge=0, lt=1)
    warm: int = Field(default=0, ge=0)
    early_stop: Literal["", "votes"] = ""
    any_server: bool = False

    @property
    def most(self) -> float:
        """Largest number of episodes that run at once."""
        return self.workers or (WORKERS if self.executor in ON_THIS_MACHINE else math.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutResult:
    """How a rollout ended.

    Attributes:
        folder: The run folder.
        progress: The last report. If episodes were not started, `progress.stopping` says why.
    """

    folder: Path
    progress: Progress

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the graded episodes in the order in which they finished."""
        return Trajectory.read(self.folder / "trajectories.jsonl")


def rollout(
    plan: Plan,
    folder: str | os.PathLike[str],
    options: RolloutOptions | None = None,
    *,
    policies: PolicyFactory | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> RolloutResult:
    """Run a plan into a run folder, or resume it.

    Graded episodes in the folder are never run again. In the main thread, the first Ctrl-C waits for running
    episodes and starts no more; the second Ctrl-C or a SIGTERM closes every sandbox at once. The folder is consistent
    at every moment.

    Args:
        plan: The episodes.
        folder: The run folder. Its name is the run name.
        options: How to run the plan.
        policies: Makes the policies. None makes them from the plan and closes them at the end.
        on_progress: Called in this thread about once a second, and at the end.

    Returns:
        The last report and the folder.

    Raises:
        UsageError: The plan is invalid or the folder is in use; nothing ran. Or a policy, a grader or a reward is used
            wrongly; what was graded before is in the folder.
        RolloutStopped: Too many tries failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM, raised once everything is closed and written.
    """
    options = options or RolloutOptions()
    folder = Path(folder)
    config = plan.config()
    source = shared_source(plan.source, plan.source_options)  # held until the end, so that it is read once
    tasks = _check_tasks(plan, source.ids())
    _check_options(options, config)
    factory = policies or make_players(plan.policy, plan.policy_options, plan.agent, plan.agent_options)
    with contextlib.ExitStack() as stack:
        if policies is None:
            stack.callback(factory.close)
        _check_playable(plan, source, tasks, factory)
        server = _server_of(factory, plan, options)
        info = _run_info(plan, folder, options, config, tasks, server)
        run_folder = stack.enter_context(RunFolder(folder, info, any_server=options.any_server))
        warm = (
            stack.enter_context(WarmPool(config["env"]["backend"], ready=options.warm, starting=min(options.warm, 8)))
            if options.warm
            else None
        )
        where = _executor_options(options, config)
        executor = stack.enter_context(open_executor(options.executor, where, config, workers=options.most))
        how = _How(executor, warm, server, hosted=policies is not None)
        return _Engine(plan, run_folder, factory, options, on_progress, how).run()


def _server_of(factory: PolicyFactory, plan: Plan, options: RolloutOptions) -> ModelServer | None:
    """Return the server of the policies' model; None if there is none."""
    if not isinstance(factory, AsksServer):
        return None
    check_price(factory.price, "the model", plan.budget, options.budget)
    return factory.ask_server()


def _run_info(
    plan: Plan,
    folder: Path,
    options: RolloutOptions,
    config: JsonObject,
    tasks: tuple[str, ...],
    server: ModelServer | None,
) -> RunInfo:
    return RunInfo(
        servers=(server,) if server else (),
        experiment=folder.resolve().name,
        config=config,
        config_hash=hash_config(config),
        settings={
            **options.model_dump(),
            "executor_options": without_secrets(options.executor_options),
            "prices": plan.policy_options.get("prices"),
        },
        tasks=tasks,
        attempts=plan.attempts,
        swe_gym=version("swe-gym"),
        created=now(),
    )


def _check_tasks(plan: Plan, known: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of a plan; all of them exist."""
    tasks = tuple(known if plan.tasks is None else plan.tasks)
    if unknown := set(tasks) - set(known):
        raise UsageError(f"{len(unknown)} of the {len(tasks)} tasks are not in {plan.source!r}: {min(unknown)!r}, ...")
    if len(set(tasks)) < len(tasks):
        raise UsageError("the plan names a task twice: set attempts instead")
    return tasks


def _check_playable(plan: Plan, source: TaskSource, tasks: Sequence[str], factory: PolicyFactory) -> None:
    """Refuse tasks that the policy cannot play. Broken tasks are left to their episodes."""
    if not isinstance(factory, ChecksTasks):
        return
    refused = []
    for task_id in tasks:
        with contextlib.suppress(TaskError):
            task = source.get(task_id)
            try:
                factory.check_task(task)
            except TaskError as error:
                refused.append(str(error))
    if refused:
        count = f"{len(refused)} of the {len(tasks)} tasks"
        raise UsageError(f"the policy {plan.policy!r} cannot play {count}, for example: {refused[0]}")


def _executor_options(options: RolloutOptions, config: JsonObject) -> JsonObject:
    """Return the options of the executor, with the memory that the plan gives a sandbox on a node."""
    memory = config["env"]["sandbox_options"].get("memory_mb")
    known = options.executor == "ray" and memory and load_backend(config["env"]["backend"]).on_this_machine
    return {**({"memory_mb": memory} if known else {}), **options.executor_options}


def _check_options(options: RolloutOptions, config: JsonObject) -> None:
    if options.warm and options.executor != "threads":
        raise UsageError(f"warm={options.warm} needs executor='threads': sandboxes start where episodes run")
    if options.wall_clock is not None and options.wall_clock <= _time_limit(config):
        raise UsageError(
            f"wall_clock={options.wall_clock:g} would cancel episodes before their time limit of "
            f"{_time_limit(config):g} s ends them: raise wall_clock or lower the time limit"
        )


def _time_limit(config: JsonObject) -> float:
    """Return the seconds after which an episode ends and is graded."""
    return float(min(config["env"]["time_limit"], config["budget"]["seconds"] or math.inf))


class _How(NamedTuple):
    """The means of a rollout: where episodes run, a warm pool, the model's server, and whether policies stay here."""

    executor: Executor
    warm: WarmPool | None
    server: ModelServer | None
    hosted: bool


class _Engine:
    """One rollout while it runs: a pool of tries, and the folder that holds how they ended."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        factory: PolicyFactory,
        options: RolloutOptions,
        on_progress: Callable[[Progress], None] | None,
        how: _How,
    ) -> None:
        self._plan = plan
        self._how = how
        self._folder = folder
        self._factory = factory
        self._options = options
        self._on_progress = on_progress
        run = folder.run
        keys = [EpisodeKey(task, attempt, run.config_hash) for task in run.tasks for attempt in range(run.attempts)]
        self._votes = PatchVotes(run.attempts) if options.early_stop else None
        if self._votes:
            keys.sort(key=lambda key: key.attempt)
        self._left = [key for key in keys if key not in folder.finished]
        before = [folder.finished[key] for key in keys if key in folder.finished]
        failed = [one for one in folder.failed if run.counts(one.task_id, one.attempt)]
        spent = sum((run.priced(one.usage) for one in (*before, *failed)), Usage())
        if spent.uncounted and (options.budget.cost or options.budget.tokens):
            raise UsageError(
                f"the run's budget limits tokens or cost, but {folder.path} holds {spent.uncounted} answers whose "
                "tokens the server did not tell: omit the budget, or choose another name"
            )
        if spent.tokens and spent.cost is None and options.budget.cost is not None:
            raise UsageError(
                f"the run's budget limits the cost, but that of earlier tries in {folder.path} is unknown: give "
                "policy.prices.input= and policy.prices.output=, in dollars per million tokens, or another name"
            )
        self._tally = Tally(run.experiment, len(keys), before, spent)
        self._losses: dict[EpisodeKey, list[Trajectory]] = collections.defaultdict(list)
        self._pool: EpisodePool[EpisodeKey, Try] = EpisodePool(
            self._make_try,
            workers=options.most,
            retries=options.retries,
            wall_clock=options.wall_clock or _time_limit(run.config) + GRADING_ALLOWANCE,
            grace=options.grace,
            stragglers=int(options.cancel_last * len(keys)),
            warm=options.warm,
            on_tick=self._tick,
            executor=how.executor,
        )
        self._error: BaseException | None = None
        self._too_many_failures = ""
        self._signals = 0
        self._given_up: set[EpisodeKey] = set()
        self._settled: set[EpisodeKey] = set()  # attempts that cannot change which patch has most votes
        self._reported = -math.inf

    def run(self) -> RolloutResult:
        """Play what is left. Returns or raises when nothing runs any more."""
        self._read_votes()  # may take long: Ctrl-C ends it
        with self._hearing_signals(), self._pool as pool:
            self._stop_if_spent()
            for one in pool.run(() if pool.stopping else self._left, raising=False):
                self._guard(lambda one=one: self._write(one))  # type: ignore[misc]  # a default binds the loop's try
            progress = self._report()  # before the pool is closed, which stops it
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
        losses, run = self._losses[key], self._folder.run.experiment
        how, extends = self._how, self._options.wall_clock is None
        args = (self._plan, run, key, number, self._factory, self._folder.start, losses, how.warm)
        return Try(*args, hosted=how.hosted, extends=extends)

    def _guard(self, work: Callable[[], object]) -> None:
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
        if server := self._how.server:
            policy = record.policy.model_copy(update={"server": server})
            record = record.model_copy(update={"policy": policy})
        if failure is None:
            self._folder.add(record)
            self._tally.finished(record)
            if self._votes is not None:
                self._votes.add(record)
        else:
            if self._is_settled(one.key.task_id) or not (failure.retry and self._pool.retry(one)):
                self._given_up.add(one.key)
            self._folder.fail(record)
            self._tally.failed(failure, record.usage)
        self._omit_if_settled(one.key.task_id)
        if one.error is not None:
            raise one.error
        self._stop_if_spent()
        if not self._pool.stopping and (message := self._tally.too_many_failures(self._options.max_failure_rate)):
            self._too_many_failures = message
            self._pool.drain("too many failures")

    def _read_votes(self) -> None:
        """Count the votes of earlier processes, and leave out the attempts at tasks that they have settled."""
        if self._votes is None or not self._folder.finished:
            return
        run = self._folder.run
        for one in Trajectory.read(self._folder.path / "trajectories.jsonl"):
            if run.counts(one.task_id, one.attempt):
                self._votes.add(one)
        for task_id in run.tasks:
            self._omit_if_settled(task_id)
        self._left = [key for key in self._left if key not in self._settled]

    def _is_settled(self, task_id: str) -> bool:
        return self._votes is not None and self._votes.is_settled(task_id)

    def _omit_if_settled(self, task_id: str) -> None:
        """Leave out the attempts at a settled task: those that have not started, and those whose tries failed."""
        if not self._is_settled(task_id):
            return
        self._pool.drop(lambda key: key.task_id == task_id)
        run, running = self._folder.run, {job.key for job in self._pool.running}
        for attempt in range(run.attempts):
            key = EpisodeKey(task_id, attempt, run.config_hash)
            if key not in running and key not in self._folder.finished:
                self._settled.add(key)

    def _stop_if_spent(self) -> None:
        used = self._tally.usage + self._running_usage
        if limit := self._options.budget.used_up(used, self._tally.seconds):
            unknown = f" (the server did not tell those of {used.uncounted} answers)" if used.uncounted else ""
            self._pool.drain(f"the run's budget is used up: {limit}{unknown}")

    @property
    def _running_usage(self) -> Usage:
        return sum((one.used for one in self._pool.running), Usage())

    def _tick(self) -> None:
        """Obey signals, and report about once a second."""
        if self._signals >= 1:
            self._pool.drain("interrupted")
        if self._signals >= 2:
            self._pool.cancel("interrupted")
            self._factory.close()
        self._stop_if_spent()
        if time.monotonic() - self._reported >= REPORT_EVERY:
            self._guard(self._report)

    def _report(self) -> Progress:
        self._reported = time.monotonic()
        progress = self._tally.snapshot(
            (one.phase for one in self._pool.running),
            self._running_usage,
            len({*self._given_up, *self._pool.dropped} - self._settled),
            self._pool.stopping,
            len(self._settled),
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
