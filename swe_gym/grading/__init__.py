"""Judges work: puts its patch and the hidden tests into fresh sandboxes, and has a grader run them there.

The grader "reward" is the exception: it judges the policy's own sandbox. See `in_place`.
"""

from collections.abc import Callable

from ..errors import GradingError, TaskError, UsageError
from ..registry import Registry
from ..sandboxes import Sandbox
from ..types import Reward, Task, TestStatus, Verdict
from .base import Grader, OpenSandbox, PlainGrader, Ready
from .counter import CounterOptions
from .judge import Judge
from .patch import Patch
from .protect import Protection
from .staging import Stage

__all__ = ["GRADERS", "REWARDS", "CounterOptions", "Grader", "grade"]

GRADERS = Registry[Grader | PlainGrader](
    "grader",
    {
        "tests": "swe_gym.grading.graders:TESTS",
        "exit_code": "swe_gym.grading.graders:EXIT_CODE",
        "log": "swe_gym.grading.graders:LOG",
        "expected": "swe_gym.grading.graders:EXPECTED",
        "reward": "swe_gym.grading.in_place:grade_in_place",
    },
    group="swe_gym.graders",
)

REWARDS = Registry[Callable[[Verdict], Reward]](
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
        grader = GRADERS.load(oracle.grader)
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
        judge = Judge(task, patch, grader, stage, complete=complete, options=counter or CounterOptions())
        verdict = judge.judge(fresh)
    else:
        verdict = grader(_prepared_task(stage.prepare(patch, fresh)), fresh)
    return verdict.model_copy(update={"dropped": tuple(sorted({*dropped, *verdict.dropped}))})


def _prepared_task(ready: Ready) -> Task:
    """The task for a grader of the user's own: the preparation of its script has run, only the tests are left."""
    field = "eval_script" if ready.task.oracle.eval_script else "test_cmd"
    return ready.task.model_copy(update={"oracle": ready.task.oracle.model_copy(update={field: ready.command})})
