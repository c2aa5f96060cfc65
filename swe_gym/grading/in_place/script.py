"""The script of a task: what it needs, its run, and its reward."""

import json
import logging
import math
import posixpath
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from ...errors import FileError, GradingError, MissingFile, SandboxStartError, TaskError, Unsupported
from ...sandboxes import Sandbox, as_user, find_identity
from ...types import ExecResult, FileContent, Healthcheck, Json, JsonObject, RewardScript, Task, Verdict
from ..base import LOG_CHARS
from ..graders import some
from ..reporter import steady_env, timeout_reason

logger = logging.getLogger(__name__)

REWARD_FILES = ("reward.json", "reward.txt")
"""Files of the reward. The first that exists counts."""

LOG_FILE = "test-stdout.txt"
LARGEST_REWARD_FILE = 1 << 16
LARGEST_LOG = 16 << 20
SETUP_TIMEOUT = 60.0
SETUP_SECONDS = 3600.0
"""Seconds of a step's setup. Harbor sets no limit."""

SOLUTION_LOG = "/logs/agent/oracle.txt"
FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Folders that Harbor makes in every sandbox."""

UNLINK = 'for way; do if [ -L "$way" ]; then rm -f -- "$way" || exit 1; fi; done'
MOST_PATHS = 500
"""Number of paths in a command line."""

FAST_ENOUGH = 0.5
"""Share of the time limit. If the solution takes more, the machine may be to blame for a timeout, not the work."""

NO_OWN_ROOT = (
    "task {task} is judged in the policy's sandbox, outside of the workdir too, and the backend {backend!r} gives it "
    "no root folder of its own on this machine: allow user namespaces (`swe-gym doctor` shows how), or use a "
    "container backend"
)


class NoReward(GradingError):
    """The script could not run, timed out, or wrote no valid reward: work, task or machine may be to blame.

    Attributes:
        verdict: Verdict for the case that the work is to blame.
    """

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


def begin_in_place(task: Task, sandbox: Sandbox) -> None:
    """Prepare a new sandbox of a task that is judged in place: make folders, add the task's files.

    Raises:
        Unsupported: The sandbox has no root folder of its own.
        TaskError: The folders cannot be made, or the script or a command of the task cannot run as its user.
        SandboxStartError: The task's healthcheck fails.
        SandboxError: The sandbox failed.
    """
    script = _script_of(task)
    users: dict[str, str | None] = {}
    for one in (script, *(step.script for step in script.steps)):
        users |= {f"verifier.collect: user = {hook.user}": hook.user for hook in one.collect}
        users[f"agent.user = {one.policy_user!r}"] = one.policy_user
        if one.verifier is None:
            users[f"verifier.user = {one.user!r}"] = one.user
    _prepare(task, sandbox, task.needs.files, users)
    if script.healthcheck:
        wait_until_healthy(script.healthcheck, as_user(sandbox, script.healthcheck.user))


def begin_verifier(task: Task, sandbox: Sandbox) -> None:
    """Prepare the sandbox of a verifier that has its own.

    Raises:
        Unsupported, TaskError, SandboxError: See `begin_in_place`.
    """
    script = _script_of(task)
    files = script.verifier.needs.files if script.verifier else {}
    _prepare(task, sandbox, files, {f"verifier.user = {script.user!r}": script.user})


def judging_seconds(task: Task) -> float:
    """Return the seconds that images, setup and judging of a task in place may take: a control run may repeat judging.

    Images are built once.
    """
    script = task.oracle.in_place
    needs = [task.needs, *([script.verifier.needs] if script and script.verifier else [])]
    builds = sum(one.build.timeout for one in needs if one.build)
    if script is None:
        return builds
    steps = steps_of(task)
    checks = filter(None, [script.healthcheck, *(step.healthcheck for step in script.steps)])
    waits = sum(check.start_period + check.retries * (check.timeout + check.interval) for check in checks)
    setups = SETUP_SECONDS * sum(bool(step.setup) for step in script.steps)
    judged = sum(step.oracle.timeout + sum(hook.timeout for hook in _script_of(step).collect) for step in steps)
    solutions = sum(step.time_limit or step.oracle.timeout for step in steps)
    return builds + 2 * (waits + setups + judged) + solutions


def steps_of(task: Task) -> list[Task]:
    """Return the steps of a task, each as a task of its own; a task without steps is its only one."""
    script = task.oracle.in_place
    if script is None or not script.steps:
        return [task]
    return [
        task.model_copy(
            update={
                "problem_statement": step.instruction,
                "time_limit": step.time_limit,
                "oracle": task.oracle.model_copy(update={"evaluation": step.script, "timeout": step.timeout}),
            }
        )
        for step in script.steps
    ]


def begin_step(task: Task, number: int, sandbox: Sandbox) -> None:
    """Prepare a sandbox for a step of its task: remove what judging the one before left, add files, run the setup.

    Raises:
        SandboxStartError: What was left cannot be removed, the files cannot be added, or the setup or the healthcheck
            fails.
        SandboxError: The sandbox was lost.
    """
    script = task.oracle.in_place
    if script is None or not script.steps:
        return
    step, as_policy = script.steps[number], for_policy(steps_of(task)[number], sandbox)
    where = f"task {task.task_id}: step {step.name!r}"
    try:
        if number:
            clear_step(steps_of(task)[number - 1], sandbox)
            _unlink(step.files, sandbox)
        put_files({posixpath.join(sandbox.workdir, name): file for name, file in step.files.items()}, sandbox)
    except (NoReward, FileError) as error:
        raise SandboxStartError(f"{where}: its files cannot be added: {error}", reason="setup") from error
    if step.setup:
        done = as_policy.exec(step.setup, timeout=SETUP_SECONDS, merge=True)
        if not done.ok:
            text = f"{where}: its setup failed: {done.describe()}"
            raise SandboxStartError(text, reason="setup", retryable=True, detail=done.text[-2000:])
    if step.healthcheck:
        wait_until_healthy(step.healthcheck, as_policy)


def _unlink(paths: Iterable[str], sandbox: Sandbox) -> None:
    """Remove the links on the way to files of the workdir: root writes there, and the policy may have made them.

    Raises:
        FileError: They cannot be removed.
    """
    ways = {f"./{way}" for path in paths for way in (PurePosixPath(path), *PurePosixPath(path).parents)} - {"./."}
    given = sorted(ways)
    for start in range(0, len(given), MOST_PATHS):
        command = ["sh", "-c", UNLINK, "sh", *given[start : start + MOST_PATHS]]
        removed = run_tool(sandbox, command, cwd=sandbox.workdir)
        if not removed.ok:
            raise FileError(f"links in the workdir: {removed.describe()}: {removed.text.strip()[-500:]}")


def clear_step(task: Task, sandbox: Sandbox) -> None:
    """Empty the folders of a step's tests and reward, as Harbor does before and after its script.

    If the policy is another user than the verifier, it cannot read the folder of the tests.

    Raises:
        NoReward: They cannot be emptied.
        SandboxError: The sandbox was lost.
    """
    script = _script_of(task)
    tests = posixpath.dirname(script.script)
    folders = shlex.join([script.rewards, tests])
    commands = [f"rm -rf {folders}", f"mkdir -p {folders}", f"chmod 777 {shlex.quote(script.rewards)}"]
    if script.policy_user not in (None, script.user):
        owner = [f"chown {shlex.quote(script.user)} {shlex.quote(tests)}"] if script.user else []
        commands += [*owner, f"chmod 700 {shlex.quote(tests)}"]
    cleared = run_tool(sandbox, " && ".join(commands))
    if not cleared.ok:
        raise no_reward(task, f"{folders} cannot be emptied", cleared.text)


def is_last(task: Task, verdicts: Sequence[Verdict]) -> bool:
    """Whether the step of the last verdict ends the task: there is none after it, or it earned too little."""
    steps = _script_of(task).steps
    least = steps[len(verdicts) - 1].min_reward if steps else None
    return len(verdicts) >= len(steps) or (least is not None and (verdicts[-1].score or 0.0) < least)


def join_steps(task: Task, verdicts: Sequence[Verdict], *, missed: int = 0) -> Verdict:
    """Return the verdict on a task by those on its steps.

    Args:
        task: The task.
        verdicts: One for each step that was played.
        missed: Number of further steps that count as 0: the work ended before them, or made them impossible.
    """
    script = _script_of(task)
    if not script.steps:
        return verdicts[-1]
    scores = [verdict.score or 0.0 for verdict in verdicts] + [0.0] * missed
    score = scores[-1] if script.final else sum(scores) / len(scores)
    names = [step.name for step in script.steps]
    notes = [f"step {name!r}: {verdict.score or 0.0:g}" for name, verdict in zip(names, verdicts, strict=False)]
    notes += [f"step {name!r} was not played" for name in names[len(verdicts) :]]
    reason = "" if score == 1.0 else f"the steps of the task gave the reward {score:g}"
    resolved = score == 1.0 and len(verdicts) == len(names)
    update = {"resolved": resolved, "score": score, "reason": reason, "notes": (*verdicts[-1].notes, *notes)}
    return verdicts[-1].model_copy(update=update)


def _prepare(task: Task, sandbox: Sandbox, files: Mapping[str, FileContent], users: Mapping[str, str | None]) -> None:
    """Make Harbor's folders, see that commands can run as their users (by field), and add files."""
    if sandbox.workdir != sandbox.spec.workdir:
        raise Unsupported(NO_OWN_ROOT.format(task=task.task_id, backend=sandbox.name))
    folders = shlex.join([*FOLDERS, _script_of(task).rewards])
    made = sandbox.exec(f"mkdir -p {folders} && chmod 777 {folders}", cwd="/", timeout=SETUP_TIMEOUT, merge=True)
    if not made.ok:
        raise TaskError(
            f"task {task.task_id}: the image's user cannot make {folders}: {made.text.strip()[-500:]}. Use an image "
            "whose user is root (no USER in the Dockerfile), and name the policy's in agent.user"
        )
    for field, user in users.items():
        if user is not None:
            _check_user(task, field, user, sandbox)
    try:
        put_files(files, sandbox)
    except FileError as error:
        raise TaskError(f"task {task.task_id}: its files cannot be added: {error}") from error


def _check_user(task: Task, field: str, user: str, sandbox: Sandbox) -> None:
    """Raise `TaskError` if a command cannot run as its user."""
    own = find_identity(sandbox.privileged).names
    if user in own:
        return
    if "0" not in own:
        raise TaskError(
            f"task {task.task_id}: {field}, and the image's user is not root, who alone can run commands as another "
            "user: use an image whose user is root"
        )
    try:
        tried = as_user(sandbox, user).exec(["true"], cwd="/", timeout=SETUP_TIMEOUT, merge=True)
    except Unsupported as error:
        raise TaskError(f"task {task.task_id}: {field}: {error}") from error
    if not tried.ok:
        raise TaskError(f"task {task.task_id}: {field}: {tried.text.strip()[-500:]}")


def for_policy(task: Task, sandbox: Sandbox) -> Sandbox:
    """Return a sandbox with the rights that the policy has: those of its user."""
    user = task.oracle.in_place.policy_user if task.oracle.in_place else None
    return sandbox if user is None else as_user(sandbox, user)


def run_tool(
    sandbox: Sandbox, command: str | list[str], *, cwd: str = "/", timeout: float = SETUP_TIMEOUT
) -> ExecResult:
    """Run a usual command with the system's programs, whatever a policy with other rights has put on the PATH."""
    path = f"{sandbox.system_path}:{sandbox.environment()['PATH']}"
    return sandbox.privileged.exec(command, cwd=cwd, timeout=timeout, env={"PATH": path}, merge=True)


def collect(task: Task, sandbox: Sandbox) -> None:
    """Run the commands that come between the policy's work and the script. As in Harbor, their failures do not count.

    Raises:
        SandboxError: The sandbox was lost.
    """
    for hook in _script_of(task).collect:
        as_user(sandbox, hook.user).exec(hook.command, timeout=hook.timeout, merge=True)


def wait_until_healthy(check: Healthcheck, sandbox: Sandbox) -> None:
    """Repeat a check until it succeeds, as Docker does. `Sandbox.close` ends the waiting.

    Raises:
        SandboxStartError: It failed too often.
        SandboxError: The sandbox failed.
    """
    end_of_start, failures = time.monotonic() + check.start_period, 0
    while True:
        starting = time.monotonic() < end_of_start
        result = sandbox.exec(check.command, timeout=check.timeout, merge=True)
        if result.ok:
            return
        failures += not starting
        if failures >= check.retries:
            text = f"the healthcheck {check.command!r} failed {failures} times in a row: {result.describe()}"
            raise SandboxStartError(text, reason="setup", retryable=True, detail=result.text[-2000:])
        pause = check.start_interval if starting else check.interval
        sandbox.exec(["sleep", str(pause)], timeout=pause + SETUP_TIMEOUT)


def put_files(files: Mapping[str, FileContent], sandbox: Sandbox) -> None:
    """Write files with their modes."""
    for path, file in files.items():
        sandbox.write_file(path, file.data, mode=file.mode)


def grade_in_place(task: Task, sandbox: Sandbox) -> Verdict:
    """Run the task's script in a sandbox, the policy's or its own, and read its reward. Only 1 is resolved.

    Raises:
        NoReward: The script could not run, timed out, or wrote no valid reward.
        SandboxError: The sandbox was lost.
    """
    script = _script_of(task)
    rewards = [posixpath.join(script.rewards, name) for name in REWARD_FILES]
    removed = run_tool(sandbox, ["rm", "-rf", "--", *rewards])
    if not removed.ok:
        raise no_reward(task, "old rewards cannot be removed", removed.text)
    try:
        put_files(script.files, sandbox)
    except FileError as error:
        raise no_reward(task, "the task's tests cannot be added", str(error)) from error
    log = posixpath.join(script.rewards, LOG_FILE)
    run_tool(sandbox, ["chmod", "+x", script.script])
    result = as_user(sandbox, script.user).exec(
        f"({shlex.quote(script.script)}) > {shlex.quote(log)} 2>&1",
        timeout=task.oracle.timeout,
        env={**steady_env(sandbox), **script.env},
        merge=True,
    )
    said = result.text + _read_log(sandbox, log)
    facts: JsonObject = {"duration": result.duration, "exit_code": result.exit_code, "log": said[-LOG_CHARS:]}
    if result.timed_out:
        raise no_reward(task, timeout_reason(task.oracle.timeout), said, {**facts, "timed_out": True})
    try:
        score, notes = _read_reward(sandbox, rewards, named=script.named)
    except ValueError as error:
        raise no_reward(task, str(error), said, facts) from error
    reason = "" if score == 1.0 else f"the task's script gave the reward {score:g}"
    return Verdict(resolved=score == 1.0, score=score, reason=reason, notes=notes, judge="reward", **facts)


def no_reward(task: Task, why: str, said: str, facts: JsonObject | None = None) -> NoReward:
    """Return the error for a missing reward: why, what was said about it, and fields of the verdict."""
    verdict = Verdict(resolved=False, score=0.0, reason=why, judge="reward", **(facts or {}))
    return NoReward(f"task {task.task_id}: {why}: {said[-2000:].strip() or 'no output'}", verdict)


def blame(task: Task, failure: NoReward, fresh: Sandbox, judge: Callable[[Sandbox], Verdict]) -> Verdict:
    """Decide who is to blame for a missing reward, by the task's solution, or by no work if it has none.

    Args:
        task: The task.
        failure: What happened with the work.
        fresh: Another sandbox of the task, in which nothing has run.
        judge: Function that grades it.

    Returns:
        The verdict on the work, if the script writes a reward here, and in time.

    Raises:
        GradingError: The script writes no reward here either, or the machine is slow.
        SandboxError: The sandbox failed.
    """
    try:
        if task.oracle.has_solution:
            run_solution(task, fresh)
        control = judge(fresh)
    except (GradingError, TaskError) as error:
        work = "its own solution" if task.oracle.has_solution else "no work"
        raise GradingError(f"{failure}\nWith {work} there is no reward either: {error}") from failure
    if failure.verdict.timed_out and control.duration > FAST_ENOUGH * task.oracle.timeout:
        raise GradingError(
            f"{failure}\nIts own solution takes {control.duration:.1f} s now", reason="starved"
        ) from failure
    return failure.verdict


def run_solution(task: Task, sandbox: Sandbox) -> None:
    """Run the task's solution in a sandbox, as a policy would.

    Raises:
        TaskError: The task has no solution.
        SandboxError: The sandbox failed.
    """
    script = _script_of(task)
    if not script.solve:
        raise TaskError(f"task {task.task_id} has no solution")
    put_solution(script, sandbox)
    result = for_policy(task, sandbox).exec(
        solve_command(script),
        timeout=task.time_limit or task.oracle.timeout,
        env={"DEBIAN_FRONTEND": "noninteractive", **script.solution_env},
        merge=True,
    )
    if result.timed_out:  # it is judged as it is, as a policy's work is
        logger.warning("task %s: its solution %s", task.task_id, result.describe())


def put_solution(script: RewardScript, sandbox: Sandbox) -> None:
    """Write the files of the solution, as root if the policy is another user."""
    put_files(script.solution, sandbox.privileged)
    run_tool(sandbox, ["chmod", "+x", script.solve])


def solve_command(script: RewardScript) -> str:
    """Return the shell command that runs the solution."""
    return f"({shlex.quote(script.solve)}) > {SOLUTION_LOG} 2>&1"


def _script_of(task: Task) -> RewardScript:
    script = task.oracle.in_place
    if script is None:
        raise GradingError(f"task {task.task_id}: its oracle has no script that writes a reward")
    return script


def _read_log(sandbox: Sandbox, path: str) -> str:
    try:
        return sandbox.read_file(path, max_bytes=LARGEST_LOG).decode("utf-8", "replace")
    except FileError as error:  # the script removed it, or it is too large
        return f"[{LOG_FILE} cannot be read: {type(error).__name__}]\n"


def _read_reward(sandbox: Sandbox, paths: list[str], *, named: bool) -> tuple[float, tuple[str, ...]]:
    """Return the reward, and a note on further values beside it.

    Raises:
        ValueError: No file holds a reward between 0 and 1.
    """
    for path in paths:
        try:
            text = sandbox.read_file(path, max_bytes=LARGEST_REWARD_FILE).decode("utf-8", "replace")
        except MissingFile:
            continue
        except FileError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        try:
            return parse_reward(text, named) if path.endswith(".json") else (_number(float(text), "the reward"), ())
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} holds no reward between 0 and 1: {error}") from error
    raise ValueError("the task's script wrote no reward")


def parse_reward(text: str, named: bool = False) -> tuple[float, tuple[str, ...]]:
    """Return the reward in the text of a `reward.json`, and a note on further values.

    The reward is the value of "reward", or the only value unless it must be `named`.

    Raises:
        ValueError: The text is not an object of numbers, it does not say which is the reward, or the reward is not
            between 0 and 1.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or not values:
        raise ValueError("not a JSON object of numbers")
    numbers = {str(name): _check_finite(value, name) for name, value in values.items()}
    if "reward" not in numbers and named:
        raise ValueError(f'no value is named "reward", which min_reward compares: {some(list(numbers))}')
    if "reward" not in numbers and len(numbers) > 1:
        raise ValueError(f'several values and none is named "reward": {some(list(numbers))}')
    name = "reward" if "reward" in numbers else next(iter(numbers))
    others = [f"{other} {value:g}" for other, value in numbers.items() if other != name]
    notes = (f"further values of reward.json: {some(others)}",) if others else ()
    return _number(numbers[name], name), notes


def _check_finite(value: Json, name: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is not a finite number")
    return float(value)


def _number(value: float, name: str) -> float:
    if not 0 <= value <= 1:  # NaN neither
        raise ValueError(f"{name} is {value:g}")
    return value
