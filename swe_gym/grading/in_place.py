"""The grader "reward": a script of the task judges the whole sandbox in which the policy worked, and writes a reward.

Everything that the policy left counts: files anywhere, installed packages, running servers. So everything there can
also deceive the script. What it writes is believed.
"""

import json
import math
import posixpath
import shlex
from collections.abc import Mapping

from ..errors import FileError, GradingError, MissingFile, TaskError, Unsupported
from ..sandboxes.base import Sandbox
from ..types import FileContent, Json, RewardScript, Task, Verdict
from .base import LOG_CHARS
from .log import some
from .reporter import steady_env, timeout_reason

REWARD_FILES = ("reward.json", "reward.txt")
"""Files of the reward. The first that exists counts."""

LOG_FILE = "test-stdout.txt"
LARGEST_REWARD_FILE = 1 << 16
LARGEST_LOG = 16 << 20
SETUP_TIMEOUT = 60.0

SOLUTION_LOG = "/logs/agent/oracle.txt"
FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
"""Folders that Harbor makes in every sandbox."""

NO_OWN_ROOT = (
    "task {task} is judged in the policy's sandbox, outside of the workdir too, and the backend {backend!r} gives it "
    "no root folder of its own on this machine: allow user namespaces (`swe-gym doctor` shows how), or use a "
    "container backend"
)


def begin_in_place(task: Task, sandbox: Sandbox) -> None:
    """Prepare a new sandbox of a task that is judged in place: make folders, add the task's files.

    Raises:
        Unsupported: The sandbox has no root folder of its own.
        TaskError: The folders cannot be made, or commands do not run as root and the task requires it.
        SandboxError: The sandbox failed.
    """
    if sandbox.workdir != sandbox.spec.workdir:
        raise Unsupported(NO_OWN_ROOT.format(task=task.task_id, backend=sandbox.name))
    script = _script_of(task)
    folders = shlex.join([*FOLDERS, script.rewards])
    made = sandbox.exec(
        f"mkdir -p {folders} && chmod 777 {folders} && id -u", cwd="/", timeout=SETUP_TIMEOUT, merge=True
    )
    if not made.ok:
        raise TaskError(
            f"task {task.task_id}: the image's user cannot make {folders}: {made.text.strip()[-500:]}. Use an image "
            "whose user is root"
        )
    if script.as_root and made.text.strip() != "0":
        raise TaskError(
            f"task {task.task_id}: verifier.user is root, and the image's user is not: use an image whose user is root"
        )
    put_files(task.needs.files, sandbox)


def put_files(files: Mapping[str, FileContent], sandbox: Sandbox) -> None:
    """Write files with their modes."""
    for path, file in files.items():
        sandbox.write_file(path, file.data, mode=file.mode)


def grade_in_place(task: Task, sandbox: Sandbox) -> Verdict:
    """Run the task's script in the policy's sandbox and read its reward. Only a reward of 1 is resolved.

    Raises:
        GradingError: The script wrote no reward, an invalid one, or timed out.
        SandboxError: The sandbox failed.
    """
    script = _script_of(task)
    rewards = [posixpath.join(script.rewards, name) for name in REWARD_FILES]
    removed = sandbox.exec(["rm", "-rf", "--", *rewards], cwd="/", timeout=SETUP_TIMEOUT, merge=True)
    if not removed.ok:
        raise GradingError(f"task {task.task_id}: old rewards cannot be removed: {removed.text[-500:].strip()}")
    put_files(script.files, sandbox)
    log = posixpath.join(script.rewards, LOG_FILE)
    result = sandbox.exec(
        f"chmod +x {shlex.quote(script.script)}; ({shlex.quote(script.script)}) > {shlex.quote(log)} 2>&1",
        timeout=task.oracle.timeout,
        env={**steady_env(sandbox), **script.env},
        merge=True,
    )
    said = result.text + _read_log(sandbox, log)
    if result.timed_out:
        raise GradingError(f"task {task.task_id}: {timeout_reason(task.oracle.timeout)}: {said[-2000:].strip()}")
    score, notes = _read_reward(task, sandbox, rewards, said)
    return Verdict(
        resolved=score == 1.0,
        score=score,
        reason="" if score == 1.0 else f"the task's script gave the reward {score:g}",
        exit_code=result.exit_code,
        judge="reward",
        notes=notes,
        duration=result.duration,
        log=said[-LOG_CHARS:],
    )


def run_solution(task: Task, sandbox: Sandbox) -> None:
    """Run the task's solution in a sandbox, as a policy would.

    Raises:
        TaskError: The task has no solution, or it failed.
        SandboxError: The sandbox failed.
    """
    script = _script_of(task)
    if not script.solve:
        raise TaskError(f"task {task.task_id} has no solution")
    put_files(script.solution, sandbox)
    result = sandbox.exec(
        solve_command(script),
        timeout=task.time_limit or task.oracle.timeout,
        env={"DEBIAN_FRONTEND": "noninteractive", **script.solution_env},
        merge=True,
    )
    if result.timed_out:
        raise TaskError(f"task {task.task_id}: its solution {result.describe()}")


def solve_command(script: RewardScript) -> str:
    """Return the shell command that runs the solution."""
    solve = shlex.quote(script.solve)
    return f"chmod +x {solve}; ({solve}) > {SOLUTION_LOG} 2>&1"


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


def _read_reward(task: Task, sandbox: Sandbox, paths: list[str], said: str) -> tuple[float, tuple[str, ...]]:
    """Return the reward, and a note on further values beside it."""
    for path in paths:
        try:
            text = sandbox.read_file(path, max_bytes=LARGEST_REWARD_FILE).decode("utf-8", "replace")
        except MissingFile:
            continue
        except FileError as error:
            raise GradingError(f"task {task.task_id}: {path} cannot be read: {error}") from error
        try:
            return parse_reward(text) if path.endswith(".json") else (_number(float(text), "the reward"), ())
        except (ValueError, OverflowError, RecursionError) as error:
            raise GradingError(f"task {task.task_id}: {path} holds no reward between 0 and 1: {error}") from error
    raise GradingError(
        f"task {task.task_id}: its script wrote neither {' nor '.join(paths)}: {said[-2000:].strip() or 'no output'}"
    )


def parse_reward(text: str) -> tuple[float, tuple[str, ...]]:
    """Return the reward in the text of a `reward.json`, and a note on further values.

    The reward is the value of "reward", or the only value.

    Raises:
        ValueError: The text is not an object of numbers, it does not say which is the reward, or the reward is not
            between 0 and 1.
    """
    values = json.loads(text)
    if not isinstance(values, dict) or not values:
        raise ValueError("not a JSON object of numbers")
    numbers = {str(name): _finite(value, name) for name, value in values.items()}
    if "reward" not in numbers and len(numbers) > 1:
        raise ValueError(f'several values and none is named "reward": {some(list(numbers))}')
    name = "reward" if "reward" in numbers else next(iter(numbers))
    others = [f"{other} {value:g}" for other, value in numbers.items() if other != name]
    notes = (f"further values of reward.json: {some(others)}",) if others else ()
    return _number(numbers[name], name), notes


def _finite(value: Json, name: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is not a finite number")
    return float(value)


def _number(value: float, name: str) -> float:
    if not 0 <= value <= 1:  # NaN neither
        raise ValueError(f"{name} is {value:g}")
    return value
