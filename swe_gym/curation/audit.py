"""Audits tasks: whether their tests are stable, strong and fair, and whether the solution is out of reach."""

import dataclasses
import functools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ..envs import SandboxGroup
from ..errors import (
    DiffError,
    GradingError,
    MissingInterpreter,
    SandboxClosed,
    SandboxError,
    TaskError,
    UsageError,
    quantify,
)
from ..files import append_lines, read_models
from ..grading import CounterOptions, apply_diff, hidden_files, parse_id, run_plainly
from ..rollout import DriverLink, OutcomeJob, run_outcomes, without_secrets
from ..rollout.executors import open_executor
from ..sandboxes import Sandbox
from ..tasks import TaskSource, digest
from ..types import Frozen, Json, JsonObject, Oracle, Task, TestStatus, Verdict
from .audit_checks import (
    Asked,
    find_asked,
    find_copies,
    find_in_history,
    find_unmentioned,
    put_in_tests,
    quoted_share,
    read_files,
)
from .audit_variants import ChangedFile, Variant, break_hunk, make_variants, split_sections
from .hardening import (
    NOTES,
    Copy,
    Seen,
    choose_tests,
    find_originals,
    make_copies,
    put_tests,
    read_notes,
    write_notes,
    write_tests,
)
from .validation import check_unchanged, identify, judge_diff

logger = logging.getLogger(__name__)

YEAR, HOUR = 400 * 86_400, 3_600
"""Seconds that the clock is fast in a run, and in its check. A test that both break compares other times with it."""

ELSEWHERE = "/srv/another/place"
"""Folder of the workspace, in a run."""

ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SOMEBODY = {"LOGNAME": "somebody", "USER": "somebody", "USERNAME": "somebody", "HOME": "/tmp/home-of-somebody"}

CONDITIONS: Mapping[str, JsonObject] = {
    "hash seed": {"env": {"PYTHONHASHSEED": "7"}},
    "zone": {"env": {"TZ": "Asia/Kolkata"}},
    "clock": {"clock": YEAR},
    "order": {"reverse": True},
    "load": {"load": True},
    "folder": {},
    "locale": {"env": ASCII},
    "user": {"env": SOMEBODY},
    "host": {"host": "another-machine"},
    "network": {},
}
"""Condition -> how a run changes it. The folder is changed by another workdir, the network by a sandbox without one."""

TOGETHER = "several together"
NOT_TRIED = "not tried: "
SLOWER = 4.0
"""Time limit of a run under load, as a multiple of the task's."""

SEEDS = ("1", "2", "3", "4")
"""Hash seeds with which new tests are watched. The conditions have another."""

UNSAFE = "--harden runs copies of tests with values that nobody read, and in tier 'process' nothing is isolated"

VARIANT_TIME, VARIANT_SECONDS = 4.0, 3.0
"""Time limit of a wrong solution: this many times the time of the gold patch, plus seconds."""

CHANGED_TIME, CHANGED_SECONDS = 10.0, 60.0
"""Time limit of a run under changed conditions, likewise."""

QUOTED = 0.5
"""Share of gold's long lines from which an issue gives the patch away."""

COMMAND = "the test command"
"""Stands for all tests of a task whose command's exit code decides."""

Status = Literal["audited", "invalid", "skipped", "error"]


class AuditFinding(Frozen):
    """Something wrong with a task.

    Attributes:
        kind: "unstable", "flaky", "weak", "passes without work", "unasked name", "unasked message",
            "quoted patch", "copy", "history", "network" or "no counter-test".
        what: Test, name, text, file or change that it is about.
    """

    kind: str
    what: str


class EscapedVariant(Frozen):
    """A wrong solution that passes every required test.

    Attributes:
        kind: "hunk" of the gold patch left out, "function" without its work, or the kind of a mutation.
        path: File that differs.
        diff: Difference to the gold patch; of a hunk, the hunk.
        rejected_by: Added test that rejects it; empty if none does.
    """

    kind: str
    path: str
    diff: str
    rejected_by: str = ""


class AddedTests(Frozen):
    """Tests that were added to a task, because they reject wrong solutions that its own tests accept.

    Attributes:
        test_patch: The test patch with them.
        test_files: The test files with them.
        fail_to_pass: Those of them that must start passing.
        pass_to_pass: Those that must keep passing.
        strength: Share of the wrong solutions that a test rejects now.
    """

    test_patch: str
    test_files: dict[str, str]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    strength: float

    @property
    def tests(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.fail_to_pass, *self.pass_to_pass)


class AuditRecord(Frozen):
    """The audit of one task, one line of a record file. Hidden from policies, because it names tests.

    Attributes:
        task_id: Id of the task.
        status: "audited", or why not: the task is invalid, cannot be audited, or a sandbox failed.
        reason: Why it was not audited; empty if it was.
        findings: What is wrong.
        conditions: Condition -> "same", "changed", or "not tried: " and why.
        unstable: Required test -> conditions under which its status is another one.
        flaky: Required tests whose status changes by chance.
        strength: Share of the wrong solutions that a test rejects; None if none was tried. Tests that are unstable or
            flaky do not count, if others that must start passing are left.
        killed: Number of these.
        timed_out: Those of them whose tests reached the time limit.
        tried: Number of wrong solutions with an answer.
        unjudged: Number of those without: they do not apply, or the test runner or the sandbox failed.
        escaped: The others.
        harden: Whether missing tests were looked for.
        added: Those that were found.
        functions: Number of test functions that must start passing.
        counter_tests: Share of the tests that must start passing that have a counter-test; None if it is not known.
        not_tried: Check -> why it was not made.
        seconds: Wall-clock time of the audit.
        runs: Number of test runs.
        variants: Largest number of wrong solutions.
        backend: Kind of sandbox.
        sandbox_options: Its options, without secrets. With others, such as a network, a task is audited again. None:
            not known, in a record of an earlier version.
        digest: SHA-256 of the task and its oracle. A changed task is audited again.
        date: Date that the caller gave.
    """

    task_id: str
    status: Status
    reason: str = ""
    findings: tuple[AuditFinding, ...] = ()
    conditions: dict[str, str] = {}
    unstable: dict[str, tuple[str, ...]] = {}
    flaky: tuple[str, ...] = ()
    strength: float | None = None
    killed: int = 0
    timed_out: int = 0
    tried: int = 0
    unjudged: int = 0
    escaped: tuple[EscapedVariant, ...] = ()
    harden: bool = False
    added: AddedTests | None = None
    functions: int = 0
    counter_tests: float | None = None
    not_tried: dict[str, str] = {}
    seconds: float = 0.0
    runs: int = 0
    variants: int = 0
    backend: str = ""
    sandbox_options: JsonObject | None = None
    digest: str = ""
    date: str = ""

    def without_added(self) -> "AuditRecord":
        """Return the record of an audit that looks for no missing tests."""
        escaped = tuple(one.model_copy(update={"rejected_by": ""}) for one in self.escaped)
        not_tried = {name: why for name, why in self.not_tried.items() if name != "harden"}
        changed = {"harden": False, "added": None, "escaped": escaped, "not_tried": not_tried}
        return self.model_copy(update=changed)

    @property
    def rank(self) -> tuple[bool, int, float]:
        """The worst audits come first in the order of ranks."""
        kinds = {finding.kind for finding in self.findings}
        return self.status == "audited", -len(kinds), 1.0 if self.strength is None else self.strength


def read_audits(path: str | os.PathLike[str]) -> list[AuditRecord]:
    """Read the audits of a file, in order. A task's last line counts. A missing file has none.

    Raises:
        UsageError: A line is not an audit. The message names file and line.
    """
    return list({one.task_id: one for one in read_models(path, AuditRecord, "an audit")}.values())


def repair_task(task: Task, record: AuditRecord) -> Task | None:
    """Return a task without the tests that its audit found unstable or flaky, and with those that the audit added.

    Returns:
        None if no test that must start passing is left, or if its evaluation has no lists that could lose tests.
    """
    gone = {*record.unstable, *record.flaky}
    left = task if not gone else _leave_out(task, gone)
    return left if left is None or record.added is None else _add_tests(left, record.added)


def _add_tests(task: Task, added: AddedTests) -> Task:
    lists = {name: (*getattr(task.oracle, name), *getattr(added, name)) for name in LISTS}
    files = {name: getattr(added, name) for name in ("test_patch", "test_files")}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update={**lists, **files})})


def _leave_out(task: Task, gone: Collection[str]) -> Task | None:
    oracle = task.oracle
    lists = {name: tuple(test for test in getattr(oracle, name) if test not in gone) for name in LISTS}
    if oracle.expected or not lists["fail_to_pass"]:
        return None
    return task.model_copy(update={"oracle": oracle.model_copy(update=lists)})


LISTS = ("fail_to_pass", "pass_to_pass")


def audit_tasks(
    source: TaskSource,
    ids: Sequence[str] | None = None,
    *,
    backend: str = "local",
    sandbox_options: JsonObject | None = None,
    variants: int = 16,
    harden: bool = False,
    workers: int = 2,
    record: str | os.PathLike[str] | None = None,
    date: str = "",
    on_record: Callable[[AuditRecord], None] | None = None,
    executor: str = "threads",
    executor_options: JsonObject | None = None,
) -> list[AuditRecord]:
    """Audit tasks, several at once.

    Results are appended to `record`. Those it holds, of the same digest, backend and options, are used again.

    Args:
        source: Source of the tasks.
        ids: Ids of the tasks; None takes all.
        backend: Kind of sandbox.
        sandbox_options: Options as in `SweEnv`.
        variants: Largest number of wrong solutions per task.
        harden: Whether to look for tests that reject the wrong solutions which the task's own tests accept.
        workers: Tasks at once.
        record: A JSONL file.
        date: Date for the records.
        on_record: Callback for each record, old ones first. It runs in this thread.
        executor: Where tasks are audited; see `validate`.
        executor_options: Options of the executor.

    Returns:
        One record per task, in the order of the tasks.

    Raises:
        UsageError: An argument is invalid, or the record file is broken.
        KeyboardInterrupt: Every sandbox is closed, and finished tasks are in the record file.
    """
    if variants < 0 or workers < 1:
        raise UsageError(f"variants must be at least 0 and workers at least 1: {variants=}, {workers=}")
    settings = _AuditSettings(backend, sandbox_options or {}, variants, harden, date)
    if harden and settings.options.get("options", {}).get("tier") == "process":
        raise UsageError(f"{UNSAFE}: choose another tier")
    tasks = {name: _get(source, name) for name in (source.ids() if ids is None else ids)}
    read = read_audits(record) if record else []
    known = [old if harden else old.without_added() for old in read if settings.still_holds(old, tasks)]
    found: dict[str, AuditRecord] = {}

    def add(result: AuditRecord) -> None:
        found[result.task_id] = result
        if on_record is not None:
            on_record(result)

    for old in known:
        add(old)
    with open_executor(executor, executor_options, sandbox_options, workers=workers) as place:
        make = functools.partial(_make_audit, settings, tasks)
        for audit in run_outcomes(make, [name for name in tasks if name not in found], workers=workers, executor=place):
            if audit.lost is not None:
                raise audit.lost
            if record:
                append_lines(record, json.dumps(audit.outcome.model_dump(mode="json")))
            add(audit.outcome)
    return [found[name] for name in tasks]


def _get(source: TaskSource, name: str) -> Task | str:
    """Return a task, or why it cannot be read."""
    try:
        return source.get(name)
    except (UsageError, TaskError) as error:
        return str(error)


@dataclasses.dataclass(frozen=True, slots=True)
class _AuditSettings:
    """The arguments of one audit."""

    backend: str
    options: JsonObject
    variants: int
    harden: bool
    date: str

    @property
    def facts(self) -> JsonObject:
        """Fields of a record that must be equal for its answer to hold."""
        options = without_secrets(self.options)
        return {
            "backend": self.backend,
            "variants": self.variants,
            "harden": self.harden,
            "sandbox_options": options,
        }

    def still_holds(self, old: AuditRecord, tasks: Mapping[str, Task | str]) -> bool:
        """Whether an old record is still valid for these settings."""
        task = tasks.get(old.task_id)
        facts = self.facts | ({} if self.harden else {"harden": old.harden})
        if not isinstance(task, Task) or any(getattr(old, name) != value for name, value in facts.items()):
            return False
        skipped = old.status == "skipped" and old.reason == _why_not(task)
        return (old.status == "audited" or skipped) and old.digest == digest(task)


def _make_audit(settings: _AuditSettings, tasks: Mapping[str, Task | str], name: str, number: int) -> "_Audit":
    return _Audit(_AuditWork(settings, name, tasks[name]), number)


class _AuditWork(NamedTuple):
    """The audit of one task as data."""

    settings: _AuditSettings
    name: str
    task: Task | str

    def make(self, link: DriverLink) -> "_Audit":  # noqa: ARG002  it sends only its result
        """Make the audit on a node."""
        return _Audit(self, 1)


class _Audit(OutcomeJob[str, AuditRecord]):
    """The audit of one task."""

    def __init__(self, work: _AuditWork, number: int) -> None:
        super().__init__(work.name, number)
        self._work = work

    def run(self) -> None:
        """Audit the task. Failures become a record; only the caller's mistakes are raised."""
        settings, task = self._work.settings, self._work.task
        facts: JsonObject = {"task_id": self.key, "date": settings.date, **settings.facts}
        if isinstance(task, str):
            self.outcome = AuditRecord(**facts, status="invalid", reason=task)
            return
        started = time.monotonic()
        probe: _Probe | None = None
        try:
            facts["digest"] = identify(task)
            if reason := _why_not(task):
                self.outcome = AuditRecord(**facts, status="skipped", reason=reason)
                return
            with _Probe(task, settings) as probe:
                self._open = probe
                if self.cancelled:
                    probe.close()
                found = probe.audit()
            check_unchanged(task, facts["digest"])
        except MissingInterpreter as error:
            found = {"status": "skipped", "reason": str(error)}
        except TaskError as error:
            found = {"status": "invalid", "reason": str(error)}
        except (SandboxError, GradingError, RecursionError, MemoryError) as error:  # the last two: deeply nested code
            logger.warning("no audit of task %s: %s: %s", self.key, type(error).__name__, error)
            found = {"status": "error", "reason": f"{type(error).__name__}: {error}"}
        facts |= {"seconds": round(time.monotonic() - started, 1), "runs": probe.runs if probe else 0}
        self.outcome = AuditRecord(**facts, **found)

    def work(self) -> _AuditWork:
        """Return the audit as data."""
        return self._work


def _why_not(task: Task) -> str:
    """Return why a task cannot be audited; empty if it can."""
    if task.oracle.in_place:
        return "its script judges the policy's sandbox: tests that a script runs are not audited"
    if task.oracle.own_grader:
        return f"its grader {task.oracle.own_grader!r} is its own: it cannot be run under other conditions"
    if not task.oracle.gold_patch:
        return "it has no gold patch"
    return ""


class Ends(NamedTuple):
    """How the required tests of one run ended.

    Attributes:
        passed: Required test -> whether it passed.
        resolved: Whether the task is resolved.
        counts: Whether the run counts.
        timed_out: Whether the tests reached the time limit.
        seen: What the tests' process saw of its conditions.
        reason: Why the run does not resolve the task.
        duration: Seconds that the tests took.
    """

    passed: dict[str, bool]
    resolved: bool
    counts: bool
    timed_out: bool
    seen: Mapping[str, Json]
    reason: str
    duration: float

    def differing(self, other: "Ends") -> set[str]:
        """Return the tests whose status is another one in another run."""
        return {test for test, passed in self.passed.items() if other.passed.get(test) is not passed}

    def passes(self, gone: Collection[str]) -> bool:
        """Whether the task is resolved, also by a solution that fails only tests that are left out."""
        left = [passed for test, passed in self.passed.items() if test not in gone]
        return self.resolved or (bool(gone) and self.counts and all(left))


class _Probe:
    """Runs a task's tests with several solutions and under several conditions. It opens a sandbox for each run.

    Attributes:
        runs: Number of runs so far.
        closed: Whether `close` was called.
        fixed: Why the workspace cannot be in another folder; empty if it can.
        online: Whether the task's sandboxes have a network.
    """

    def __init__(self, task: Task, settings: _AuditSettings) -> None:
        self.task = task
        self.runs = 0
        self.closed = False
        self._others: list[_Probe] = []
        self._settings = settings
        self.fixed = _why_fixed(task, settings.options)
        self._moved = None if self.fixed else _move(task)
        offline = {**settings.options, "network": "none"}
        self._groups = {
            (one.workdir, apart): SandboxGroup(one, settings.backend, offline if apart else settings.options)
            for one in (task, self._moved)
            if one is not None
            for apart in (False, True)
        }
        self.online = self.group.spec.access != "none"

    def __enter__(self) -> "_Probe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all sandboxes."""
        self.closed = True
        for group in self._groups.values():
            group.close()
        for other in self._others:
            other.close()

    @property
    def group(self) -> SandboxGroup:
        """Sandboxes whose workspace is where the task wants it."""
        return self._groups[self.task.workdir, False]

    def run(self, diff: str, conditions: Collection[str] = (), *, timeout: float | None = None, clock: int = 0) -> Ends:
        """Run the tests with a diff, under changed conditions."""
        self.runs += 1
        given: JsonObject = {}
        env: dict[str, str] = {}
        for name in conditions:
            given |= {key: value for key, value in CONDITIONS[name].items() if key != "env"}
            env |= CONDITIONS[name].get("env", {})
        if clock:
            given["clock"] = clock
        if "load" in conditions:
            timeout = SLOWER * (timeout or self.task.oracle.timeout)
        task = self._moved if "folder" in conditions and self._moved is not None else self.task
        group = self._groups[task.workdir, "network" in conditions]
        with group.fresh() as fresh:
            ran = run_plainly(task, diff, fresh, group.fresh, env=env, timeout=timeout, **given)
        verdict = ran.verdict
        statuses = {**verdict.fail_to_pass, **verdict.pass_to_pass}
        passed = {test: status is TestStatus.PASSED for test, status in statuses.items()}
        counts = ran.counts and not verdict.timed_out
        passed = passed or {COMMAND: verdict.resolved}
        facts = verdict.timed_out, ran.seen, verdict.reason, verdict.duration
        return Ends(passed, verdict.resolved, counts, *facts)

    def audit(self) -> JsonObject:
        """Return the fields of the record."""
        task, found = self.task, Findings()
        files, facts = self._look_around(found)
        gold = self.run(task.oracle.gold_patch)
        empty = self.run("")
        if not gold.resolved:
            raise TaskError(f"gold does not pass: {gold.reason}")
        if empty.resolved:
            raise TaskError("empty passes: the hidden tests do not detect the problem")
        for test in task.oracle.fail_to_pass:
            if empty.passed.get(test):
                found.add("passes without work", test)
        facts |= Stability(self, gold, empty, task.oracle, found).find()
        gone = {*facts["unstable"], *facts["flaky"]}
        left_out = gone if _leave_out(task, gone) else ()
        limit = min(task.oracle.timeout, VARIANT_TIME * gold.duration + VARIANT_SECONDS)
        strength, escaped = self._measure_strength(files, limit, left_out, found)
        facts |= strength
        if self._settings.harden and escaped:
            left = _leave_out(task, gone) if gone else task
            try:
                facts |= _Hardening(self, left, files, escaped).find(facts)
            except (GradingError, TaskError, DiffError, UnicodeError) as error:  # the last: a file in another encoding
                found.not_tried["harden"] = str(error)
        return {**facts, "status": "audited", "findings": tuple(found.list), "not_tried": found.not_tried}

    def _look_around(self, found: "Findings") -> tuple[list[ChangedFile], JsonObject]:
        """Look for the solution where a policy works, compare texts, and judge gold as a policy's work is judged."""
        task, group = self.task, self.group
        paths = [section.path for section in split_sections(task.oracle.gold_patch)]
        with group.another() as policy, group.fresh() as judge:
            before = read_files(policy, paths)
            tests = put_in_tests(task, judge)
            apply_diff(judge, task.oracle.gold_patch, what="the gold patch")
            after = read_files(judge, paths)
            changed = [ChangedFile(path, before.get(path), after.get(path)) for path in paths]
            files = [file for file in changed if file.path.endswith(".py")]
            copies = self._look_for_copies(policy, changed, found)
            asked = find_asked(task, tests, files)
            self._compare_texts(policy, asked or Asked((), ()), copies, found)
            reason = "" if asked else "no function of a test that must start passing was found"
            reason = reason if files else "the gold patch changes no Python file"
            found.not_tried |= dict.fromkeys(("unasked name", "unasked message"), reason) if reason else {}
        verdict = self.judge_gold()
        if not verdict.resolved:
            found.not_tried["no counter-test"] = f"gold is not resolved with counter-tests: {verdict.reason}"
        covered, uncovered = verdict.counter_tests.kinds, verdict.counter_tests.uncovered
        known = verdict.resolved and (covered or uncovered)
        share = len(covered) / (len(covered) + len(uncovered)) if known else None
        if share == 0.0:
            found.add("no counter-test", "no test that must start passing has one")
        functions = {test.partition("[")[0] for test in task.oracle.fail_to_pass}
        return files, {"counter_tests": share, "functions": len(functions)}

    def judge_gold(self) -> Verdict:
        """Judge gold with counter-tests, and without those that share a process if they disturb the tests."""
        oracle = self.task.oracle
        tests = (*oracle.fail_to_pass, *oracle.pass_to_pass, *oracle.expected)
        for counter in (CounterOptions(), CounterOptions(unforkable=tests)):
            verdict, _ = judge_diff(self.group, oracle.gold_patch, counter)
            self.runs += verdict.counter_tests.runs
            if verdict.resolved:
                break
        return verdict

    def _look_for_copies(self, policy: Sandbox, changed: Sequence[ChangedFile], found: "Findings") -> Sequence[str]:
        """Find the solution in git repositories, files and packages that a policy can read, and a network.

        Returns:
            The files.
        """
        copies = find_copies(self.task, policy)
        if copies is None:
            found.not_tried["copy"] = "gold has too few long lines to search for, or the search failed"
        if copies:
            others = f" and {quantify(len(copies) - 1, 'other file')}" if copies[1:] else ""
            found.add("copy", f"{copies[0]}{others} {'hold' if others else 'holds'} lines of the gold patch")
        held = find_in_history(policy, changed)
        if held is None:
            found.not_tried["history"] = "gold only deletes, git is missing, or the search failed"
        for path in held or ():
            found.add("history", f"{path} with the gold patch is in a git repository of the workspace")
        if policy.capabilities.network != "none":
            found.add("network", f"the policy has network access: {policy.capabilities.network}")
        return copies or ()

    def _compare_texts(self, policy: Sandbox, asked: Asked, copies: Collection[str], found: "Findings") -> None:
        """Compare what the tests ask for with what issue and repository mention, and the issue with gold."""
        for kind, words in (("unasked name", asked.names), ("unasked message", asked.messages)):
            unmentioned = find_unmentioned(policy, words, copies)
            if unmentioned is None:
                found.not_tried[kind] = "the search in the workspace failed"
            for word in unmentioned or ():
                found.add(kind, f"tests want {word!r}, which neither the issue nor the repository mentions")
        quoted = quoted_share(self.task)
        if quoted >= QUOTED:
            found.add("quoted patch", f"the issue quotes {quoted:.0%} of the gold patch's long lines")

    def _measure_strength(
        self, files: Sequence[ChangedFile], limit: float, gone: Collection[str], found: "Findings"
    ) -> tuple[JsonObject, list[Variant]]:
        """Run the tests with wrong solutions. Tests that are left out do not count.

        Returns:
            Fields of the record, and the wrong solutions that no test rejects.
        """
        patch = self.task.oracle.gold_patch
        made = make_variants(patch, files, self._settings.variants)
        ends = {variant: end for variant in made if (end := self.try_variant(variant, limit)) is not None}
        escaped = [variant for variant, end in ends.items() if end.passes(gone)]
        killed, tried = len(ends) - len(escaped), len(ends)
        for variant in escaped:
            others = break_hunk(patch, files, variant, BROKEN) if variant.kind == "hunk" else []
            if variant.kind == "function":
                found.add("weak", f"no test notices that a function of {variant.path} does nothing")
            elif others and all(end is not None and end.passes(gone) for end in self._try_all(others, limit)):
                found.add("weak", f"no test notices that a hunk of {variant.path} is missing or wrong")
        if tried >= ENOUGH and killed < tried / 2:
            found.add("weak", f"the tests reject {killed} of {tried} wrong solutions")
        if not tried:
            found.not_tried["weak"] = f"of {len(made)} wrong solutions from the gold patch, none could be judged"
        return {
            "strength": round(killed / tried, 3) if tried else None,
            "killed": killed,
            "timed_out": sum(end.timed_out for end in ends.values()),
            "tried": tried,
            "unjudged": len(made) - tried,
            "escaped": tuple(EscapedVariant(kind=one.kind, path=one.path, diff=one.shown) for one in escaped),
        }, escaped

    def watch(self, task: Task, diff: str, count: int, seed: str = SEEDS[0]) -> list[Seen]:
        """Run test files whose copies note what they see, without a network. Return the notes of each.

        Raises:
            TaskError: With gold, the tests reach their time limit.
        """
        self.runs += 1
        group = self._groups[self.task.workdir, True]
        with group.fresh() as fresh:
            folder = fresh.exec("folder=$(mktemp -d) && chmod 777 $folder && echo $folder").text.strip()
            env = {NOTES: f"{folder}/notes", "PYTHONHASHSEED": seed}
            ran = run_plainly(task, diff, fresh, group.fresh, env=env)
            notes = read_files(fresh, [f"{folder}/notes"])
        if ran.verdict.timed_out and diff == task.oracle.gold_patch:
            raise TaskError(f"with copies of its tests, gold reaches the time limit of {task.oracle.timeout:g} seconds")
        return read_notes(b"".join(notes.values()).decode("utf-8", "replace"), count)

    def of(self, task: Task) -> "_Probe":
        """Return a probe of another task. It is closed with this one."""
        self._others.append(_Probe(task, self._settings))
        if self.closed:
            self._others[-1].close()
        return self._others[-1]

    def try_variant(self, variant: Variant, limit: float) -> Ends | None:
        """Run the tests with a wrong solution. Return None if that is not possible."""
        try:
            return self.run(variant.diff, timeout=limit)
        except SandboxClosed:
            raise
        except (DiffError, GradingError, SandboxError):  # a hunk needs another one, or the runner cannot start
            return None

    def _try_all(self, variants: Iterable[Variant], limit: float) -> Iterator[Ends | None]:
        return (self.try_variant(variant, limit) for variant in variants)


class _Hardening:
    """Looks for tests that reject wrong solutions, and checks them as the task's own tests are checked.

    Args:
        probe: Runs tests.
        task: The task without unstable tests; None if none is left.
        files: The Python files that gold changes.
        escaped: The wrong solutions that no test rejects.

    Raises:
        TaskError: There is no such test.
    """

    def __init__(
        self, probe: _Probe, task: Task | None, files: Sequence[ChangedFile], escaped: Sequence[Variant]
    ) -> None:
        if task is None:
            raise TaskError("no test that must start passing is stable")
        self._probe, self._task, self._escaped = probe, task, escaped
        named = {parse_id(test).path for test in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)} - {""}
        with probe.group.fresh() as fresh:
            if fresh.capabilities.isolation == "process":
                raise TaskError(f"{UNSAFE}: choose another backend or tier")
            self._before = read_files(fresh, sorted({*hidden_files(task.oracle), *named}))
            tests = put_in_tests(task, fresh)
            self._tests = {path: data for path, data in tests.items() if path.endswith(".py")}
        originals = find_originals(task.oracle, self._tests)
        self._copies = make_copies(originals, files)
        if not self._copies:
            why = "compare nothing with a literal" if originals else "have parameters or are no functions in Python"
            raise TaskError(f"none of its tests can be copied: they {why}")

    def find(self, facts: JsonObject) -> JsonObject:
        """Return fields of the record.

        Args:
            facts: The fields so far.
        """
        wanted = self._choose()
        for _ in range(MOST_ROUNDS):
            if not wanted:
                break
            draft = self._put(wanted)
            rejected = self._check(draft, {one.test for one in wanted})
            useful = {*rejected.values()}
            if len(useful) == len(wanted):
                return self._describe(draft, rejected, facts)
            wanted = [one for one in wanted if one.test in useful]
        raise TaskError("no test with other values tells a wrong solution from gold, and is stable")

    def _choose(self) -> list[Copy]:
        """Return tests whose values tell wrong solutions from gold."""
        noted = self._with_files(write_notes(self._copies, self._tests), self._task)
        gold = [self._probe.watch(noted, noted.oracle.gold_patch, len(self._copies), seed) for seed in SEEDS]
        if not any(seen.ended for seen in gold[0]):
            raise TaskError("the test command does not run copies of its tests, or they fail with gold")
        base, *wrong = (self._watch(noted, diff) for diff in ("", *(variant.diff for variant in self._escaped)))
        return choose_tests(self._copies, gold, base, wrong)

    def _watch(self, noted: Task, diff: str) -> list[Seen]:
        """Return what copies see with a solution; nothing if it cannot be run."""
        try:
            return self._probe.watch(noted, diff, len(self._copies))
        except SandboxClosed:
            raise
        except (DiffError, GradingError, SandboxError):
            return [Seen()] * len(self._copies)

    def _with_files(self, files: Mapping[str, bytes], task: Task) -> Task:
        changed = {path: data for path, data in files.items() if data != self._tests[path]}
        return task.model_copy(update={"oracle": put_tests(task.oracle, self._before, changed)})

    def _put(self, wanted: Sequence[Copy]) -> Task:
        """Return the task with new tests, which must keep passing."""
        task = self._with_files(write_tests(wanted, self._tests), self._task)
        kept = (*task.oracle.pass_to_pass, *(one.test for one in wanted))
        return task.model_copy(update={"oracle": task.oracle.model_copy(update={"pass_to_pass": kept})})

    def _check(self, draft: Task, new: set[str]) -> dict[Variant, str]:
        """Return which new test rejects which wrong solution: tests that pass with gold under all conditions."""
        with self._probe.of(draft) as probe:
            gold, empty = probe.run(draft.oracle.gold_patch), probe.run("")
            if not gold.counts:
                raise TaskError(f"the run of new tests with gold does not count: {gold.reason}")
            changing = Stability(probe, gold, empty, draft.oracle, Findings()).find_changing(new)
            if changing - new:
                raise TaskError(f"with new tests in its file, the status of {min(changing - new)} changes")
            good = [test for test in sorted(new - changing) if gold.passed.get(test)]
            limit = min(draft.oracle.timeout, VARIANT_TIME * gold.duration + VARIANT_SECONDS)
            ends = {variant: probe.try_variant(variant, limit) for variant in self._escaped}
            self._failing = {test for test in good if empty.counts and not empty.passed.get(test)}
            self._probe.runs += probe.runs
        found: dict[Variant, str] = {}
        for variant, end in ends.items():
            judged = end if end is not None and (end.counts or end.timed_out) else None
            tests = [test for test in good if judged and not judged.passed.get(test)]
            found |= {variant: tests[0]} if tests else {}
        return found

    def _describe(self, draft: Task, rejected: Mapping[Variant, str], facts: JsonObject) -> JsonObject:
        new = sorted({*rejected.values()})
        added = AddedTests(
            test_patch=draft.oracle.test_patch,
            test_files=dict(draft.oracle.test_files),
            fail_to_pass=tuple(test for test in new if test in self._failing),
            pass_to_pass=tuple(test for test in new if test not in self._failing),
            strength=round((facts["killed"] + len(rejected)) / facts["tried"], 3),
        )
        with self._probe.of(_add_tests(self._task, added)) as probe:
            verdict = probe.judge_gold()
            self._probe.runs += probe.runs
        if not verdict.resolved:
            raise TaskError(f"gold is not resolved with new tests: {verdict.reason}")
        by = {(one.kind, one.path, one.shown): test for one, test in rejected.items()}
        escaped = (
            one.model_copy(update={"rejected_by": by.get((one.kind, one.path, one.diff), "")})
            for one in facts["escaped"]
        )
        return {"added": added, "escaped": tuple(escaped)}


def _why_fixed(task: Task, options: JsonObject) -> str:
    """Return why the workspace of a task cannot be in another folder; empty if it can."""
    if task.workspace is None or task.image is not None or "image" in options:
        return "the image holds the workspace in a fixed folder"
    commands = task.oracle.evaluation.model_dump_json(), task.oracle.setup_cmd
    if any(_name_of(task.workdir).search(text) for text in commands):
        return f"the command of the tests names the folder {task.workdir}"
    return ""


def _move(task: Task) -> Task:
    """Return a task whose workspace is elsewhere, as its variables say."""
    name = _name_of(task.workdir)
    env = {key: name.sub(ELSEWHERE, value) for key, value in task.env.items()}
    return task.model_copy(update={"workdir": ELSEWHERE, "env": env})


def _name_of(folder: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-]){re.escape(folder)}(?![\w-])")


BROKEN = 3
"""Ways in which a hunk that can be left out is broken. If a test notices one, the hunk may be redundant."""

MOST_ROUNDS = 3
"""Times that new tests are checked. After each, those that reject nothing, or are not stable, are dropped."""

ENOUGH = 4
"""Wrong solutions from which a low share of rejected ones means something."""


class Findings:
    """What an audit found so far.

    Attributes:
        list: The findings.
        not_tried: Check -> why it was not made.
    """

    def __init__(self) -> None:
        self.list: list[AuditFinding] = []
        self.not_tried: dict[str, str] = {}

    def add(self, kind: str, what: str) -> None:
        """Add a finding."""
        self.list.append(AuditFinding(kind=kind, what=what))


class Stability:
    """Finds tests whose status depends on the conditions of a run.

    All conditions are changed at once first. Only if a status changes is each one changed alone, to name it. What
    cannot be told for sure is not tried: a run that does not count, or a change that the test runner did not see.
    """

    def __init__(self, probe: _Probe, gold: Ends, empty: Ends, oracle: Oracle, found: Findings) -> None:
        self._probe, self._found = probe, found
        self._plain = {oracle.gold_patch: gold, "": empty}
        self._again: dict[str, Ends] = {}  # a second plain run of each, if it is needed
        self._limit = min(oracle.timeout, CHANGED_TIME * max(gold.duration, empty.duration) + CHANGED_SECONDS)
        self._conditions: dict[str, str] = {}
        self._unstable: dict[str, tuple[str, ...]] = {}
        self._flaky: set[str] = set()
        self._apart: set[str] = set()  # tests that compare the clock with other times
        if probe.fixed:
            self._leave("folder", probe.fixed)
        if not probe.online:
            self._leave("network", "no run has a network")

    def find(self) -> JsonObject:
        """Return the fields of the record."""
        for diff, plain in self._plain.items():
            if plain.counts:
                self._search(diff, self._open(CONDITIONS))
            self._conditions = {name: self._conditions.get(name, "same") for name in CONDITIONS}
        for test, under in sorted(self._unstable.items()):
            self._found.add("unstable", f"{test}: {', '.join(under)}")
        for test in sorted(self._flaky - self._unstable.keys()):
            self._found.add("flaky", test)
        return {
            "conditions": self._conditions,
            "unstable": self._unstable,
            "flaky": tuple(sorted(self._flaky - self._unstable.keys())),
        }

    def find_changing(self, new: Collection[str]) -> set[str]:
        """Return the tests that a condition breaks or that change by chance, of the new ones also by an hour.

        Raises:
            TaskError: A condition that may break them could not be tried.
        """
        facts = self.find()
        never = {"network": not self._probe.online, "folder": bool(self._probe.fixed)}
        for name, end in facts["conditions"].items():
            alone = name == "order" and "sees no change" in end
            if end.startswith(NOT_TRIED) and not never.get(name) and not alone:
                raise TaskError(f"whether new tests are stable is not known: {name} is {end}")
        return {*facts["unstable"], *facts["flaky"], *self._apart.intersection(new)}

    def _open(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self._conditions.get(name, "").startswith(NOT_TRIED)]

    def _leave(self, name: str, why: str) -> None:
        """Note that a condition is not tried, unless another diff's runs tried it."""
        self._conditions.setdefault(name, f"{NOT_TRIED}{why}")

    def _run(self, diff: str, names: Sequence[str] = (), clock: int = 0) -> Ends:
        """Run the tests. If a condition breaks the runner, the run does not count."""
        try:
            return self._probe.run(diff, names, timeout=self._limit, clock=clock)
        except (GradingError, TaskError) as error:
            return Ends({}, resolved=False, counts=False, timed_out=False, seen={}, reason=str(error), duration=0.0)

    def _search(self, diff: str, names: Sequence[str]) -> None:
        """Change all conditions at once, and each alone if a status changes."""
        plain, together, tried = self._plain[diff], self._run(diff, names), names
        if together.counts:
            names = [name for name in names if self._is_seen(name, plain, together)]
            if len(names) < len(tried) and self._new(plain, together):
                together = self._run(diff, names)  # what the tests do not see may still change them
        if not names or (together.counts and not self._new(plain, together)):
            return
        left = self._new(plain, together) if together.counts else set[str]()
        for name in names:
            left -= self._try_alone(diff, name)
        if left and names == self._open(names):  # else it may be one that could not be tried alone
            again = self._run(diff, names)
            certain = left & plain.differing(again) if again.counts else set[str]()
            self._add(TOGETHER, certain)
            self._flaky |= left - certain if again.counts else set()

    def _new(self, plain: Ends, changed: Ends) -> set[str]:
        """Return the tests whose status changed, but for those of which that is known."""
        return plain.differing(changed) - self._flaky - self._unstable.keys() - self._apart

    def _try_alone(self, diff: str, name: str) -> set[str]:
        """Change one condition. Return the tests whose status changed, by it or by chance."""
        plain, first = self._plain[diff], self._run(diff, [name])
        if not first.counts:
            self._leave(name, f"the run does not count: {first.reason}")
            return set()
        tests = plain.differing(first)
        if not self._is_seen(name, plain, first) or not tests:
            return set()
        second, again = self._run(diff, [name]), self._run_plainly(diff)
        if not second.counts or not again.counts:
            self._leave(name, f"a second run does not count: {second.reason or again.reason}")
            return tests
        certain = (tests & plain.differing(second)) - plain.differing(again)
        self._flaky |= tests - certain
        if name == "clock" and certain:
            certain -= self._set_apart(diff, certain)
        passing = {test for test, passed in plain.passed.items() if passed}
        if len(passing) > 1 and passing <= certain:
            self._leave(name, "it breaks every test")
            self._found.add("unstable", f"every test: {name}. They are kept, because their environment may be to blame")
            return tests
        self._add(name, certain)
        return tests

    def _run_plainly(self, diff: str) -> Ends:
        """Return a second run without changes, the same one until it counts."""
        if diff not in self._again or not self._again[diff].counts:
            self._again[diff] = self._run(diff)
        return self._again[diff]

    def _set_apart(self, diff: str, tests: set[str]) -> set[str]:
        """Return those tests of which it is not clear that the date breaks them: an hour does too."""
        soon = self._run(diff, clock=HOUR)
        apart = tests & self._plain[diff].differing(soon) if soon.counts else tests
        why = "it compares the clock with other times, as those of files" if soon.counts else "a run does not count"
        self._found.not_tried |= {f"clock of {test}": why for test in apart}
        self._apart |= apart
        return apart

    def _add(self, name: str, tests: Collection[str]) -> None:
        for test in tests:
            self._unstable[test] = tuple(dict.fromkeys((*self._unstable.get(test, ()), name)))
        if tests and name in CONDITIONS:
            self._conditions[name] = "changed"

    def _is_seen(self, name: str, plain: Ends, changed: Ends) -> bool:
        """Whether the tests' process saw a change. If it did not, the condition was not tried."""
        seen = _sees(name, plain.seen, changed.seen)
        if not seen:
            what = "sees no change of it" if changed.seen else "is no test runner in Python, which could tell"
            self._leave(name, f"the process of the tests {what}")
        return seen


def _sees(name: str, plain: Mapping[str, Json], changed: Mapping[str, Json]) -> bool:
    """Whether a process saw another condition than the one of a plain run. The sandbox vouches for the network."""
    if name == "network":
        return True
    if name in ("order", "load"):
        return bool(changed.get({"order": "reversed", "load": "stopped"}[name]))
    if name == "clock":
        before, after = plain.get(name), changed.get(name)
        return isinstance(before, float) and isinstance(after, float) and after - before > YEAR / 2
    return name in changed and changed[name] != plain.get(name)
