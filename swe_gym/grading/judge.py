"""The judge: decides on work by runs of its tests, in which counter-tests prove that the runs can be believed.

Two mixed runs, each in a sandbox that has not seen the other. A random half of the tests that must start passing is
changed in the first run, the other half in the second. So each test runs once as it is, where it must pass, and once
changed so that right work must fail it, where it must not pass. Nothing tells the two runs apart.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from ..errors import GradingError, TaskError
from ..sandboxes.base import Sandbox
from ..types import CounterTests, Task, TestStatus, Verdict
from .base import LOG_CHARS, Evaluation, Grader, OpenSandbox, Ready
from .command import parse_command
from .configuration import changed_folder, find_configuration, point_at
from .counter import Counter, CounterPlan, plan_counters
from .counter.finding import Finder
from .matching import match_tests
from .patch import Patch
from .protect import Protection
from .script import with_pytest_options
from .staging import put_in, put_tests_in

NOT_ALL = "not all required tests pass"
"""The reason of a partial verdict: how many failed in the first run is chance."""

ALARM = "a counter-test passed: work that is right fails it"
GOLD_RUNS = 2
"""Runs of the gold patch that confirm an alarm: a test that passes by chance seldom fails in both."""

SETUP_TIMEOUT = 600.0
"""Seconds that an oracle's `setup_cmd` may take."""

FAILED = frozenset({TestStatus.FAILED, TestStatus.ERROR, TestStatus.MISSING})
"""How a counter-test may end."""


@dataclass(frozen=True)
class CounterOptions:
    """How far counter-tests go.

    Attributes:
        everything: Counter all tests that must keep passing, too. By default a few are countered, and only if few tests
            must start passing.
        runs: Mixed runs of work that is resolved; at least 2. Each pair draws its halves anew.
        unfit: Test -> kinds of changes that right work is known to survive, from the record of `swe-gym validate`.
        seed: The source of chance; None draws it afresh, which is what keeps it secret.
    """

    everything: bool = False
    runs: int = 2
    unfit: Mapping[str, Collection[str]] = field(default_factory=dict)
    seed: bytes | None = None


@dataclass(frozen=True)
class Run:
    """One run of the tests.

    Attributes:
        found: How they ended.
        countered: The test functions that were changed.
        files: The changed files: path -> content.
    """

    found: Evaluation
    countered: Sequence[Counter] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether the run timed out, broke off or contradicts itself."""
        return bool(self.found.reason)


class Stage:
    """Brings sandboxes to the point where the tests of a task can run.

    Args:
        task: The task.
        protection: What the task protects from the work.
        open_fresh: Opens further sandboxes of the task.
    """

    def __init__(self, task: Task, protection: Protection, open_fresh: OpenSandbox) -> None:
        self._task = task
        self._protection = protection
        self._open_fresh = open_fresh

    def prepare(self, work: Patch | str, fresh: Sandbox) -> Ready:
        """Put the hidden tests and the work into a fresh sandbox.

        Args:
            work: The part of the policy's work that counts, or the gold patch.
            fresh: A sandbox in which nothing has run.

        Raises:
            GradingError: The task's evaluation script did not reach its tests.
            TaskError: The hidden tests or the gold patch do not apply, or `setup_cmd` failed.
            SandboxError: The sandbox failed.
        """
        self._set_up(fresh)
        put_tests_in(self._task, fresh)  # before the work, which cannot make them fail to apply
        patch = work if isinstance(work, Patch) else Patch()
        folder = changed_folder(patch, self._protection)
        configuration = None if folder is None else find_configuration(fresh, folder)
        ready = put_in(self._task, work, fresh, self._open_fresh)
        options = [] if configuration is None else point_at(configuration, fresh)
        options += self._protection.ignored_folders(patch, fresh.workdir)
        return replace(ready, task=_with_options(ready.task, options, fresh.workdir))

    def _set_up(self, fresh: Sandbox) -> None:
        command = self._task.oracle.setup_cmd
        if not command:
            return
        result = fresh.exec(command.replace("{workdir}", fresh.workdir), timeout=SETUP_TIMEOUT, merge=True)
        if not result.ok:
            said = result.text[-2000:].strip()
            raise TaskError(f"task {self._task.task_id}: its setup_cmd failed ({result.describe()}): {said}")


class Judge:
    """Judges one work by several runs.

    Args:
        task: The task.
        patch: The part of the work that counts.
        grader: Runs the tests and decides.
        stage: Prepares sandboxes.
        open_fresh: Opens further sandboxes.
        complete: Find out how every required test ends, even if the first run shows that the work is not resolved.
        options: How far counter-tests go.
    """

    def __init__(
        self,
        task: Task,
        patch: Patch,
        grader: Grader,
        stage: Stage,
        open_fresh: OpenSandbox,
        *,
        complete: bool,
        options: CounterOptions,
    ) -> None:
        self._task = task
        self._patch = patch
        self._grader = grader
        self._stage = stage
        self._open_fresh = open_fresh
        self._complete = complete
        self._options = options
        self._rng = Random(options.seed or secrets.token_bytes(32))
        self._plan = CounterPlan()
        self._runs: list[Run] = []
        oracle = task.oracle
        passing = [test for test, status in oracle.expected.items() if status is TestStatus.PASSED]
        self._starting = frozenset(oracle.fail_to_pass or passing)
        self._required = frozenset((*oracle.fail_to_pass, *oracle.pass_to_pass, *oracle.expected))

    def judge(self, fresh: Sandbox) -> Verdict:
        """The verdict on the work; `fresh` is used up by the first run."""
        ready = self._stage.prepare(self._patch, fresh)
        self._plan = self._make_plan(fresh)
        halves = self._plan.split(self._rng)
        run = self._tests(ready, fresh, halves[0])
        self._runs.append(run)
        if not self._verdict().resolved:
            refuted = self._refuted(run, halves[1])
            if refuted is not None:
                return refuted
        if run.broken:
            self._runs.remove(run)
            self._add(halves[0], tries=1)
        return self._prove(halves)

    def _refuted(self, run: Run, other: Sequence[Counter]) -> Verdict | None:
        """The verdict on work that the first run speaks against; None if its changes alone made required tests fail.

        A reward for single tests is proven as well: none may pass both as it is and changed.
        """
        if self._falls_short(run) and not run.broken and not self._complete:
            return self._partial_verdict()
        if run.countered:
            plain = self._verdict_as_it_is()
            return None if plain.resolved else self._caught() or plain
        plain = self._verdict()
        if self._complete and other and not run.broken and _passed_some(plain):
            self._add(other)
        return self._caught() or plain

    def _prove(self, halves: tuple[Sequence[Counter], Sequence[Counter]]) -> Verdict:
        """The verdict on work that the first run does not refute."""
        doubtful = False
        for half in (halves[1], *self._further_halves()):
            if half and self._falls_short(self._add(half)):
                if not self._complete:
                    return self._partial_verdict()
                doubtful = True
        verdict = self._verdict()
        if doubtful or (not verdict.resolved and all(run.countered for run in self._runs)):
            verdict = self._verdict_as_it_is()  # a test may only have failed because another one was changed
        return self._caught() or verdict

    def _further_halves(self) -> Iterator[Sequence[Counter]]:
        """The halves of further pairs of runs, in an order that is drawn too."""
        for _ in range(2, self._options.runs, 2):
            halves = list(self._plan.split(self._rng))
            self._rng.shuffle(halves)
            yield from halves

    # --- runs -------------------------------------------------------------------------------------------------

    def _make_plan(self, fresh: Sandbox) -> CounterPlan:
        if not self._grader.counted:
            return CounterPlan()
        return plan_counters(
            Finder(self._task.oracle, fresh, self._patch.paths),
            sorted(self._starting),
            sorted(self._required - self._starting - self._failing_as_expected()),
            self._rng,
            everything=self._options.everything,
            unfit=self._options.unfit,
        )

    def _failing_as_expected(self) -> set[str]:
        return {test for test, status in self._task.oracle.expected.items() if status is not TestStatus.PASSED}

    def _add(self, countered: Sequence[Counter], *, tries: int = 2) -> Run:
        """One more mixed run. One that breaks although the work passes as it is says nothing of the work.

        Raises:
            GradingError: It broke every time.
        """
        for _ in range(tries):
            with self._open_fresh() as fresh:
                run = self._tests(self._stage.prepare(self._patch, fresh), fresh, countered)
            if not run.broken:
                self._runs.append(run)
                return run
        raise GradingError(
            f"task {self._task.task_id}: the tests pass, but the run with counter-tests broke: {run.found.reason}"
        )

    def _verdict_as_it_is(self) -> Verdict:
        """The verdict by a run in which nothing is changed."""
        with self._open_fresh() as fresh:
            self._runs.append(self._tests(self._stage.prepare(self._patch, fresh), fresh, ()))
        return self._verdict(self._runs[-1:])

    def _tests(self, ready: Ready, sandbox: Sandbox, countered: Sequence[Counter]) -> Run:
        files = self._plan.edited_files(countered, self._rng)
        return Run(self._run_with(ready, sandbox, files), countered, files)

    def _run_with(self, ready: Ready, sandbox: Sandbox, files: Mapping[str, bytes]) -> Evaluation:
        for path, content in files.items():
            sandbox.write_file(path, content)
        return self._grader.run(ready, sandbox)

    # --- what they say ----------------------------------------------------------------------------------------

    def _falls_short(self, run: Run) -> bool:
        """Whether a test that must start passing did not, as it is."""
        verdict = self._grader.decide(self._task, self._merged([run]))
        ends = {**verdict.pass_to_pass, **verdict.fail_to_pass}
        return any(ends.get(test) not in (TestStatus.PASSED, TestStatus.NOT_RUN) for test in self._starting)

    def _merged(self, runs: Sequence[Run]) -> Evaluation:
        """The results of several runs: of each test, only those of runs in which it was not changed."""
        ends: dict[str, list[TestStatus]] = {}
        always_changed = set(self._required)
        for run in runs:
            changed = self._plan.changed_tests(run.countered, {*run.found.statuses, *self._required})
            always_changed &= changed
            for test in run.found.statuses.keys() - changed:
                ends.setdefault(test, []).append(run.found.statuses[test])
        statuses = {test: self._best(test, seen) for test, seen in ends.items()}
        statuses |= dict.fromkeys(always_changed, TestStatus.NOT_RUN)
        last = runs[-1].found
        if len(runs) == 1:
            return last.model_copy(update={"statuses": statuses})
        result = last.result.model_copy(
            update={
                "duration": sum(run.found.result.duration for run in runs),
                "stdout": b"\n".join(_log(number, run) for number, run in enumerate(runs, 1)),
            }
        )
        return last.model_copy(update={"statuses": statuses, "result": result})

    def _best(self, test: str, ends: Sequence[TestStatus]) -> TestStatus:
        """A test that ended once as it must did so: in the other run, a changed test may have come in its way."""
        wanted = self._task.oracle.expected.get(test, TestStatus.PASSED)
        return wanted if wanted in ends else ends[-1]

    def _verdict(self, runs: Sequence[Run] = ()) -> Verdict:
        verdict = self._grader.decide(self._task, self._merged(runs or self._runs))
        return verdict.model_copy(update={"counter_tests": self._counter_tests()})

    def _partial_verdict(self) -> Verdict:
        return self._verdict().model_copy(update={"resolved": False, "partial": True, "reason": NOT_ALL})

    def _counter_tests(
        self, alarms: Mapping[str, str] | None = None, unfit: Mapping[str, str] | None = None
    ) -> CounterTests:
        kinds: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for counter in self._plan.counters:
            kinds[counter.starts] |= dict.fromkeys(counter.tests, counter.change.kind)
        return CounterTests(
            kinds=kinds[True],
            kept=kinds[False],
            uncovered=dict(self._plan.uncovered),
            alarms=dict(alarms or {}),
            unfit=dict(unfit or {}),
            runs=len(self._runs),
        )

    # --- alarms -----------------------------------------------------------------------------------------------

    def _caught(self) -> Verdict | None:
        """The verdict on work that passes a test both as it is and changed; None if it passes no test both ways.

        Wrong work may pass a changed test that it fails as it is. Nothing passes both ways unless it changed the judge.
        """
        verdict = self._verdict()
        ends = {**verdict.pass_to_pass, **verdict.fail_to_pass}
        alarms: dict[str, str] = {}
        unfit: dict[str, str] = {}
        for run in self._runs:
            passed = self._passed(run.countered, run.found)
            passed = {test: kind for test, kind in passed.items() if ends.get(test) is TestStatus.PASSED}
            innocent = self._passed_with_gold(run) if passed else {}
            alarms |= {test: kind for test, kind in passed.items() if test not in innocent}
            unfit |= {test: kind for test, kind in passed.items() if test in innocent}
        found = self._counter_tests(alarms, unfit)
        if not alarms:
            return verdict.model_copy(update={"counter_tests": found}) if unfit and verdict.resolved else None
        oracle = self._task.oracle
        return Verdict(
            resolved=False,
            fail_to_pass=dict.fromkeys(oracle.fail_to_pass, TestStatus.MISSING),
            pass_to_pass=dict.fromkeys((*oracle.pass_to_pass, *oracle.expected), TestStatus.MISSING),
            reason=ALARM,
            counter_tests=found,
            **self._merged(self._runs).facts(),
        )

    def _passed(self, countered: Sequence[Counter], found: Evaluation) -> dict[str, str]:
        """The changed tests that did not fail -> how they were changed."""
        passed: dict[str, str] = {}
        for counter in countered:
            for test, status in match_tests(counter.tests, found.statuses).statuses.items():
                if status not in FAILED:
                    passed[test] = counter.change.kind
        return passed

    def _passed_with_gold(self, run: Run) -> dict[str, str]:
        """The same for the gold patch in the place of the work: such changes prove nothing.

        Raises:
            GradingError: The gold patch cannot be judged.
        """
        gold = self._task.oracle.gold_patch
        if not gold:
            return {}
        passed: dict[str, str] = {}
        for _ in range(GOLD_RUNS):
            with self._open_fresh() as fresh:
                found = self._run_with(self._stage.prepare(gold, fresh), fresh, run.files)
            if found.reason:
                raise GradingError(
                    f"task {self._task.task_id}: a counter-test passed, and the gold patch cannot be run to confirm "
                    f"it: {found.reason}"
                )
            passed |= self._passed(run.countered, found)
        return passed


def _passed_some(verdict: Verdict) -> bool:
    return TestStatus.PASSED in verdict.fail_to_pass.values()


def _log(number: int, run: Run) -> bytes:
    """The end of a run's log under a heading."""
    changed = f"{len(run.countered)} test functions changed" if run.countered else "nothing changed"
    return f"===== run {number}: {changed} =====\n{run.found.result.text[-LOG_CHARS // 2 :]}".encode()


def _with_options(task: Task, options: list[str], workdir: str) -> Task:
    """The task, with more options for pytest in its test command and its evaluation script."""
    oracle = task.oracle
    command = parse_command(oracle.test_cmd, workdir)
    if command is not None and command.module == "pytest" and options:
        oracle = oracle.model_copy(update={"test_cmd": command.text(options=options)})
    if oracle.eval_script and options:
        oracle = oracle.model_copy(update={"eval_script": with_pytest_options(oracle.eval_script, options)})
    return task.model_copy(update={"oracle": oracle})
