"""The grader "exit_code": the work is right when the task's test command says so by its exit code."""

from ..errors import GradingError
from ..sandboxes.base import Sandbox
from ..types import Task, Verdict
from .base import Evaluation, Grader, Ready
from .tests import MAX_OUTPUT, steady_env


def run_exit_code(ready: Ready, sandbox: Sandbox) -> Evaluation:
    """Run the task's test command.

    Args:
        ready: The task; its oracle holds the command.
        sandbox: Holds the hidden tests and the work.

    Raises:
        GradingError: The task has no test command.
        SandboxError: The sandbox failed.
    """
    oracle = ready.task.oracle
    if not oracle.test_cmd.strip():
        raise GradingError(f"task {ready.task.task_id}: its oracle has no test_cmd")
    result = sandbox.exec(
        oracle.test_cmd.replace("{workdir}", sandbox.workdir),
        timeout=oracle.timeout,
        env=steady_env(sandbox),
        max_output=MAX_OUTPUT,
        merge=True,
    )
    reason = "" if result.ok else f"the test command ended with {result.describe()}, not with exit code 0"
    return Evaluation(judge="exit_code", ran=True, reason=reason, result=result)


def decide_exit_code(task: Task, found: Evaluation) -> Verdict:  # noqa: ARG001  every grader decides by a task
    """Resolved if the command ended with exit code 0."""
    return Verdict(resolved=not found.reason, reason=found.reason, **found.facts())


EXIT_CODE = Grader(run_exit_code, decide_exit_code, counted=False)
"""The grader "exit_code": for commands that no reporter can stand in for."""
