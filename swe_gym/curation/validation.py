"""Validates tasks: every grading must find the gold patch resolved and the untouched repository unresolved.

`rate_tasks` adds to the records how often policies resolved the tasks.
"""

import dataclasses
import functools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from ..envs import SandboxGroup
from ..errors import DiffError, FileError, GradingError, MissingInterpreter, SandboxError, TaskError, UsageError
from ..files import append_lines
from ..grading import CounterOptions, DiffReader, grade, hidden_places
from ..grading.counter import NATURAL, Scope
from ..grading.in_place import is_last, join_steps, run_solution
from ..rollout import DriverLink, Executor, OutcomeJob, run_outcomes, without_secrets
from ..rollout.executors import open_executor
from ..sandboxes import Sandbox
from ..tasks import TaskRecord, TaskSource, digest, read_records
from ..trajectories.comparison import distinct_names, read_results
from ..trajectories.statistics import wilson
from ..types import JsonObject, Task, TestStatus, Verdict

logger = logging.getLogger(__name__)

__all__ = ["TaskRecord", "digest", "read_records", "validate"]

CONDITIONS = ("backend", "sandbox_options")
"""Fields of a record that are arguments of an environment too."""

TICKS = 100
"""Units of a second in which Linux tells CPU times to programs."""

STAT_SECONDS = 5.0
"""Time limit of reading the CPU time of a sandbox."""


def validate(
    source: TaskSource,
    ids: Sequence[str] | None = None,
    *,
    backend: str = "local",
    sandbox_options: JsonObject | None = None,
    times: int = 3,
    workers: int = 4,
    record: str | os.PathLike[str] | None = None,
    date: str = "",
    counter: Scope = "few",
    on_record: Callable[[TaskRecord], None] | None = None,
    executor: str = "threads",
    executor_options: JsonObject | None = None,
) -> list[TaskRecord]:
    """Judge the gold patch and the empty patch of tasks, several times each, several tasks at once.

    Results are appended to `record`. Those it holds are used again if the digest, the backend and its options, the
    scope of the counter-tests and the number of runs are equal.

    Args:
        source: Source of the tasks.
        ids: Ids of the tasks; None takes all.
        backend: Kind of sandbox.
        sandbox_options: Options as in `SweEnv`.
        times: Runs of each patch.
        workers: Tasks at once, one thread each.
        record: A JSONL file.
        date: Date for the records. The caller gives it, so that a run can be repeated exactly.
        counter: Which tests that must keep passing get a counter-test too: "few" or "all".
        on_record: Callback for each record, old ones first. It runs in this thread.
        executor: Where tasks are validated: "threads" of this process, worker processes ("process"), "ray", or
            "module:Class".
        executor_options: Options of the executor.

    Returns:
        One record per task, in the order of the tasks.

    Raises:
        UsageError: An argument is invalid, or the record file is broken.
        KeyboardInterrupt: Every sandbox is closed, and finished tasks are in the record file.
    """
    if times < 1 or workers < 1:
        raise UsageError(f"times and workers must be at least 1: {times=}, {workers=}")
    settings = CheckSettings(source, backend, sandbox_options or {}, times, date, counter)
    names = list(source.ids() if ids is None else ids)
    known = {old.task_id: old for old in read_records(record) if settings.still_holds(old)} if record else {}
    found: dict[str, TaskRecord] = {}

    def add(result: TaskRecord) -> None:
        found[result.task_id] = result
        if on_record is not None:
            on_record(result)

    for name in filter(known.__contains__, names):
        add(known[name])
    with open_executor(executor, executor_options, sandbox_options, workers=workers) as place:
        for result in _validate_tasks(settings, [name for name in names if name not in known], workers, place):
            if record:
                append_lines(record, json.dumps(result.model_dump(mode="json")))
            add(result)
    return [found[name] for name in names]


def rate_tasks(
    record: str | os.PathLike[str], runs: Sequence[str | os.PathLike[str]]
) -> tuple[list[TaskRecord], list[str]]:
    """Count how often the policies of runs resolved the tasks of a record file, and append the new records to it.

    Only graded attempts that the last call of a run asked for count, in runs with the backend and the sandbox options
    of the record. Runs of one model, or of one policy without a model, count together, and replace its former rates of
    the same tasks. A task that is validated again has no rates.

    Args:
        record: A record file of `validate`.
        runs: Run folders.

    Returns:
        The records of the tasks that were rated, and the ids of tasks of the runs that the file does not hold for
        these conditions.

    Raises:
        UsageError: A folder is not a run folder or given twice, its episodes start in the middle of a task, or no
            graded attempt is at such a task of the file.
    """
    known = {old.task_id: old for old in read_records(record)}
    counts, unknown = _count_attempts([Path(run) for run in runs], known)
    if not counts:
        raise UsageError(
            next(filter(None, unknown.values()), "")
            or f"{f'{record} holds no task of the runs' if unknown else 'the runs have no graded attempt'}: pass "
            "finished runs over the tasks that the record was made from"
        )
    rated = []
    for task_id, ends in counts.items():
        facts = known[task_id].model_dump()
        facts["rates"] |= {name: _rate(resolved) for name, resolved in ends.items()}
        rated.append(TaskRecord.model_validate(facts))
    changed = [json.dumps(new.model_dump(mode="json")) for new in rated if new != known[new.task_id]]
    append_lines(record, *changed)
    return rated, list(unknown)


def _count_attempts(
    runs: Sequence[Path], records: Mapping[str, TaskRecord]
) -> tuple[dict[str, dict[str, list[bool]]], dict[str, str]]:
    """Return whether the graded attempts of runs are resolved, by task and by who played; and the tasks without record.

    A record holds for the backend and the sandbox options with which its task was validated. A task that has one for
    others comes with the first difference.
    """
    found: dict[str, dict[str, list[bool]]] = {}
    unknown: dict[str, str] = {}
    distinct_names(runs)  # raises if a run is given twice
    for run in runs:
        results = read_results(run)
        if point := results.info.config.get("checkpoint"):
            raise UsageError(f"{run} continues an episode ({point['origin']}), so its rates are not those of the task")
        env = without_secrets(results.info.config.get("env", {}))
        for task_id, resolved in results.outcomes.items():
            old = records.get(task_id)
            other = old and _find_difference(old, env)
            if old is None or other:
                unknown[task_id] = f"{run}: task {task_id} was {other}" if other else ""
            else:
                found.setdefault(task_id, {}).setdefault(results.summary.player, []).extend(resolved)
    return found, unknown


def _find_difference(record: TaskRecord, env: JsonObject) -> str:
    """Return in which condition a task was played otherwise than it was validated; empty if in none."""
    for name in CONDITIONS:
        validated = getattr(record, name, None)
        if validated is not None and (played := env.get(name, validated)) != validated:
            return (
                f"validated with {name} {validated!r} and played with {played!r}: validate the tasks as they are played"
            )
    return ""


def _rate(ends: Sequence[bool]) -> JsonObject:
    low, high = (round(end, 4) for end in wilson(sum(ends), len(ends)))
    return {"resolved": sum(ends), "attempts": len(ends), "low": low, "high": high}


class MeteredGroup(SandboxGroup):
    """Sandboxes whose CPU time is counted.

    Attributes:
        used: CPU time of the dropped sandboxes in seconds; None if one of them did not tell.
    """

    used: float | None = 0.0

    def drop(self, sandbox: Sandbox) -> Future[None]:
        """Close a sandbox as `SandboxGroup` does, after reading what its processes used."""
        if sandbox in self._sandboxes:  # not dropped before
            used = _read_cpu_seconds(sandbox)
            self.used = None if used is None or self.used is None else self.used + used
        return super().drop(sandbox)


def _read_cpu_seconds(sandbox: Sandbox) -> float | None:
    """Return the CPU time of the processes of a sandbox that have ended; None if it does not tell.

    Its first process must be the parent of all others. That of a virtual machine belongs to the machine.
    """
    try:
        if sandbox.capabilities.isolation not in ("namespace", "container"):
            return None
        fields = sandbox.read_file("/proc/1/stat", timeout=STAT_SECONDS).rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    except (SandboxError, FileError, ValueError):
        return None


def add_seconds(first: float | None, *others: float | None) -> float | None:
    """Return the sum of times; None if one is not known."""
    found = [one for one in (first, *others) if one is not None]
    return round(sum(found), 3) if len(found) == 1 + len(others) else None


def _validate_tasks(
    settings: "CheckSettings", names: Sequence[str], workers: int, place: Executor
) -> Iterator[TaskRecord]:
    """Yield the records of tasks. A task whose node was lost is validated again."""
    make = functools.partial(TaskCheck, settings)
    for check in run_outcomes(make, names, workers=workers, executor=place):
        if check.lost is not None:
            raise check.lost
        yield check.outcome


def judge_diff(
    group: SandboxGroup,
    diff: str,
    counter: CounterOptions | None = None,
    *,
    claimed: bool = False,
    reader: DiffReader | None = None,
    complete: bool = True,
) -> tuple[Verdict, dict[str, str]]:
    """Judge a diff as the end of an episode would.

    Args:
        group: Opens the sandboxes.
        diff: A git diff.
        counter: Scope of the counter-tests.
        claimed: Whether the diff is a policy's work. If it does not apply, the work is not resolved; otherwise the task
            is broken.
        reader: Reads the diff; by default one that reads no other.
        complete: Prove each test that passes, though others fail; see `grade`.

    Returns:
        The verdict, and `isolation` and `image` of the sandbox for a record.
    """
    what, reader = "the patch" if claimed else "the gold patch", reader or DiffReader()
    fresh = group.open()
    try:
        where = {"isolation": fresh.capabilities.isolation, "image": fresh.image_digest}
        try:
            patch = reader.read(diff, group.another, fresh, hidden=hidden_places(group.task, fresh), what=what)
        except DiffError as error:
            if not claimed:
                raise
            return Verdict(resolved=False, reason=str(error)), where
        return grade(group.task, patch, fresh, group.fresh, complete=complete, counter=counter), where
    finally:
        group.drop(fresh)


def identify(task: Task) -> str:
    """Return the digest of a task whose code is about to run.

    Raises:
        GradingError: The code cannot be read, or changes meanwhile.
    """
    try:
        return digest(task, strict=True)
    except TaskError as error:
        raise GradingError(str(error)) from error


def check_unchanged(task: Task, before: str) -> None:
    """Check that the code that ran is the code that a record names: sandboxes copy it later.

    Raises:
        GradingError: It is not, or cannot be read any more.
    """
    if identify(task) != before:
        raise GradingError("its code changed while it ran: stop the program that writes to it, and try again")


def _judge(
    group: SandboxGroup, reader: DiffReader, *, solved: bool, counter: CounterOptions
) -> tuple[Verdict, dict[str, str]]:
    """Judge the task's own solution, or no work at all; see `judge_diff`."""
    oracle = group.task.oracle
    if not oracle.in_place:
        diff = oracle.gold_patch if solved else ""
        return judge_diff(group, diff, counter, reader=reader, complete=solved)
    sandbox = group.open_sealed()
    try:
        where = {"isolation": sandbox.capabilities.isolation, "image": sandbox.image_digest}
        verdicts: list[Verdict] = []
        while not verdicts or not is_last(group.task, verdicts):
            step = group.begin_step(sandbox, len(verdicts))
            if solved:
                run_solution(step, sandbox)
            verdicts.append(group.judge_in_place(sandbox))
        return join_steps(group.task, verdicts), where
    finally:
        group.drop(sandbox)


@dataclasses.dataclass(frozen=True, slots=True)
class CheckSettings:
    """The arguments of one validation."""

    source: TaskSource
    backend: str
    options: JsonObject
    times: int
    date: str
    counter: Scope

    @property
    def facts(self) -> JsonObject:
        """Fields of a record that must be equal for its answer to hold."""
        options = without_secrets(self.options)
        return {"backend": self.backend, "sandbox_options": options, "counter": self.counter}

    def still_holds(self, old: TaskRecord) -> bool:
        """Whether an old record is still valid for these settings."""
        answered = old.status in ("valid", "invalid") and len(old.gold) in (0, self.times)
        if not answered or any(getattr(old, name) != value for name, value in self.facts.items()):
            return False
        try:
            return old.digest == digest(self.source.get(old.task_id))
        except (UsageError, TaskError):
            return False


class OneTask(NamedTuple):
    """A source of one task, or of the error of reading it."""

    task: Task | None
    error: UsageError | TaskError | None

    def ids(self) -> Sequence[str]:
        """Return the id of the task."""
        return (self.task.task_id,) if self.task else ()

    def get(self, task_id: str) -> Task:  # noqa: ARG002  there is one
        """Return the task, or raise the error."""
        if self.task is None:
            raise self.error or TaskError("no task")
        return self.task


class _CheckWork(NamedTuple):
    """The validation of one task as data."""

    settings: CheckSettings
    task_id: str

    def make(self, link: DriverLink) -> "TaskCheck":  # noqa: ARG002  it sends only its result
        """Make the validation on a node."""
        return TaskCheck(self.settings, self.task_id, 1)


class TaskCheck(OutcomeJob[str, TaskRecord]):
    """The validation of one task."""

    def __init__(self, settings: CheckSettings, task_id: str, number: int) -> None:
        super().__init__(task_id, number)
        self._settings = settings
        self._reader = DiffReader()

    def run(self) -> None:
        """Validate the task. Failures become a record; only the caller's mistakes are raised."""
        settings = self._settings
        facts: JsonObject = {"task_id": self.key, "date": settings.date, **settings.facts}
        try:
            task = settings.source.get(self.key)
            facts |= {"digest": identify(task), "bytes": len(task.model_dump_json().encode())}
            if not task.oracle.has_solution:
                raise TaskError("it has no gold patch or other solution, so nothing shows that it can be solved")
            self._reader = DiffReader(["", task.oracle.gold_patch])
            started = time.thread_time()
            with MeteredGroup(task, settings.backend, settings.options) as group:
                self._open = group
                if self.cancelled:
                    group.close()
                found = self._runs(group, facts)
            check_unchanged(task, found.digest)
            used = add_seconds(group.used, time.thread_time() - started)
            self.outcome = found.model_copy(update={"cpu_seconds": used})
        except MissingInterpreter as error:
            self.outcome = TaskRecord(**facts, status="skipped", reason=str(error))
        except TaskError as error:
            self.outcome = TaskRecord(**facts, status="invalid", reason=str(error))
        except (SandboxError, GradingError) as error:
            logger.warning("no verdict on task %s: %s: %s", self.key, type(error).__name__, error)
            self.outcome = TaskRecord(**facts, status="error", reason=f"{type(error).__name__}: {error}")

    def work(self) -> _CheckWork:
        """Return the validation as data. The task travels with it: a node need not read the source."""
        try:
            source = OneTask(self._settings.source.get(self.key), None)
        except (UsageError, TaskError) as error:
            source = OneTask(None, error)
        return _CheckWork(dataclasses.replace(self._settings, source=source), self.key)

    def _runs(self, group: SandboxGroup, facts: JsonObject) -> TaskRecord:
        verdicts: dict[str, list[Verdict]] = {"gold": [], "empty": []}
        seconds, test_seconds = [], []
        vouched = Vouched()
        for _ in range(self._settings.times):
            for name in verdicts:
                started = time.monotonic()
                counter = vouched.options(self._settings.counter)
                verdict, where = _judge(group, self._reader, solved=name == "gold", counter=counter)
                if name == "gold" and not verdict.resolved and not group.task.oracle.in_place:
                    verdict = self._without_forks(group, vouched) or verdict
                facts |= where
                verdicts[name].append(verdict)
                seconds.append(round(time.monotonic() - started, 3))
                test_seconds.append(round(verdict.duration, 3))
            vouched.add(verdicts["gold"][-1])
        for _ in range(self._settings.times):
            if not vouched.pending(self._settings.times):
                break
            vouched.add(_judge(group, self._reader, solved=True, counter=vouched.options(self._settings.counter))[0])
        flaky = tuple(sorted({*_find_flaky(verdicts["gold"]), *_find_flaky(verdicts["empty"])}))
        reason = _why_unusable(verdicts["gold"], verdicts["empty"], flaky)
        return TaskRecord(
            **facts,
            **vouched.facts(self._settings.times),
            wrong=_wrong(verdicts["gold"], verdicts["empty"]),
            status="invalid" if reason else "valid",
            reason=reason,
            gold=tuple(verdict.resolved for verdict in verdicts["gold"]),
            empty=tuple(verdict.resolved for verdict in verdicts["empty"]),
            seconds=tuple(seconds),
            test_seconds=tuple(test_seconds),
            flaky=flaky,
            broken=_find_broken(verdicts["empty"]),
        )

    def _without_forks(self, group: SandboxGroup, vouched: "Vouched") -> Verdict | None:
        """Judge the gold patch without twins, which may disturb the tests. Return None if it fails there too."""
        oracle = group.task.oracle
        tests = (*oracle.fail_to_pass, *oracle.pass_to_pass, *oracle.expected)
        counter = dataclasses.replace(vouched.options(self._settings.counter), unforkable=tests)
        verdict, _ = _judge(group, self._reader, solved=True, counter=counter)
        if not verdict.resolved:
            return None
        vouched.without_forks(tests)
        return verdict


class Vouched:
    """The counter-tests of one task that fail with its gold patch, run by run.

    Attributes:
        unfit: Test -> changes that the gold patch survived.
    """

    def __init__(self) -> None:
        self.unfit: dict[str, tuple[str, ...]] = {}
        self._uncovered: dict[str, str] = {}
        self._natural = True
        self._unforkable: set[str] = set()
        self._passing: dict[str, tuple[int, ...]] = {}
        self._returned: dict[str, dict[int, tuple[str, str]]] = {}
        self._texts: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._failed: Counter[str] = Counter()

    def options(self, counter: Scope) -> CounterOptions:
        """Return the options of the next run: without the changes that the gold patch survived."""
        known: JsonObject = {"passing": self._passing, "returned": self._returned}
        return CounterOptions(counter, unfit=self.unfit, unforkable=self._unforkable, **known)

    def without_forks(self, tests: Iterable[str]) -> None:
        """Leave these tests to second runs from now on."""
        self._unforkable |= set(tests)

    def pending(self, times: int) -> bool:
        """Whether a change replaced an unfit one and has not yet failed `times` times."""
        return bool(self.unfit) and any(number < times for number in self._failed.values())

    def add(self, gold: Verdict) -> None:
        """Add the result of one run with the gold patch."""
        found = gold.counter_tests
        for test, kind in (*found.unfit.items(), *found.alarms.items()):  # gold raises an alarm only by chance
            self.unfit[test] = tuple(dict.fromkeys((*self.unfit.get(test, ()), *kind.split("+"))))
        self._failed.update(test for test in found.kinds if test not in found.unfit)
        self._kinds |= found.kinds
        self._passing |= found.passing
        self._returned |= found.returned
        self._texts = found.texts
        self._uncovered = found.uncovered
        self._unforkable |= set(found.unforkable)
        fit = {test: kind for test, kind in {**found.kinds, **found.kept}.items() if test not in found.unfit}
        self._natural = self._natural and any(_is_natural(kind) for kind in fit.values())

    def facts(self, times: int) -> JsonObject:
        """Return the fields of the record. Only changes that failed in all runs are vouched for."""
        kinds = {test: self._kinds[test] for test, number in self._failed.items() if number >= times}
        unsure = dict.fromkeys(self._kinds, "no change of it failed with the gold patch in every run")
        return {
            "counter_tests": kinds,
            "uncovered": {test: why for test, why in {**unsure, **self._uncovered}.items() if test not in kinds},
            "unfit": self.unfit,
            "texts": {test: number for test, number in self._texts.items() if test in kinds},
            "unforkable": tuple(sorted(self._unforkable)),
            "passing": self._passing,
            "returned": self._returned,
            "natural": self._natural and bool(kinds),
        }


def _is_natural(kinds: str) -> bool:
    """Whether some of the kinds of a test's changes read like a test that a person wrote."""
    return any(kind in NATURAL or kind.startswith("near-") for kind in kinds.split("+"))


def _wrong(gold: Sequence[Verdict], empty: Sequence[Verdict]) -> dict[str, str]:
    """The required tests that failed with the gold patch, and those that passed although they must start to."""
    found = {}
    for verdict in empty:
        for test, status in verdict.fail_to_pass.items():
            if status is TestStatus.PASSED:
                found[test] = "passed without work"
    for verdict in gold:
        for test, status in (*verdict.fail_to_pass.items(), *verdict.pass_to_pass.items()):
            if status is not TestStatus.PASSED:
                found[test] = f"{status} with the gold patch"
    return found


def _find_broken(empty: Sequence[Verdict]) -> tuple[str, ...]:
    """The tests that must keep passing and do not pass in every run without work."""
    found = {test for one in empty for test, end in one.pass_to_pass.items() if end is not TestStatus.PASSED}
    return tuple(sorted(found))


def _find_flaky(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The required tests that pass in some runs of the same work and not in others."""
    ends: dict[str, set[TestStatus]] = {}
    for verdict in verdicts:
        if verdict.counter_tests.alarms:  # it passed unchanged and changed: by chance, because this is gold
            ends |= {test: {TestStatus.PASSED, TestStatus.FAILED} for test in verdict.counter_tests.alarms}
            continue
        for test, status in (*verdict.fail_to_pass.items(), *verdict.pass_to_pass.items()):
            ends.setdefault(test, set()).add(status)
    return (test for test, found in ends.items() if len(found) > 1 and TestStatus.PASSED in found)


def _why_unusable(gold: Sequence[Verdict], empty: Sequence[Verdict], flaky: Sequence[str]) -> str:
    """The first reason why a task is unusable; empty if it is usable."""
    passed, slipped = sum(verdict.resolved for verdict in gold), sum(verdict.resolved for verdict in empty)
    if passed == 0:
        return f"gold does not pass: {gold[0].reason}"
    if passed < len(gold):
        reason = next(verdict.reason for verdict in gold if not verdict.resolved)
        return f"flaky: gold passed {passed} of {len(gold)} times: {reason}"
    if slipped == len(empty):
        return "empty passes: the hidden tests do not detect the problem"
    if slipped:
        return f"flaky: empty passed {slipped} of {len(empty)} times"
    if flaky:
        return f"flaky: {flaky[0]} passed in some runs of the same work and not in others"
    return ""
