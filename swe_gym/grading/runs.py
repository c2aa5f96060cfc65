"""Runs of the tests on one work, each in a sandbox that has not seen the others, and their merged results."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ..errors import GradingError
from ..sandboxes.base import Sandbox
from ..types import Oracle, Task, TestStatus
from .base import LOG_CHARS, Grader, Ready, Results
from .counter import Counter, CounterOptions, CounterPlan, plan_counters
from .counter.finding import Finder
from .patch import Patch
from .staging import Stage

Halves = tuple[Sequence[Counter], Sequence[Counter]]

FAST_ENOUGH = 0.5
"""Share of the time limit. If the gold patch takes more, the machine may be to blame for a timeout, not the work."""

GOLD_RUNS = 2
"""Runs of the gold patch that confirm an alarm: a test that passes by chance seldom fails in both."""


@dataclass(frozen=True)
class Run:
    """One run of the tests.

    Attributes:
        results: The results.
        countered: Test functions that were changed.
        files: Test files of the plan, as they ran: path -> content.
    """

    results: Results
    countered: Sequence[Counter] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def timed_out(self) -> bool:
        """Whether the run timed out."""
        return self.results.result.timed_out

    @property
    def broken(self) -> bool:
        """Whether the run timed out, broke off or contradicts itself."""
        return bool(self.results.reason)


class Required:
    """The tests that an oracle requires.

    Attributes:
        starting: Tests that must start passing.
        tests: All required tests.
        keeping: Tests that must keep passing.
        ends: Test -> required status, for those whose status is not `PASSED` for sure.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.ends = oracle.expected
        passing = [test for test, status in oracle.expected.items() if status is TestStatus.PASSED]
        self.starting = frozenset(oracle.fail_to_pass or passing)
        self.tests = frozenset((*oracle.fail_to_pass, *oracle.pass_to_pass, *oracle.expected))
        self.keeping = self.tests - self.starting - (self.ends.keys() - set(passing))

    def best(self, test: str, ends: Sequence[TestStatus]) -> TestStatus:
        """Return the required status if any run shows it: in others, a changed test may have disturbed this one."""
        wanted = self.ends.get(test, TestStatus.PASSED)
        return wanted if wanted in ends else ends[-1]


@dataclass
class Runs:
    """Runs the tests on one work.

    Attributes:
        task: The task.
        patch: The part of the work that counts.
        grader: Runs the tests.
        stage: Prepares sandboxes.
        options: Scope of the counter-tests.
        plan: The counter-tests. Empty before `start`.
        done: The runs so far, oldest first.
        required: The tests that the task requires.
    """

    task: Task
    patch: Patch
    grader: Grader
    stage: Stage
    options: CounterOptions
    plan: CounterPlan = field(default_factory=CounterPlan)
    done: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.required = Required(self.task.oracle)
        self._rng = Random(self.options.seed or secrets.token_bytes(32))

    # --- running ------------------------------------------------------------------------------------------------

    def start(self, fresh: Sandbox) -> tuple[Run, Halves]:
        """Plan the counter-tests and run the first half of them in a fresh sandbox. Return the run and both halves."""
        ready = self.stage.prepare(self.patch, fresh)
        if self.grader.counted:
            self.plan = plan_counters(
                Finder(self.task.oracle, fresh, self.patch.paths),
                sorted(self.required.starting),
                sorted(self.required.keeping),
                self._rng,
                counter=self.options.counter,
                unfit=self.options.unfit,
            )
        halves = self.plan.split(self._rng)
        run = self._run(ready, fresh, halves[0])
        self.done.append(run)
        return run, halves

    def further_halves(self) -> Iterator[Sequence[Counter]]:
        """Return the halves of further pairs of runs, in random order."""
        for _ in range(2, self.options.runs, 2):
            halves = list(self.plan.split(self._rng))
            self._rng.shuffle(halves)
            yield from halves

    def mixed(self, countered: Sequence[Counter], *, tries: int = 2) -> Run:
        """Run with these functions changed. A run that breaks says nothing about work that passes unchanged.

        Raises:
            GradingError: It broke every time.
        """
        for _ in range(tries):
            with self.stage.open_fresh() as fresh:
                run = self._run(self.stage.prepare(self.patch, fresh), fresh, countered)
            if not run.broken:
                self.done.append(run)
                return run
        raise GradingError(
            f"task {self.task.task_id}: the tests pass, but the run with counter-tests broke: {run.results.reason}"
        )

    def unchanged(self) -> Run:
        """Run with nothing changed."""
        with self.stage.open_fresh() as fresh:
            run = self._run(self.stage.prepare(self.patch, fresh), fresh, ())
        self.done.append(run)
        return run

    def check_speed(self) -> None:
        """Run the gold patch, if the task has one, to tell slow work from a slow machine.

        Raises:
            GradingError: The gold patch takes more than `FAST_ENOUGH` of the time limit.
        """
        gold, limit = self.task.oracle.gold_patch, self.task.oracle.timeout
        if not gold:
            return
        with self.stage.open_fresh() as fresh:
            result = self.grader.run(self.stage.prepare(gold, fresh), fresh).result
        if result.timed_out or result.duration > FAST_ENOUGH * limit:
            raise GradingError(
                f"task {self.task.task_id}: the hidden tests timed out, and with the gold patch they take "
                f"{result.duration:.1f} of {limit:g} s now: run fewer episodes at once, or raise the task's `timeout`",
                reason="starved",
            )

    def with_gold(self, run: Run) -> Iterator[Results]:
        """Repeat a run with the gold patch as the work, if the task has one.

        Raises:
            GradingError: The gold patch cannot be judged.
        """
        gold = self.task.oracle.gold_patch
        for _ in range(GOLD_RUNS if gold else 0):
            with self.stage.open_fresh() as fresh:
                results = self._run_with(self.stage.prepare(gold, fresh), fresh, run.files)
            if results.reason:
                raise GradingError(
                    f"task {self.task.task_id}: a counter-test passed, and the gold patch cannot be run to confirm "
                    f"it: {results.reason}"
                )
            yield results

    def _run(self, ready: Ready, sandbox: Sandbox, countered: Sequence[Counter]) -> Run:
        files = self.plan.edited_files(countered, self._rng)
        return Run(self._run_with(ready, sandbox, files), countered, files)

    def _run_with(self, ready: Ready, sandbox: Sandbox, files: Mapping[str, bytes]) -> Results:
        for path, content in files.items():
            sandbox.write_file(path, content)
        return self.grader.run(ready, sandbox)

    # --- merging ------------------------------------------------------------------------------------------------

    def merged(self, runs: Sequence[Run] = ()) -> Results:
        """Merge the results of these runs, or of all. A test's result counts only in runs that did not change it."""
        runs = runs or self.done
        ends: dict[str, list[TestStatus]] = {}
        always_changed = set(self.required.tests)
        for run in runs:
            changed = self.plan.changed_tests(run.countered, {*run.results.statuses, *self.required.tests})
            always_changed &= changed
            for test in run.results.statuses.keys() - changed:
                ends.setdefault(test, []).append(run.results.statuses[test])
        statuses = {test: self.required.best(test, seen) for test, seen in ends.items()}
        statuses |= dict.fromkeys(always_changed, TestStatus.NOT_RUN)
        last = runs[-1].results
        if len(runs) == 1:
            return last.model_copy(update={"statuses": statuses})
        result = last.result.model_copy(
            update={
                "duration": sum(run.results.result.duration for run in runs),
                "stdout": b"\n".join(_log(number, run) for number, run in enumerate(runs, 1)),
            }
        )
        return last.model_copy(update={"statuses": statuses, "result": result})


def _log(number: int, run: Run) -> bytes:
    """The end of a run's log under a heading."""
    changed = f"{len(run.countered)} test functions changed" if run.countered else "nothing changed"
    return f"===== run {number}: {changed} =====\n{run.results.result.text[-LOG_CHARS // 2 :]}".encode()
