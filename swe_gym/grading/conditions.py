"""Runs the tests of a diff once, without counter-tests, under conditions of choice."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..errors import FileError, GradingError, SandboxError, UsageError
from ..guests import bundle
from ..sandboxes import Sandbox
from ..syntax import evaluate
from ..types import Json, Task, Verdict
from . import GRADERS
from .base import Grader, OpenSandbox
from .plan import EvaluationPlan
from .protect import Protection
from .reporter import name_folder
from .staging import Stage

MOST_SEEN = 1 << 20
"""Bytes of what processes note. The rest is not read."""


class PlainRun(NamedTuple):
    """The end of one run of tests.

    Attributes:
        verdict: The verdict, without counter-tests.
        counts: Whether the run counts. If not, every required test of the verdict is missing.
        seen: What the test runner saw of its conditions; empty if it is no Python program that told it.
    """

    verdict: Verdict
    counts: bool
    seen: Mapping[str, Json]


def run_plainly(
    task: Task,
    diff: str,
    fresh: Sandbox,
    open_fresh: OpenSandbox,
    *,
    env: Mapping[str, str] | None = None,
    clock: int = 0,
    host: str = "",
    reverse: bool = False,
    load: bool = False,
    timeout: float | None = None,
) -> PlainRun:
    """Run the tests once with a diff.

    Args:
        task: The task.
        diff: A git diff; empty is the untouched repository.
        fresh: A new grading sandbox of the task. It is used up.
        open_fresh: Opens further ones.
        env: Environment variables of the tests, which replace the task's.
        clock: Seconds that the clock of Python programs is fast.
        host: Name of the machine, as Python's functions return it; empty keeps it.
        reverse: Whether the tests run in the reversed order.
        load: Whether the tests' processes are stopped again and again.
        timeout: Time limit in seconds; None is the task's.

    Raises:
        DiffError: The diff does not apply.
        GradingError: No verdict is possible, or the task has a grader of its own or is judged in place.
        TaskError: The task is broken.
        SandboxError: The sandbox failed.
    """
    try:
        grader = GRADERS.load(task.oracle.grader)
    except UsageError as error:
        raise GradingError(f"task {task.task_id}: {error}") from error
    if not isinstance(grader, Grader):
        raise GradingError(f"task {task.task_id}: its grader {task.oracle.grader!r} cannot be run on a diff alone")
    ready = Stage(task, Protection(task), open_fresh).prepare(diff, fresh)
    folder = name_folder(fresh)
    arguments = (folder, clock, host, reverse, load)
    fresh.write_file(f"{folder}/sitecustomize.py", f"{bundle('conditions')}\nsurround{arguments!r}\n".encode())
    env = env or {}
    if "HOME" in env:
        fresh.exec(["mkdir", "-p", env["HOME"]])
    plan = surround_plan(ready.plan, folder, env, reverse=reverse)
    results = grader.run(replace(ready, plan=plan, timeout=timeout), fresh)
    seen = {} if results.result.timed_out else _read_seen(fresh, f"{folder}/seen")
    return PlainRun(grader.decide(task, results), (results.ran and not results.reason) or not grader.counted, seen)


def surround_plan(plan: EvaluationPlan, folder: str, env: Mapping[str, str], *, reverse: bool) -> EvaluationPlan:
    """Return the plan with variables set before the tests, and a folder first on Python's path."""
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    words += ['PYTEST_PLUGINS="${PYTEST_PLUGINS:+$PYTEST_PLUGINS,}swe_gym_order"'] if reverse else []
    line = " ".join([*words, f'PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}"'])

    def put_in(text: str, *, only_call: bool = False) -> str:
        prefix = f"{line} " if only_call else f"export {line}\n"
        return prefix + re.sub(r"\bPYTHONPATH=(?=\S)", f"PYTHONPATH={folder}:", text)

    runner = plan.runner
    if runner is not None:  # a call that only runs tests stays one
        before = put_in(runner.before or "python ", only_call=runner.only_runs_tests)
        runner = runner.model_copy(update={"before": before})
    return replace(plan, command=put_in(plan.command), runner=runner)


def _read_seen(sandbox: Sandbox, path: str) -> dict[str, Json]:
    """Return what the first process of the tests noted, and what was done to one."""
    try:
        lines = sandbox.read_file(path, max_bytes=MOST_SEEN).decode("ascii", "replace").splitlines()
    except (FileError, SandboxError):
        return {}
    notes: list[dict[str, Json]] = []
    for line in lines:
        try:
            found = evaluate(line)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # code of the work may write here
            continue
        notes += [found] if isinstance(found, dict) else []
    began = next((one for one in notes if "clock" in one), {})
    done = {name: True for name in ("reversed", "stopped") if {name: True} in notes}
    return {**began, **done}
