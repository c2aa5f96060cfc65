"""The selector "tests": the visible tests and those that the attempts wrote, run on every attempt's work."""

import functools
import logging
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..envs import SandboxGroup
from ..errors import DiffError, GradingError, SandboxError, TaskError
from ..grading import apply_diff, find_statuses, parse_command, split_diff
from ..rollout import DriverLink, Executor, OutcomeJob, run_outcomes
from ..rollout.executors import open_executor
from ..types import JsonObject, Task, TestStatus
from .attempts import Scores, ScoresOf, SelectionSettings, TaskAttempts, no_scores

logger = logging.getLogger(__name__)

TEST_FILE = re.compile(r"(test_.*|.*_test|tests)\.py")
"""Name of a file whose tests are run."""


class SuiteRun(NamedTuple):
    """A run of tests on the work of an attempt, as data.

    Attributes:
        number: Number of the run.
        place: Place of the task.
        task: The task.
        work: Diff of the work; empty: the start of the task.
        tests: Diff of the tests that an attempt wrote; empty: the visible tests.
        backend: Kind of sandbox.
        sandbox_options: Options of the sandbox.
    """

    number: int
    place: int
    task: Task
    work: str
    tests: str
    backend: str
    sandbox_options: JsonObject

    def make(self, link: DriverLink) -> "_RunTests":  # noqa: ARG002  it sends only its result
        """Make the job on a node."""
        return _RunTests(self, 1)


class RunOutcome(NamedTuple):
    """The result of a run.

    Attributes:
        passed: Tests that passed.
        failure: Failure of the infrastructure; empty if the tests ran or the work kept them from running.
    """

    passed: frozenset[str] = frozenset()
    failure: str = ""


def score_by_tests(tasks: Sequence[TaskAttempts], settings: SelectionSettings, others: ScoresOf) -> list[Scores]:  # noqa: ARG001
    """Score attempts by tests that everybody may see.

    An attempt that breaks a visible test scores half the share of them that still pass. Another one scores 0.5, and
    half the mean over the other attempts with tests of the share of those tests that pass on its work. An attempt
    without work scores 0: it breaks nothing, and solves nothing. So does one whose work loses its sandboxes if other
    work does not.
    """
    runs: list[SuiteRun] = []
    for place, attempts in enumerate(tasks):
        for work, tests in _pairs(attempts):
            options = settings.sandbox_options
            runs.append(SuiteRun(len(runs), place, attempts.task, work, tests, settings.backend, options))
    found: list[dict[tuple[str, str], RunOutcome]] = [{} for _ in tasks]
    with open_executor(
        settings.executor, settings.executor_options, settings.sandbox_options, workers=settings.workers
    ) as executor:
        for run, result in _play(runs, settings.workers, executor):
            found[run.place][run.work, run.tests] = result
    return [_score(attempts, results) for attempts, results in zip(tasks, found, strict=True)]


def _pairs(attempts: TaskAttempts) -> Iterator[tuple[str, str]]:
    """Yield work and tests of each run that the attempts need."""
    works = dict.fromkeys(one.work for one in attempts.candidates)
    suites = dict.fromkeys(one.tests for one in attempts.candidates if _test_files(one.tests))
    if attempts.task.eval_cmd:
        yield from ((work, "") for work in {"": None, **works})
    yield from ((work, tests) for work in works for tests in suites)


def _test_files(tests: str) -> list[str]:
    """Return the Python files with tests that a diff leaves."""
    left = (names for names, part in split_diff(tests) if "\ndeleted file mode " not in part)
    return sorted(name for names in left for name in names if TEST_FILE.fullmatch(posixpath.basename(name)))


def _score(attempts: TaskAttempts, results: Mapping[tuple[str, str], RunOutcome]) -> Scores:
    lost, why = _find_lost(results)
    if why:
        return no_scores(why)
    passed = {pair: result.passed for pair, result in results.items() if not result.failure}
    visible = [0.0 if one.work in lost else _kept(passed, one.work) for one in attempts.candidates]
    suites = [one.tests if _test_files(one.tests) else "" for one in attempts.candidates]
    if not passed.get(("", "")) and not any(suites):
        return no_scores("no visible test passes at the start, and no attempt wrote tests")
    idle = [not one.work.strip() for one in attempts.candidates]
    shares = [[_share(passed, one.work, tests) for tests in suites] for one in attempts.candidates]

    def among(places: Sequence[int]) -> list[float]:
        found = [_combine(visible[one], [shares[one][other] for other in places if other != one]) for one in places]
        return [0.0 if idle[one] else score for one, score in zip(places, found, strict=True)]

    return Scores(among, fixed=False)


def _find_lost(results: Mapping[tuple[str, str], RunOutcome]) -> tuple[frozenset[str], str]:
    """Return the work that loses its sandboxes, or why the task has no scores.

    Tests that lose the sandbox on every work are to blame themselves: they do not count.
    """
    able = {tests for (_, tests), result in results.items() if not result.failure}
    failures = [(work, one.failure) for (work, tests), one in results.items() if one.failure and tests in able]
    lost, works = {work for work, _ in failures}, {work for work, _ in results if work}
    if results and not able:
        return frozenset(), next(one.failure for one in results.values())
    if lost and (works <= lost or "" in lost):
        return frozenset(), failures[0][1]
    return frozenset(lost), ""


def _kept(passed: Mapping[tuple[str, str], frozenset[str]], work: str) -> float:
    """Return the share of the visible tests that pass at the start of the task and still pass."""
    before = passed.get(("", ""), frozenset())
    return len(before & passed[work, ""]) / len(before) if before else 1.0


def _share(passed: Mapping[tuple[str, str], frozenset[str]], work: str, tests: str) -> float | None:
    """Return the share of an attempt's tests that pass on a work; None if they pass on none, or there are none."""
    known = frozenset[str]().union(*(found for (_, written), found in passed.items() if written == tests))
    return len(passed.get((work, tests), ())) / len(known) if tests and known else None


def _combine(visible: float, shares: Sequence[float | None]) -> float:
    counted = [share for share in shares if share is not None]
    mean = sum(counted) / len(counted) if counted else 0.0
    return visible / 2 if visible < 1 else 0.5 + mean / 2


# --- runs ---------------------------------------------------------------------------------------------------


def _play(runs: Sequence[SuiteRun], workers: int, executor: Executor) -> Iterator[tuple[SuiteRun, RunOutcome]]:
    make = functools.partial(_make_job, runs)
    for job in run_outcomes(make, range(len(runs)), workers=workers, executor=executor):
        yield runs[job.key], RunOutcome(failure=str(job.lost)) if job.lost is not None else job.outcome


def _make_job(runs: Sequence[SuiteRun], number: int, tries: int) -> "_RunTests":
    return _RunTests(runs[number], tries)


class _RunTests(OutcomeJob[int, RunOutcome]):
    """One run of tests."""

    outcome = RunOutcome()

    def __init__(self, run: SuiteRun, number: int) -> None:
        super().__init__(run.number, number)
        self._run = run

    @property
    def name(self) -> str:
        """Id of the task, and number of the run."""
        return f"{self._run.task.task_id}/{self.key}"

    def run(self) -> None:
        """Run the tests. Failures become a result; only the caller's mistakes are raised."""
        run = self._run
        try:
            with SandboxGroup(run.task, run.backend, run.sandbox_options) as group:
                self._open = group
                if self.cancelled:
                    group.close()
                self.outcome = RunOutcome(_find_passed(group, run))
        except (DiffError, GradingError) as error:  # the work keeps the tests from running
            logger.info("no test passed: %s", error, extra=self.ids)
        except (TaskError, SandboxError) as error:
            self.retryable = getattr(error, "retryable", False)
            self.outcome = RunOutcome(failure=f"{type(error).__name__}: {error}")

    def work(self) -> SuiteRun:
        """Return the run as data."""
        return self._run


def _find_passed(group: SandboxGroup, run: SuiteRun) -> frozenset[str]:
    """Return the tests that pass. The sandbox is the policy's: it holds nothing of the hidden tests."""
    sandbox = group.open_sealed()
    apply_diff(sandbox, run.work, what="the work")
    apply_diff(sandbox, run.tests, what="the tests")
    command = run.task.eval_cmd
    if run.tests:
        call = parse_command(run.task.eval_cmd)
        start = f"{call.before}-m {call.module}" if call else "python -m pytest"
        command = f"{start} {shlex.join(_test_files(run.tests))}"
    statuses = find_statuses(run.task, sandbox, command)
    return frozenset(test for test, status in statuses.items() if status is TestStatus.PASSED)
