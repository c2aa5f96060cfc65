"""How work is judged: the patch goes into a fresh sandbox with the hidden tests, and a grader runs them there."""

from __future__ import annotations

from ..errors import TaskError, UsageError
from ..registry import Registry
from ..sandboxes.base import Sandbox
from ..types import Task, TestStatus, Verdict
from .base import Grader, OpenSandbox, PlainGrader
from .judge import CounterOptions, Judge, Stage
from .patch import Patch
from .protect import Protection

__all__ = ["GRADERS", "REWARDS", "CounterOptions", "Grader", "grade"]

GRADERS = Registry(
    "grader",
    {
        "tests": "swe_gym.grading.tests:TESTS",
        "exit_code": "swe_gym.grading.exit_code:EXIT_CODE",
        "log": "swe_gym.grading.log:LOG",
        "expected": "swe_gym.grading.expected:EXPECTED",
    },
    group="swe_gym.graders",
)

REWARDS = Registry(
    "reward",
    {
        "binary": "swe_gym.grading.rewards:binary",
        "fraction": "swe_gym.grading.rewards:fraction",
        "shaped": "swe_gym.grading.rewards:shaped",
    },
    group="swe_gym.rewards",
)


def grade(
    task: Task,
    patch: Patch,
    fresh: Sandbox,
    open_fresh: OpenSandbox,
    *,
    complete: bool = True,
    counter: CounterOptions | None = None,
) -> Verdict:
    """Judge a policy's work.

    Args:
        task: The task that it worked on.
        patch: The work, as `take_patch` returns it.
        fresh: A new sandbox of the task, in which nothing has run. It is used up.
        open_fresh: Opens further sandboxes like it, one at a time: `with open_fresh() as sandbox`.
        complete: Find out how every required test ends. If False, no second run follows a first that shows the work to
            be unresolved, and tests that ran only changed are `not_run`: enough for rewards that read `resolved` alone.
        counter: How far counter-tests go.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame.
        TaskError: The task's hidden tests do not apply, or its grader is unknown.
        SandboxError: A sandbox failed.
    """
    oracle = task.oracle
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
    stage = Stage(task, protection, open_fresh)
    if isinstance(grader, Grader):
        options = counter or CounterOptions()
        judge = Judge(task, patch, grader, stage, open_fresh, complete=complete, options=options)
        verdict = judge.judge(fresh)
    else:
        verdict = grader(stage.prepare(patch, fresh).task, fresh)
    return verdict.model_copy(update={"dropped": tuple(sorted({*dropped, *verdict.dropped}))})
