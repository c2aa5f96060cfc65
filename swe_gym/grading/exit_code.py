"""The grader "exit_code": decides by the exit code of the task's test command."""

from ..errors import GradingError
from ..sandboxes import Sandbox
from ..types import Task, Verdict
from .base import Grader, Ready, Results
from .reporter import MAX_OUTPUT, steady_env, timeout_reason


def run_exit_code(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the task's test command.

    Raises:
        GradingError: The task has no test command.
        SandboxError: The sandbox failed.
    """
    if not ready.plan.command.strip():
        raise GradingError(f"task {ready.task.task_id}: its oracle has no test_cmd")
    limit = ready.task.oracle.timeout
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
