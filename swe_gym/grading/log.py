"""The grader "log": runs a dataset's own evaluation script and decides by its lists, as the dataset's authors do."""

import re
from collections.abc import Collection, Mapping

from ..sandboxes import Sandbox
from ..types import Oracle, Task, TestStatus, Verdict
from .base import LOG_CHARS, Grader, Ready, Results
from .evaluation import counts_tests, evaluate, names_failure
from .log_parsers import load_parser
from .matching import Matched, match_tests
from .plan import END_TEXT, START_TEXT, cut_to_marks
from .tests import required_tests, shortfall

NO_RESULTS = "the log holds no result of any test"
MOST_NAMES = 5

HARNESS_FAULTS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
HARNESS_EXIT = re.compile(r">>>>> Test Exit Code: *(-?\d{1,9})\b")
"""A line that SWE-bench's harness adds to a log. Of several exit codes, the last is its own."""


def run_log(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the evaluation script.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    required_tests(ready.task)
    return evaluate(ready, sandbox)


def decide_log(task: Task, results: Results) -> Verdict:
    """Look up the tests of both lists.

    A test that must keep passing may fail as expected, as in the datasets' harnesses. A test that must start passing
    may not: product code can call `pytest.xfail`.
    """
    reason = results.reason or ("" if results.ran else NO_RESULTS)
    return decide(task.oracle, results.statuses, reason).model_copy(update=results.facts())


LOG = Grader(run_log, decide_log)
"""The grader "log"."""


def judge_log(oracle: Oracle, log: str) -> Verdict:
    """Return the verdict on the log of somebody else's evaluation.

    Args:
        oracle: Names the log parser and holds the lists.
        log: Log of the whole evaluation, or of its tests alone.

    Raises:
        UsageError: The log parser is unknown.
    """
    parse = load_parser(oracle.log_parser)
    statuses = parse(cut_to_marks(log)) or parse(log)  # the shell may print the marks before a runner's output
    ran = bool(statuses) or (oracle.fails_only and counts_tests(log))
    reason = doubt(oracle, log, statuses) or ("" if ran else NO_RESULTS)
    return decide(oracle, statuses, reason).model_copy(update={"judge": "log", "log": log[-LOG_CHARS:]})


def doubt(oracle: Oracle, log: str, statuses: Mapping[str, TestStatus]) -> str:
    """Return why a log does not count, by the lines that the harness added to it; empty if it counts."""
    if START_TEXT in log and END_TEXT not in log:
        return "the log breaks off before its tests ended"
    said = next((text for text in HARNESS_FAULTS if text in log), "")
    if said:
        return f"the harness says {said!r}"
    codes = HARNESS_EXIT.findall(log)
    if codes and int(codes[-1]) and (statuses or oracle.fails_only) and not names_failure(statuses):
        return f"exit code {codes[-1]} of the tests contradicts the log, which names no failed test"
    return ""


def decide(oracle: Oracle, statuses: Mapping[str, TestStatus], reason: str = "") -> Verdict:
    """Look up the tests of both lists.

    Args:
        oracle: Holds the lists.
        statuses: Status of each test of the run.
        reason: Why the run does not count; empty if it counts.
    """
    found = {} if reason else statuses  # a run that does not count has no passed test
    silent = TestStatus.PASSED if oracle.fails_only and not reason else TestStatus.MISSING
    fail_to_pass = match_tests(oracle.fail_to_pass, found)
    pass_to_pass = match_tests(oracle.pass_to_pass, found)
    counts = [
        replace_statuses(fail_to_pass.statuses, {TestStatus.MISSING: silent}),
        replace_statuses(pass_to_pass.statuses, {TestStatus.MISSING: silent, TestStatus.XFAILED: TestStatus.PASSED}),
    ]
    reason = reason or shortfall(*(count.values() for count in counts))
    return Verdict(
        resolved=not reason,
        fail_to_pass=counts[0],
        pass_to_pass=counts[1],
        reason=reason,
        notes=(*notes(fail_to_pass), *notes(pass_to_pass), *note_expected_failures(pass_to_pass)),
    )


def replace_statuses(
    statuses: Mapping[str, TestStatus], instead: Mapping[TestStatus, TestStatus]
) -> dict[str, TestStatus]:
    """Return statuses with some replaced."""
    return {test: instead.get(status, status) for test, status in statuses.items()}


def notes(matched: Matched) -> tuple[str, ...]:
    """Return how inexact ids of a list were matched."""
    said = {
        "cut at their first blank in the list, standing for all tests that they begin": matched.cut,
        "found under another date, duration or folder": matched.timed,
    }
    return tuple(f"{len(tests)} required tests {what}: {some(tests)}" for what, tests in said.items() if tests)


def note_expected_failures(matched: Matched) -> tuple[str, ...]:
    """Return a note on the tests that failed as expected."""
    tests = [test for test, status in matched.statuses.items() if status is TestStatus.XFAILED]
    said = f"{len(tests)} required tests failed as expected, which counts as passed: {some(tests)}"
    return (said,) if tests else ()


def some(tests: Collection[str]) -> str:
    """Return the first few names of many."""
    names = ", ".join(sorted(tests)[:MOST_NAMES])
    return names if len(tests) <= MOST_NAMES else f"{names} ..."
