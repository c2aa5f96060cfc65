"""The grader "tests": runs the hidden tests under the reporter and believes only what the reporter signed."""

from collections.abc import Iterable

from ..errors import GradingError
from ..sandboxes import Sandbox
from ..types import ExecResult, Task, TestStatus, Verdict
from .base import Grader, Ready, Results
from .plan import EvaluationPlan, read_plan
from .reporter import SignedReport, TwinOrder, run_reporter


def run_tests(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the hidden tests under the reporter.

    Raises:
        GradingError: The task names no test or no runner, or the runner is missing and the work is not to blame.
        SandboxError: The sandbox failed.
    """
    task = ready.task
    required = required_tests(task)
    report, result = _run(task, ready.plan, sandbox, ready.limit, ready.options, ready.twins)

    def statuses(of: SignedReport) -> dict[str, TestStatus]:
        return {test: of.status(test) for test in (*of.tests, *required)}

    return Results(
        judge="reporter",
        statuses=statuses(report),
        ran=report.started,
        reason=report.contradiction(result, ready.limit),
        result=result,
        twins=report.played(statuses),
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


def find_statuses(task: Task, sandbox: Sandbox) -> dict[str, TestStatus]:
    """Run the hidden tests and return the status of every test, required or not. New tasks get their lists from it.

    Args:
        task: The task. Only the command and the timeout of its oracle are used.
        sandbox: Fresh, with the hidden tests and the work in it.

    Raises:
        GradingError: The run does not count, or the runner is missing or unknown.
        SandboxError: The sandbox failed.
    """
    plan = read_plan(task.oracle.evaluation, sandbox.workdir)
    report, result = _run(task, plan, sandbox, task.oracle.timeout)
    reason = report.contradiction(result, task.oracle.timeout)
    if reason:
        raise GradingError(f"task {task.task_id}: {reason}: {result.text[-2000:].strip()}")
    return {test: report.status(test) for test in report.tests}


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
            f"task {task.task_id}: test_cmd must call `python -m pytest` or `python -m unittest` exactly once; "
            "for another command, use the grader 'exit_code'"
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
        failed = sum(status is not TestStatus.PASSED for status in statuses)
        if failed:
            parts.append(f"{failed} of {len(statuses)} tests that {what} did not pass")
    return "; ".join(parts)
