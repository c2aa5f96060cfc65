"""The graders: how each runs the tests of a prepared sandbox, and how it decides on the results.

"tests" believes only what the reporter signed. "log" runs a dataset's own evaluation script and decides by its lists,
as the dataset's authors do. "expected" wants every test to end as a map says, failures included, and no other test.
"exit_code" decides by the exit code of the task's test command.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from ..errors import GradingError
from ..sandboxes import Sandbox
from ..types import Evaluation, ExecResult, Oracle, Task, TestCommand, TestStatus, Verdict
from .base import LOG_CHARS, Grader, Ready, Results
from .evaluation import counts_tests, evaluate, names_failure
from .ids import Matched, match_tests
from .log_parsers import load_parser
from .plan import END_TEXT, START_TEXT, EvaluationPlan, cut_to_marks, parse_command, read_plan
from .reporter import MAX_OUTPUT, SignedReport, TwinOrder, run_reporter, steady_env, timeout_reason

# --- the grader "tests" -----------------------------------------------------------------------------------------------


def run_tests(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the hidden tests under the reporter.

    Raises:
        GradingError: The task names no test or no runner, or the runner is missing and the work is not to blame.
        SandboxError: The sandbox failed.
    """
    task = ready.task
    required = required_tests(task)
    report, result = _run(task, ready.plan, sandbox, ready.limit, ready.options, ready.twins)
    return Results(
        judge="reporter",
        statuses=report.statuses(required),
        ran=report.started,
        reason=report.contradiction(result, ready.limit),
        result=result,
        twins=report.played(SignedReport.statuses, ready.twins),
        unsettled=report.unsettled,
    )


def required_tests(task: Task) -> tuple[str, ...]:
    """Return the tests of both lists.

    Raises:
        GradingError: Both lists are empty.
    """
    required = (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)
    if not required:
        raise GradingError(f"task {task.task_id}: its oracle names no test: fail_to_pass and pass_to_pass are empty")
    return required


def decide_tests(task: Task, results: Results) -> Verdict:
    """Resolved if every required test passed and nothing contradicts the run."""
    statuses = {} if results.reason else results.statuses  # a run that does not count has no passed test
    fail_to_pass = {test: statuses.get(test, TestStatus.MISSING) for test in task.oracle.fail_to_pass}
    pass_to_pass = {test: statuses.get(test, TestStatus.MISSING) for test in task.oracle.pass_to_pass}
    reason = results.reason or shortfall(fail_to_pass.values(), pass_to_pass.values())
    return Verdict(
        resolved=not reason, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, reason=reason, **results.facts()
    )


TESTS = Grader(run_tests, decide_tests)
"""The grader "tests"."""


def find_statuses(task: Task, sandbox: Sandbox, visible: str = "") -> dict[str, TestStatus]:
    """Run the hidden tests and return the status of every test, required or not. New tasks get their lists from it.

    Args:
        task: The task. Only the command and the timeout of its oracle are used.
        sandbox: Fresh, with the hidden tests and the work in it.
        visible: Command that runs other tests, which the policy may see: nothing of the oracle is used. If it does not
            call pytest or unittest exactly once, it is one test, which passes if the command succeeds.

    Raises:
        GradingError: The run does not count, or the runner is missing or unknown.
        SandboxError: The sandbox failed.
    """
    evaluation: Evaluation = task.oracle.evaluation
    limit = task.oracle.timeout
    if visible:
        evaluation, limit = TestCommand(test_cmd=visible), task.eval_timeout
        if parse_command(visible) is None:
            done = sandbox.exec(visible, timeout=limit, merge=True)
            return {visible: TestStatus.PASSED if done.ok else TestStatus.FAILED}
    plan = read_plan(evaluation, sandbox.workdir)
    report, result = _run(task, plan, sandbox, limit)
    reason = report.contradiction(result, limit)
    if reason:
        raise GradingError(f"task {task.task_id}: {reason}: {result.text[-2000:].strip()}")
    return report.statuses(())


def _run(
    task: Task,
    plan: EvaluationPlan,
    sandbox: Sandbox,
    limit: float,
    options: tuple[str, ...] = (),
    twins: TwinOrder | None = None,
) -> tuple[SignedReport, ExecResult]:
    call = plan.runner
    if call is None:
        raise GradingError(
            f"task {task.task_id}: test_cmd must call `python -m pytest` or `python -m unittest` exactly once, "
            "and by no shell function or alias; for another command, use the grader 'exit_code'"
        )
    report, result = run_reporter(call, sandbox, limit, options, twins)
    if report.absent:
        raise GradingError(f"task {task.task_id}: {call.module} is not installed in its environment")
    if not report.began and call.only_runs_tests:
        raise GradingError(
            f"task {task.task_id}: the test runner did not start ({result.describe()}): {result.text[-2000:].strip()}"
        )
    return report, result


def shortfall(fail_to_pass: Iterable[TestStatus], pass_to_pass: Iterable[TestStatus]) -> str:
    """Return how many required tests did not pass, without their names, which only graders may see."""
    parts = []
    for statuses, what in ((list(fail_to_pass), "had to start passing"), (list(pass_to_pass), "had to keep passing")):
        failed = len(statuses) - statuses.count(TestStatus.PASSED)
        if failed:
            parts.append(f"{failed} of {len(statuses)} tests that {what} did not pass")
    return "; ".join(parts)


# --- the grader "log" -------------------------------------------------------------------------------------------------

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
        notes=(*note_inexact(fail_to_pass), *note_inexact(pass_to_pass), *note_expected_failures(pass_to_pass)),
    )


def replace_statuses(
    statuses: Mapping[str, TestStatus], instead: Mapping[TestStatus, TestStatus]
) -> dict[str, TestStatus]:
    """Return statuses with some replaced."""
    return {test: instead.get(status, status) for test, status in statuses.items()}


def note_inexact(matched: Matched) -> tuple[str, ...]:
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


# --- the grader "expected" --------------------------------------------------------------------------------------------

COMPARED = (TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR)
"""Statuses that are compared. Maps hold no skipped tests and no expected failures."""


def run_expected(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the evaluation script.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    if not ready.task.oracle.expected:
        raise GradingError(f"task {ready.task.task_id}: its oracle expects no test")
    return evaluate(ready, sandbox)


def decide_expected(task: Task, results: Results) -> Verdict:
    """Compare a run with the map: the same tests, with the same statuses.

    In the verdict, `pass_to_pass` holds the tests of the map, and `passed` means that a test ended as the map says.
    """
    expected = task.oracle.expected
    statuses = {test: status for test, status in results.statuses.items() if status in COMPARED}
    reason = results.reason or ("" if statuses else NO_RESULTS)
    if reason:
        statuses = {}
    reason = reason or difference(expected, statuses)
    return Verdict(
        resolved=not reason,
        pass_to_pass={test: as_expected(status, statuses.get(test)) for test, status in expected.items()},
        reason=reason,
        notes=note_differences(expected, statuses),
        **results.facts(),
    )


EXPECTED = Grader(run_expected, decide_expected)
"""The grader "expected"."""


def as_expected(expected: TestStatus, found: TestStatus | None) -> TestStatus:
    """Return a test's status in the verdict: `PASSED` if it ended as expected.

    A test that passes although the map says otherwise counts as `XPASSED`.
    """
    if found is expected:
        return TestStatus.PASSED
    if found is None:
        return TestStatus.MISSING
    return TestStatus.XPASSED if found is TestStatus.PASSED else found


def difference(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus]) -> str:
    """Return how many tests differ from a map, without names, which only graders may see. Empty if none differs."""
    other = sum(found[test] is not status for test, status in expected.items() if test in found)
    missing = sum(test not in found for test in expected)
    extra = sum(test not in expected for test in found)
    parts = [
        f"{other} of {len(expected)} tests did not end as expected" if other else "",
        f"{missing} of {len(expected)} expected tests are missing" if missing else "",
        f"{extra} unexpected tests ran" if extra else "",
    ]
    return "; ".join(filter(None, parts))


def note_differences(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus]) -> tuple[str, ...]:
    """Return the names of missing and unexpected tests."""
    missing = [test for test in expected if found and test not in found]
    extra = [test for test in found if test not in expected]
    said = {"expected tests are missing": missing, "tests are not expected": extra}
    return tuple(f"{len(tests)} {what}: {some(tests)}" for what, tests in said.items() if tests)


# --- the grader "exit_code" -------------------------------------------------------------------------------------------


def run_exit_code(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the task's test command.

    Raises:
        GradingError: The task has no test command.
        SandboxError: The sandbox failed.
    """
    if not ready.plan.command.strip():
        raise GradingError(f"task {ready.task.task_id}: its oracle has no test_cmd")
    limit = ready.limit
    result = sandbox.exec(ready.command, timeout=limit, env=steady_env(sandbox), max_output=MAX_OUTPUT, merge=True)
    reason = "" if result.ok else f"the test command ended with {result.describe()}, not with exit code 0"
    if result.timed_out:
        reason = timeout_reason(limit)
    return Results(judge="exit_code", ran=True, reason=reason, result=result)


def decide_exit_code(task: Task, results: Results) -> Verdict:  # noqa: ARG001  every grader decides by a task
    """Resolved if the command ended with exit code 0."""
    return Verdict(resolved=not results.reason, reason=results.reason, **results.facts())


EXIT_CODE = Grader(run_exit_code, decide_exit_code, counted=False)
"""The grader "exit_code", for commands whose runner the reporter cannot replace."""
