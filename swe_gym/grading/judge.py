"""The judge: decides on work by runs of its tests, in which counter-tests prove that the runs can be believed.

Two mixed runs take place, each in a sandbox that has not seen the other. A random half of the tests that must start
passing is changed in the first run, the other half in the second. So each test runs once unchanged, where it must pass,
and once changed so that right work must fail it. Nothing tells the two runs apart.
"""

from collections.abc import Sequence

from ..sandboxes.base import Sandbox
from ..types import CounterTests, Task, TestStatus, Verdict
from .base import Grader, Results
from .counter import Counter, CounterOptions
from .matching import match_tests
from .patch import Patch
from .runs import Halves, Run, Runs
from .staging import Stage

NOT_ALL = "not all required tests pass"
"""The reason of a partial verdict. The number of tests that failed in the first run is chance."""

ALARM = "a counter-test passed: work that is right fails it"

FAILED = frozenset({TestStatus.FAILED, TestStatus.ERROR, TestStatus.MISSING})
"""Statuses that a counter-test may have."""


class Judge:
    """Judges one work by several runs.

    Args:
        task: The task.
        patch: The part of the work that counts.
        grader: Runs the tests and decides.
        stage: Prepares sandboxes.
        complete: Find the status of every required test, even if the first run shows that the work is not resolved.
        options: Scope of the counter-tests.
    """

    def __init__(
        self, task: Task, patch: Patch, grader: Grader, stage: Stage, *, complete: bool, options: CounterOptions
    ) -> None:
        self._task = task
        self._grader = grader
        self._complete = complete
        self._runs = Runs(task, patch, grader, stage, options)

    def judge(self, fresh: Sandbox) -> Verdict:
        """Return the verdict on the work. The first run uses up `fresh`."""
        run, halves = self._runs.start(fresh)
        if run.timed_out:
            fresh.close()  # nothing of the work may slow the gold patch down
            self._runs.check_speed()
        if not self._verdict().resolved:
            refuted = self._refuted(run, halves[1])
            if refuted is not None:
                return refuted
        if run.broken:
            self._runs.done.remove(run)
            if halves[0]:
                self._runs.mixed(halves[0], tries=1)
        return self._prove(halves)

    def _refuted(self, run: Run, other: Sequence[Counter]) -> Verdict | None:
        """The verdict on work that fails the first run; None if required tests fail only because others were changed.

        A reward for single tests is proven too: no test may pass both unchanged and changed.
        """
        if self._falls_short(run) and not run.broken and not self._complete:
            return self._partial_verdict()
        if run.countered or run.timed_out:
            plain = self._verdict_unchanged()
            return None if plain.resolved else self._caught() or plain
        plain = self._verdict()
        if self._complete and other and not run.broken and TestStatus.PASSED in plain.fail_to_pass.values():
            self._runs.mixed(other)
        return self._caught() or plain

    def _prove(self, halves: Halves) -> Verdict:
        """The verdict on work that the first run does not refute."""
        doubtful = False
        for half in (halves[1], *self._runs.further_halves()):
            if half and self._falls_short(self._runs.mixed(half)):
                if not self._complete:
                    return self._partial_verdict()
                doubtful = True
        verdict = self._verdict()
        if doubtful or (not verdict.resolved and all(run.countered for run in self._runs.done)):
            verdict = self._verdict_unchanged()  # a changed test may have made another one fail
        return self._caught() or verdict

    # --- verdicts -----------------------------------------------------------------------------------------------

    def _verdict(self, runs: Sequence[Run] = ()) -> Verdict:
        verdict = self._grader.decide(self._task, self._runs.merged(runs))
        return verdict.model_copy(update={"counter_tests": self._counter_tests()})

    def _verdict_unchanged(self) -> Verdict:
        """The verdict of one more run, in which nothing is changed."""
        return self._verdict([self._runs.unchanged()])

    def _partial_verdict(self) -> Verdict:
        return self._verdict().model_copy(update={"resolved": False, "partial": True, "reason": NOT_ALL})

    def _falls_short(self, run: Run) -> bool:
        """Whether a test that must start passing did not pass unchanged."""
        ends = _ends(self._verdict([run]))
        passing = (TestStatus.PASSED, TestStatus.NOT_RUN)
        return any(ends.get(test) not in passing for test in self._runs.required.starting)

    def _counter_tests(self, **found: dict[str, str]) -> CounterTests:
        kinds: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for counter in self._runs.plan.counters:
            kinds[counter.starts] |= dict.fromkeys(counter.tests, counter.change.kind)
        return CounterTests(
            kinds=kinds[True],
            kept=kinds[False],
            uncovered=dict(self._runs.plan.uncovered),
            runs=len(self._runs.done),
            **found,
        )

    # --- alarms -------------------------------------------------------------------------------------------------

    def _caught(self) -> Verdict | None:
        """The verdict on work that passes a test both unchanged and changed; None if it passes no test both ways.

        Wrong work may pass a changed test that it fails unchanged. Only work that changed the judge passes both.
        """
        verdict = self._verdict()
        ends = _ends(verdict)
        alarms: dict[str, str] = {}
        unfit: dict[str, str] = {}
        for run in self._runs.done:
            passed = _passed(run.countered, run.results)
            passed = {test: kind for test, kind in passed.items() if ends.get(test) is TestStatus.PASSED}
            innocent: set[str] = set()
            for results in self._runs.with_gold(run) if passed else ():
                innocent |= _passed(run.countered, results).keys()
            alarms |= {test: kind for test, kind in passed.items() if test not in innocent}
            unfit |= {test: kind for test, kind in passed.items() if test in innocent}
        found = self._counter_tests(alarms=alarms, unfit=unfit)
        if not alarms:
            return verdict.model_copy(update={"counter_tests": found}) if unfit and verdict.resolved else None
        oracle = self._task.oracle
        return Verdict(
            resolved=False,
            fail_to_pass=dict.fromkeys(oracle.fail_to_pass, TestStatus.MISSING),
            pass_to_pass=dict.fromkeys((*oracle.pass_to_pass, *oracle.expected), TestStatus.MISSING),
            reason=ALARM,
            counter_tests=found,
            **self._runs.merged().facts(),
        )


def _ends(verdict: Verdict) -> dict[str, TestStatus]:
    return {**verdict.pass_to_pass, **verdict.fail_to_pass}


def _passed(countered: Sequence[Counter], results: Results) -> dict[str, str]:
    """The changed tests that did not fail -> kind of their change."""
    passed: dict[str, str] = {}
    for counter in countered:
        for test, status in match_tests(counter.tests, results.statuses).statuses.items():
            if status not in FAILED:
                passed[test] = counter.change.kind
    return passed
