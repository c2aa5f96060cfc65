"""Measure imports, frames, environment construction, task registration, and tools on a repository of 2,000 files.

    python benchmarks/core.py

`swe-gym bench sandbox` measures sandboxes.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import gymnasium
from common import milliseconds, show

import swe_gym
from swe_gym.cli.bench import alternate
from swe_gym.envs.registration import register_tasks
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

FILES = 2_000
ROUNDS = 50


def main() -> None:
    """Measure, and print each figure with its upper bar."""
    rows = [
        ("import swe_gym, on top of gymnasium and numpy", f"{import_ms():.0f} ms", "200 ms"),
        ("step with `bash true`, relative to subprocess.run(['true'])", f"{step_ratio():.1f}x", "3x"),
        *frames(),
        ("construct 1,000 environments", f"{milliseconds(construct) / 1000:.2f} s", "1 s"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows.append(("register 25,000 tasks", f"{register(Path(folder)):.2f} s", "1 s"))
    with tempfile.TemporaryDirectory() as folder:
        rows += [
            (f"{name}, {FILES:,} files, median", f"{median:.1f} ms", "5 ms")
            for name, median in tools(Path(folder)).items()
        ]
    show("swe_gym", ("what", "measured", "bar"), rows)


def import_ms() -> float:
    """Return the median difference of two fresh interpreters, one of which also imports swe_gym."""

    def run(modules: str) -> float:
        return milliseconds(lambda: subprocess.run([sys.executable, "-c", f"import {modules}"], check=True))

    differences = []
    for _ in range(7):
        without = run("gymnasium, numpy")
        differences.append(run("gymnasium, numpy, swe_gym") - without)
    return statistics.median(differences)


def step_ratio() -> float:
    """Return the time of a step with the bash tool relative to a bare process. The two alternate."""
    action = '{"name": "bash", "arguments": {"command": "true"}}'
    with gymnasium.make("SWE/Toy-v0", max_turns=100_000) as env:
        env.reset(seed=0)
        step, process = alternate(lambda: env.step(action), lambda: subprocess.run(["true"], check=True), 200)
    return step / process


def frames() -> list[tuple[str, str, str]]:
    """Count the frames of this package's code in a step and in a submit, in the thread that calls."""
    with gymnasium.make("SWE/Toy-v0") as env:
        env.reset(seed=0)
        for _ in range(2):  # the first one imports
            step = count_frames(lambda: env.step('{"name": "bash", "arguments": {"command": "true"}}'))
        submit = count_frames(lambda: env.step('{"name": "submit", "arguments": {}}'))
    return [("frames of a step", f"{step:,}", "120"), ("frames of a submit", f"{submit:,}", "3,500")]


def count_frames(work: Callable[[], object]) -> int:
    """Count the calls of this package's functions, resumed generators included."""
    package = str(Path(swe_gym.__file__).parent)
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(package)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def construct() -> None:
    """Construct environments by id. No sandbox starts."""
    for _ in range(1_000):
        gymnasium.make("SWE/Toy-v0")


def register(folder: Path) -> float:
    """Return the seconds to register 25,000 tasks of a file, without reading it."""
    path = folder / "tasks.jsonl"
    write_tasks((Task(task_id=f"task-{number}", problem_statement="") for number in range(25_000)), path)
    ids = [f"task-{number}" for number in range(25_000)]
    return milliseconds(lambda: register_tasks("file", ids, prefix="Bench", path=str(path))) / 1000


def tools(folder: Path) -> dict[str, float]:
    """Return median milliseconds of `env.step` for each tool that reads or edits files."""
    for number in range(FILES):
        path = folder / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"def function_{number}(x):\n    return x + {number}\n\n\n" * 60)
    calls = {
        "view": '{"name": "view", "arguments": {"path": "package7/module7.py"}}',
        "grep, one match": '{"name": "grep", "arguments": {"pattern": "def function_1999"}}',
        "grep, no match": '{"name": "grep", "arguments": {"pattern": "not_in_any_file"}}',
        "rewrite": '{"name": "rewrite", "arguments": '
        '{"path": "package7/module7.py", "start": 2, "end": 2, "new_code": "    return ROUND"}}',
        "listdir": '{"name": "listdir", "arguments": {"path": "."}}',
    }
    source_options = {"path": str(folder), "test_cmd": "false"}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with gymnasium.make("SWE/Local-v0", max_turns=100_000, **source_options) as env:
        env.reset()
        for turn in range(ROUNDS):
            for name, call in calls.items():
                action = call.replace("ROUND", str(turn))
                started = time.perf_counter()
                *_, info = env.step(action)
                times[name].append((time.perf_counter() - started) * 1000)
                if not info["tool_ok"] and name != "grep, no match":
                    raise SystemExit(f"{name} failed")
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    main()
