"""The judge: decides on work by one run of its tests, in which counter-tests prove that the run can be believed.

Required tests are also played changed, so that right work must fail them: by twins, which are forks of the test
process. Further runs prove what twins cannot play; a coin decides for each function in which of them it is changed.
Whatever contradicts a run of right work is repeated with the gold patch, and does not count if gold shows it too.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from random import Random

from ..errors import FileError, GradingError, TaskError, UsageError
from ..sandboxes import Sandbox
from ..types import CounterTests, ExecResult, JsonObject, Task, TestStatus, Verdict
from . import GRADERS
from .base import LOG_CHARS, Grader, OpenSandbox, PlainGrader, Ready, Results
from .counter import CounterGroup, CounterOptions, CounterPlan, CounterText, plan_counters
from .counter.finding import Finder
from .graders import replace_statuses
from .ids import match_tests
from .patch import Patch
from .probe import known, probe
from .protect import Protection
from .reporter import PlayedText, TwinGroup, TwinOrder
from .staging import FreshSandboxes, Stage

ALARM = "a counter-test passed, which correct work fails"
NOT_IN_TWINS = "{} required tests passed, but not where they were played again, which contradicts the gold patch"
NOT_RUN = "the tests cannot be run with this work, and can without it"
NO_WORK = "there is no work that could change its result"
NOT_PROVEN = "its counter-tests say nothing about the gold patch either"
NOT_PLAYED = "it did not run where tests of its file were changed"

FAILED = frozenset({TestStatus.FAILED, TestStatus.ERROR, TestStatus.MISSING})
"""Statuses that a changed test may have."""

GOLD_RUNS = 2
"""Runs of the gold patch that confirm an alarm: a test that passes by chance seldom fails in both."""

FAST_ENOUGH = 0.5
"""Share of the time limit. If the gold patch takes more, the machine may be to blame for a timeout, not the work."""

RETRY, RETRY_SECONDS = 4.0, 3.0
"""Time limit of the second try after a timeout: this many times the time of the gold patch, plus seconds."""

CUT_OFF = frozenset({"hung", "died"})
"""Errors of twins for which a busy machine may be to blame, not the work."""

MOST_RESTARTS = 2
"""Runs without twins of what they cannot play, as gold shows, before there are no twins at all."""


@dataclass(frozen=True)
class GradedRun:
    """One run of the tests.

    Attributes:
        texts: Number of a group -> its text in the test files. Other groups have the original.
        twins: Numbers of the groups that twins play, in the order of `results.twins`.
        second: Numbers of the groups that it is to prove without twins.
        results: The results.
    """

    texts: Mapping[int, CounterText]
    twins: Sequence[int] = ()
    second: Sequence[int] = ()
    results: Results = field(default_factory=lambda: Results(judge="reporter", result=ExecResult(exit_code=None)))

    def played(self, number: int) -> Mapping[int, PlayedText]:
        """Return the ends of a group's twins: number of the text -> end."""
        return self.results.twins.get(self.twins.index(number), {}) if number in self.twins else {}

    @property
    def unsettled(self) -> set[int]:
        """Groups into whose functions the session could not put the original."""
        return {self.twins[place] for place in self.results.unsettled if 0 <= place < len(self.twins)}


@dataclass(frozen=True)
class Doubts:
    """What a run shows that a run of right work does not.

    Attributes:
        passed: Test that passed changed -> kinds of the change.
        failed: Test whose original failed where twins or a second run played it -> number of its group.
    """

    passed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.passed or self.failed)

    def split(self, other: Doubts) -> tuple[Doubts, Doubts]:
        """Return the doubts that `other` does not share, and those that it does."""
        alone = Doubts(
            {test: kinds for test, kinds in self.passed.items() if test not in other.passed},
            {test: number for test, number in self.failed.items() if test not in other.failed},
        )
        shared = Doubts(
            {test: kinds for test, kinds in self.passed.items() if test in other.passed},
            {test: number for test, number in self.failed.items() if test in other.failed},
        )
        return alone, shared


@dataclass
class Judge:
    """Judges one work.

    Attributes:
        task: The task.
        patch: The part of the work that counts.
        grader: Runs the tests and decides.
        stage: Prepares sandboxes.
        complete: Find the status of every required test, not only whether all pass.
        options: Scope of the counter-tests.
        plan: The counter-tests. Empty before `judge`.
        runs: The runs on the work so far, oldest first.
    """

    task: Task
    patch: Patch
    grader: Grader
    stage: Stage
    complete: bool
    options: CounterOptions
    plan: CounterPlan = field(default_factory=CounterPlan)
    runs: list[GradedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        oracle = self.task.oracle
        passing = {test for test, status in oracle.expected.items() if status is TestStatus.PASSED}
        self._starting = set(oracle.fail_to_pass) or passing
        self._keeping = {*oracle.pass_to_pass, *passing} - self._starting
        self._plain = GradedRun({})
        self._whole: Results | None = None  # of the first run, while the plan holds only what is proven once more
        self._kept: tuple[CounterGroup, ...] = ()  # what that run proved
        self._learned: set[str] = set()  # tests whose originals something gave away
        self._rng = Random(self.options.seed or secrets.token_bytes(32))
        self._alarms: dict[str, str] = {}
        self._unfit: dict[str, str] = {}
        self._refuted: set[str] = set()
        self._unproven: dict[str, str] = {}  # test -> why
        self._repeated = False

    def judge(self, fresh: Sandbox) -> Verdict:
        """Return the verdict on the work. The first run uses up `fresh`.

        Raises:
            GradingError: No verdict is possible, and the work is not to blame.
            SandboxError: A sandbox failed.
        """
        if not self._starting <= self.options.passing.keys():
            found = known(self.task, fresh.image_digest)
            self.options = self.options.knowing(found.passing, found.returned)
        try:
            return self._judge(fresh)
        except (GradingError, FileError) as error:  # work may fill the disk, or take folders away
            if isinstance(error, GradingError) and error.reason != "unknown":  # gold has shown: it is the machine
                raise
        self._run_without_work()
        self._whole, self._kept = None, ()  # what was found stays: work could break off where it is about to lose
        try:
            with self.stage.open_fresh() as again:
                return self._judge(again)
        except (GradingError, FileError) as error:
            if isinstance(error, GradingError) and error.reason != "unknown":
                raise
            return self._refusal(NOT_RUN).model_copy(update={"log": str(error)[-LOG_CHARS:]})

    def _judge(self, fresh: Sandbox) -> Verdict:
        self._run_first(fresh)
        if self._learns() and not self._run_alone():
            with self.stage.open_fresh() as again:
                self._run_first(again)
        if self._may_earn():
            self._prove_again()
        return self._refusal(ALARM) if self._alarms else self._verdict()

    def _run_without_work(self) -> None:
        """Run the tests with the gold patch, or with nothing if there is none: work may have kept them from running.

        Raises:
            GradingError: They cannot be run either.
        """
        with self.stage.open_fresh() as fresh:
            ready = self.stage.prepare(self.task.oracle.gold_patch or Patch(), fresh)
            results = self._run(ready, fresh, GradedRun({}), stops=False).results
        if results.result.timed_out:
            raise GradingError(f"task {self.task.task_id}: {results.reason}")

    # --- first runs ---------------------------------------------------------------------------------------------

    def _run_first(self, fresh: Sandbox) -> None:
        """Plan the counter-tests, run the tests, and check the run."""
        self._play(fresh)
        restarts = 0
        while unforkable := self._check(self._plain):
            restarts += 1
            self._again(unforkable if restarts < MOST_RESTARTS else range(len(self.plan.groups)))

    def _learns(self) -> bool:
        """Find out what the untouched repository passes, if the work may earn a reward by passing more.

        Returns:
            Whether that gave an original away, so that the work must be judged again, by other texts.
        """
        numbers = [number for number, group in enumerate(self.plan.groups) if group.starts and group.forks]
        tests = {test for number in numbers for test in self.plan.groups[number].tests}
        ends = self._ends()
        if tests <= self.options.passing.keys() or not self._may_earn():
            return False
        if not any(ends[test] is TestStatus.PASSED for test in tests & self._starting):
            return False
        timeout = min(self.task.oracle.timeout, RETRY * self._plain.results.result.duration + RETRY_SECONDS)
        found = probe(self.task, self.plan, self.grader, self.stage, timeout)
        self.options = replace(
            self.options.knowing(found.passing, found.returned),
            unfit={**self.options.unfit, **{test: kinds.split("+") for test, kinds in self._unfit.items()}},
            unforkable={*self.options.unforkable, *self._unforkable()},
        )
        self._learned = {*found.returned, *(test for test, lines in found.passing.items() if lines)}
        return bool(self._learned)

    def _run_alone(self) -> bool:
        """Judge the functions of which something was learned once more, by other texts and without the other tests.

        Returns:
            Whether that decides. It does not if a test that passed among the others fails alone.
        """
        numbers = [
            number
            for number, group in enumerate(self.plan.groups)
            if not (group.starts and self._learned.intersection(group.tests))
        ]
        if not all(self._is_proven(number) for number in numbers):
            return False
        self._whole, self._kept = self._plain.results, tuple(self.plan.groups[number] for number in numbers)
        passed = {test for test, status in self._ends().items() if status is TestStatus.PASSED} & self._starting
        with self.stage.open_fresh() as fresh:
            self._run_first(fresh)
        ends = match_tests(sorted(passed), {} if self._plain.results.reason else self._plain.results.statuses).statuses
        if self._alarms or self._refuted or all(status is TestStatus.PASSED for status in ends.values()):
            return True
        self._whole, self._kept = None, ()
        return False

    def _play(self, fresh: Sandbox) -> None:
        """Plan the counter-tests and run the tests. All files are read before code of the work runs."""
        ready = self.stage.prepare(self.patch, fresh)
        if not self.patch.changes:
            self.plan = CounterPlan(uncovered=dict.fromkeys(sorted(self._starting), NO_WORK))
        elif self.grader.counted:
            self.plan = self._plan(fresh, forks=ready.plan.runner is not None)
        self._play_planned(ready, fresh)
        run = self.runs[-1]
        if not run.results.forked:
            self._again(range(len(self.plan.groups)))
            if self._may_earn() and self._forks_with_gold(run):
                raise GradingError(f"task {self.task.task_id}: the reporter cannot run its tests with this work")

    def _forks_with_gold(self, run: GradedRun) -> bool:
        """Whether the reporter can run the tests with the gold patch: only gold selects a weaker proof."""
        gold = self.task.oracle.gold_patch
        if not gold:
            return False
        with self.stage.open_fresh() as fresh:
            return self._run(self.stage.prepare(gold, fresh), fresh, run).results.forked

    def _play_planned(self, ready: Ready, fresh: Sandbox) -> None:
        """Run the tests as planned."""
        run = self._with_twins(ready, fresh)
        if run.results.result.timed_out:
            run = self._retry_timeout(run)
        self._keep(run)

    def _again(self, unforkable: Collection[int]) -> None:
        """Run the tests once more, without twins of these groups."""
        self.plan = self.plan.unforked(unforkable)
        with self.stage.open_fresh() as fresh:
            self._play_planned(self.stage.prepare(self.patch, fresh), fresh)

    def _keep(self, run: GradedRun) -> None:
        """Store the run whose session played every test as it is; if the first one did, with what is new."""
        self.runs.append(run)
        if self._whole is not None:
            now = run.results
            new = {"reason": now.reason, "twins": now.twins, "unsettled": now.unsettled, "forked": now.forked}
            statuses = {**self._whole.statuses, **self._ends(run)}
            run = replace(run, results=self._whole.model_copy(update={**new, "statuses": statuses}))
        self._plain = run

    def _plan(self, fresh: Sandbox, *, forks: bool) -> CounterPlan:
        finder = Finder(self.task.oracle, fresh, self.patch.paths)
        starting, keeping = self._starting, self._keeping
        uncovered: Mapping[str, str] = {}
        if self._whole is not None:
            uncovered = self.plan.uncovered
            tests = {test for group in self.plan.groups if group not in self._kept for test in group.tests}
            starting, keeping = starting & tests, keeping & tests
        issue = self.task.problem_statement
        plan = plan_counters(finder, sorted(starting), sorted(keeping), self._rng, self.options, issue)
        plan = replace(plan, uncovered={**uncovered, **plan.uncovered})
        return plan if forks else plan.unforked(range(len(plan.groups)))

    def _with_twins(self, ready: Ready, sandbox: Sandbox) -> GradedRun:
        """Run with twins. Files hold another text of each function that has twins: reading them tells nothing."""
        twins = [number for number, group in enumerate(self.plan.groups) if group.forks]
        covers = {number: self.plan.groups[number].cover for number in twins}
        return self._run(ready, sandbox, GradedRun(covers, twins))

    def _run(self, ready: Ready, sandbox: Sandbox, planned: GradedRun, *, stops: bool = True) -> GradedRun:
        """Carry out a planned run."""
        for path, content in self.plan.files(planned.texts).items():
            sandbox.write_file(path, content)
        order = self._order(planned, stops=stops and not self.complete)
        try:
            results = self.grader.run(replace(ready, twins=order), sandbox)
        except GradingError as error:
            if error.reason != "unknown" or not self._is_foreign(*planned.texts):
                raise
            said = ExecResult(exit_code=None, stdout=str(error).encode())  # a changed text may not compile
            results = Results(judge="log", result=said)
        return replace(planned, results=results)

    def _is_foreign(self, *numbers: int) -> bool:
        """Whether a test of these groups is in another language: a changed text may keep its file from running."""
        paths = [place.path for number in numbers for place in self.plan.groups[number].places]
        return not self.plan.foreign.keys().isdisjoint(paths)

    def _order(self, planned: GradedRun, *, stops: bool) -> TwinOrder:
        plan = self.plan
        twins = [(number, plan.groups[number]) for number in planned.twins]
        alone = planned.second or range(len(plan.groups) if self._whole is not None else 0)
        selects = alone and not any(plan.is_nested(number) for number in alone)
        only = [place for number in alone for place in plan.groups[number].places]
        groups = []
        for number, group in twins:
            plain, *texts = plan.snippets(number, (group.original, *group.rows))
            groups.append(
                TwinGroup(
                    places=group.places,
                    callers=plan.callers(number),
                    required=group.tests,
                    texts=tuple(texts),
                    plain=plain,
                    passing=group.passing,
                )
            )
        return TwinOrder(groups=tuple(groups), stops=stops, only=tuple(only) if selects else None)

    def _retry_timeout(self, run: GradedRun) -> GradedRun:
        """Tell slow work from a slow machine by the gold patch, and give the work a second, shorter try.

        Raises:
            GradingError: The gold patch takes more than `FAST_ENOUGH` of the time limit.
        """
        gold, limit = self.task.oracle.gold_patch, self.task.oracle.timeout
        if not gold or self._has_lost(run):
            return run
        with self.stage.open_fresh() as fresh:
            result = self._run(self.stage.prepare(gold, fresh), fresh, run).results.result
        if result.timed_out or result.duration > FAST_ENOUGH * limit:
            raise GradingError(
                f"task {self.task.task_id}: the hidden tests timed out, and with the gold patch they take "
                f"{result.duration:.1f} of {limit:g} s now: run fewer episodes at once, or raise the task's `timeout`",
                reason="starved",
            )
        shorter = min(limit, RETRY * result.duration + RETRY_SECONDS)
        with self.stage.open_fresh() as fresh:
            return self._with_twins(replace(self.stage.prepare(self.patch, fresh), timeout=shorter), fresh)

    def _has_lost(self, run: GradedRun) -> bool:
        """Whether an original failed or a changed text passed in a twin, before the run timed out."""
        for number in run.twins:
            group = self.plan.groups[number]
            for text, end in run.played(number).items():
                ends = match_tests(group.tests, end.statuses).statuses.values()
                passed = any(status is TestStatus.PASSED for status in ends)
                if not end.error and passed is not (text in group.passing):
                    return True
        return False

    # --- second runs --------------------------------------------------------------------------------------------

    def _prove_again(self) -> None:
        """Run the tests that no twin proved. A coin decides for each function in which run it is changed.

        What one pair of runs proves stays proven, whatever another one misses.
        """
        numbers = [number for number in range(len(self.plan.groups)) if not self._is_proven(number)]
        unproven: dict[str, str] = {}
        proven: set[str] = set()
        for _ in range(1, self.options.runs if numbers else 1):
            changed = {number: self.plan.groups[number].changed(self._rng) for number in numbers}
            now = {number: row for number, row in changed.items() if self._rng.random() < 0.5}
            later = {number: row for number, row in changed.items() if number not in now}
            self._unproven = {}
            for texts in (now, later) if later else (now,):
                self._check(self._run_further(GradedRun(texts, second=numbers)))
            proven |= {test for number in numbers for test in self.plan.groups[number].tests} - self._unproven.keys()
            unproven |= self._unproven
        self._unproven = {test: why for test, why in unproven.items() if test not in proven}

    def _run_further(self, planned: GradedRun) -> GradedRun:
        """Carry out a run without twins, in a fresh sandbox, and store it."""
        with self.stage.open_fresh() as fresh:
            run = self._run(self.stage.prepare(self.patch, fresh), fresh, planned)
        self.runs.append(run)
        return run

    def _is_proven(self, number: int) -> bool:
        """Whether twins played all texts of a group."""
        played = self._plain.played(number)
        return len(played) == len(self.plan.groups[number].rows) and not any(map(attrgetter("error"), played.values()))

    # --- doubts -------------------------------------------------------------------------------------------------

    def _check(self, run: GradedRun, failed: Collection[str] | None = None) -> set[int]:
        """Look for what contradicts a run of right work, and confirm it with the gold patch.

        Work whose twins were cut off, or whose originals failed in a further run, runs once more, with the same texts:
        other texts would be another chance to guess.

        Args:
            run: The run.
            failed: The tests whose originals failed in the run that it repeats; only these can fail in both.

        Returns:
            The groups that twins cannot play with the gold patch either.
        """
        changed = [tests for number, tests in self._missing(run).items() if number in run.texts]
        self._unproven |= dict.fromkeys(self._unplayed(run).union(*changed), NOT_PLAYED)
        doubts = self._doubts_of_work(run)
        if not doubts or not self._may_earn(doubts.failed):
            return set()
        confirmed, shared = self._confirm(run, doubts)
        if confirmed.failed and not confirmed.passed and self._is_cut_off(run) and not self._repeated:
            self._repeated = True
            self._again(())
            return self._check(self._plain)
        self._alarms |= {test: "+".join(kinds) for test, kinds in confirmed.passed.items()}
        self._unfit |= {test: "+".join(kinds) for test, kinds in shared.passed.items()}
        if run.second:
            silent = set().union(*self._missing(run).values())
            self._unproven |= {test: NOT_PLAYED if test in silent else NOT_PROVEN for test in shared.failed}
        if confirmed.failed and not confirmed.passed and run.second and not self._repeated:
            self._repeated = True
            self._check(self._run_further(run), confirmed.failed)
            return set()
        self._refuted |= confirmed.failed.keys() if failed is None else confirmed.failed.keys() & failed
        return set(shared.failed.values()) if run.twins and self._may_earn(shared.failed) else set()

    def _doubts_of_work(self, run: GradedRun) -> Doubts:
        """The doubts about tests that passed where they were to be played as they are."""
        doubts = self._doubts(run)
        passing = {test for test, status in self._ends().items() if status is TestStatus.PASSED}
        passing |= {test for number in run.unsettled for test in self.plan.groups[number].tests}
        return doubts.split(Doubts(dict.fromkeys(passing, ()), dict.fromkeys(passing, 0)))[1]

    def _doubts(self, run: GradedRun, *, gold: bool = False) -> Doubts:
        passed: dict[str, tuple[str, ...]] = {}
        failed: dict[str, int] = {}
        unsettled = run.unsettled
        shaken = {number for number in run.twins if number in unsettled or self._is_shaken(run, number)}
        lost = any(map(run.played, shaken))
        for number in run.twins:
            group, played = self.plan.groups[number], run.played(number)
            judged = gold or self.complete or played or not lost or number in unsettled
            if judged and number in shaken:
                failed |= dict.fromkeys(group.tests, number)
            for text, end in played.items():
                if not FAILED.issuperset(end.statuses.values()):
                    passed |= _passing(group.tests, group.rows[text], end.statuses)
        unplayed = () if gold else self._unplayed(run)
        for number in run.second:
            group = self.plan.groups[number]
            ends = self._match(group.tests, run.results)
            if number in run.texts:
                passed |= _passing(group.tests, run.texts[number], ends)
            else:
                missed = {test for test, status in ends.items() if status is not TestStatus.PASSED}
                failed |= dict.fromkeys(missed.difference(unplayed), number)
        return Doubts(passed, failed)

    def _missing(self, run: GradedRun) -> dict[int, set[str]]:
        """The tests of each group of a further run that did not run in it."""
        missing: dict[int, set[str]] = {}
        for number in run.second:
            ends = self._match(self.plan.groups[number].tests, run.results)
            missing[number] = {test for test, status in ends.items() if status is TestStatus.MISSING}
        return missing

    def _unplayed(self, run: GradedRun) -> set[str]:
        """Tests in other languages that a further run misses because a changed text may have kept them from running."""
        missing = {number: tests for number, tests in self._missing(run).items() if self._is_foreign(number)}
        changed = any(missing[number] for number in missing.keys() & run.texts.keys())
        return set().union(*missing.values()) if changed else set()

    def _is_shaken(self, run: GradedRun, number: int) -> bool:
        """Whether a text that right work passes did not pass in its twin, or a text could not be played."""
        group, played = self.plan.groups[number], run.played(number)
        if any(map(attrgetter("error"), played.values())) or not played.keys() >= {*group.passing}:
            return True
        ends = [match_tests(group.tests, played[text].statuses).statuses for text in group.passing]
        return any(status is not TestStatus.PASSED for statuses in ends for status in statuses.values())

    def _is_cut_off(self, run: GradedRun) -> bool:
        """Whether twins hung or died, and none of the others contradicts right work."""
        ends = (end for number in run.twins for end in run.played(number).values())
        return any(end.error in CUT_OFF for end in ends) and not self._has_lost(run)

    def _confirm(self, run: GradedRun, doubts: Doubts) -> tuple[Doubts, Doubts]:
        """Repeat a run with the gold patch. Return the doubts that gold does not share, and those that it does.

        Without a gold patch, a changed test that passed counts, and an original that failed does not.

        Raises:
            GradingError: The gold patch cannot be judged.
        """
        gold, confirmed = self.task.oracle.gold_patch, doubts
        if not gold:
            return Doubts(passed=doubts.passed), Doubts(failed=doubts.failed)
        for _ in range(GOLD_RUNS if doubts.passed else 1):
            with self.stage.open_fresh() as fresh:
                again = self._run(self.stage.prepare(gold, fresh), fresh, run, stops=False)
            unread = self._is_foreign(*run.texts) and not again.results.result.timed_out
            if again.results.reason and doubts.passed and not unread:
                raise GradingError(
                    f"task {self.task.task_id}: a counter-test passed, and the gold patch cannot be run to confirm "
                    f"it: {again.results.reason}",
                    reason="unconfirmed",
                )
            confirmed, _ = confirmed.split(self._doubts(again, gold=True))
        return confirmed, doubts.split(confirmed)[0]

    # --- verdicts -----------------------------------------------------------------------------------------------

    def _ends(self, run: GradedRun | None = None) -> dict[str, TestStatus]:
        """Status of each test of the plan in the session of a run, by default the run of tests as they are."""
        tests = {test for group in self.plan.groups for test in group.tests}
        return self._match(sorted(tests), (run or self._plain).results)

    def _match(self, tests: Sequence[str], results: Results) -> dict[str, TestStatus]:
        """Status of each of these tests, as the grader decides: a log may name failed tests only."""
        ends = match_tests(tests, {} if results.reason else results.statuses).statuses
        silent = self.task.oracle.fails_only and results.ran and not results.reason
        return replace_statuses(ends, {TestStatus.MISSING: TestStatus.PASSED}) if silent else ends

    def _may_earn(self, passing: Collection[str] = ()) -> bool:
        """Whether the work may earn a reward, if these tests pass too."""
        if self._alarms:
            return False
        verdict = self._verdict(passing)
        ends = {**verdict.pass_to_pass, **verdict.fail_to_pass}
        return verdict.resolved or (self.complete and TestStatus.PASSED in ends.values())

    def _verdict(self, passing: Collection[str] = ()) -> Verdict:
        results = self._plain.results
        statuses = dict(results.statuses) | dict.fromkeys(passing, TestStatus.PASSED)
        statuses |= dict.fromkeys(self._refuted, TestStatus.FAILED)
        verdict = self.grader.decide(self.task, results.model_copy(update={"statuses": statuses}))
        facts = {**self._facts(), "counter_tests": self._counter_tests()}
        if self._refuted and not passing:
            facts["reason"] = NOT_IN_TWINS.format(len(self._refuted))
        return verdict.model_copy(update=facts)

    def _refusal(self, reason: str) -> Verdict:
        """The verdict on work of which nothing counts."""
        oracle = self.task.oracle
        verdict = Verdict(
            resolved=False,
            fail_to_pass=dict.fromkeys(oracle.fail_to_pass, TestStatus.MISSING),
            pass_to_pass=dict.fromkeys((*oracle.pass_to_pass, *oracle.expected), TestStatus.MISSING),
            reason=reason,
            counter_tests=self._counter_tests(),
            **self._plain.results.facts(),
        )
        return verdict.model_copy(update=self._facts())

    def _facts(self) -> JsonObject:
        """Duration and log of all runs."""
        if len(self.runs) == 1:
            return {}
        logs = [
            f"===== run {number} =====\n{run.results.result.text[-LOG_CHARS // 2 :]}"
            for number, run in enumerate(self.runs, 1)
        ]
        return {"duration": sum(run.results.result.duration for run in self.runs), "log": "\n".join(logs)}

    def _unforkable(self) -> set[str]:
        """Tests that forks cannot play."""
        return {test for group in self.plan.groups if not group.forks for test in group.tests}

    def _counter_tests(self) -> CounterTests:
        starting = self._starting
        kinds: dict[str, str] = {}
        texts: dict[str, int] = {}
        for group in (*self.plan.groups, *self._kept):
            tests = [test for test in group.tests if test not in self._unproven]
            texts |= dict.fromkeys(tests, group.effective if group.forks else min(2, group.effective))
            kinds |= dict.fromkeys(tests, group.kind)
        return CounterTests(
            kinds={test: kind for test, kind in kinds.items() if test in starting},
            kept={test: kind for test, kind in kinds.items() if test not in starting},
            texts=texts,
            uncovered={
                **self.plan.uncovered,
                **{test: why for test, why in self._unproven.items() if test in starting},
            },
            unforkable=tuple(sorted(self._unforkable())),
            passing={test: tuple(lines) for test, lines in self.options.passing.items() if test in texts},
            returned={test: dict(values) for test, values in self.options.returned.items() if test in texts},
            alarms=self._alarms,
            unfit=self._unfit,
            runs=len(self.runs),
        )


def _passing(tests: Sequence[str], row: CounterText, statuses: Mapping[str, TestStatus]) -> dict[str, tuple[str, ...]]:
    """The tests that passed in a changed text -> kinds of its changes."""
    if not row.kinds:
        return {}
    ends = match_tests(tests, statuses).statuses
    return {test: row.kinds for test, status in ends.items() if status not in FAILED}


def grade(
    task: Task,
    patch: Patch,
    fresh: Sandbox,
    open_fresh: OpenSandbox,
    *,
    complete: bool = True,
    counter: CounterOptions | None = None,
) -> Verdict:
    """Judge a policy's work by a task's hidden tests.

    Args:
        task: The task that it worked on.
        patch: The work, as `take_patch` returns it.
        fresh: A new sandbox of the task, in which nothing has run. Grading uses it up.
        open_fresh: Opens further sandboxes like it, one at a time: `with open_fresh() as sandbox`.
        complete: Find the status of every required test. If False, grading stops after a first run that shows the work
            to be unresolved, and tests that ran only changed are `not_run`. Rewards that read only `resolved` need no
            more.
        counter: Scope of the counter-tests.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame; or the task is judged in place.
        TaskError: The task's hidden tests do not apply, or its grader is unknown.
        SandboxError: A sandbox failed.
    """
    oracle = task.oracle
    if oracle.in_place:
        raise GradingError(f"task {task.task_id} is judged in the policy's sandbox: a patch does not hold its work")
    try:
        grader: Grader | PlainGrader = GRADERS.load(oracle.grader)
    except UsageError as error:
        raise TaskError(f"task {task.task_id}: {error}") from error
    protection = Protection(task)
    patch, dropped = protection.sift(patch)
    if patch.rejected:
        return Verdict(
            resolved=False,
            fail_to_pass=dict.fromkeys(oracle.fail_to_pass, TestStatus.MISSING),
            pass_to_pass=dict.fromkeys(oracle.pass_to_pass, TestStatus.MISSING),
            reason=patch.rejected,
            dropped=dropped,
        )
    stage = Stage(task, protection, FreshSandboxes(fresh, open_fresh).open)
    if isinstance(grader, Grader):
        judge = Judge(task, patch, grader, stage, complete=complete, options=counter or CounterOptions())
        verdict = judge.judge(fresh)
    else:
        verdict = grader(_prepared_task(stage.prepare(patch, fresh)), fresh)
    return verdict.model_copy(update={"dropped": tuple(sorted({*dropped, *verdict.dropped}))})


def _prepared_task(ready: Ready) -> Task:
    """The task for a grader of the user's own: the preparation of its script has run, only the tests are left."""
    field = "eval_script" if ready.task.oracle.eval_script else "test_cmd"
    return ready.task.model_copy(update={"oracle": ready.task.oracle.model_copy(update={field: ready.command})})
