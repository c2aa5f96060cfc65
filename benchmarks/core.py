"""What the package itself costs: constructing, registering, importing, and the tools on a repository of 2,000 files.

    python benchmarks/core.py

Prints one table. `swe-gym bench sandbox` measures the sandboxes.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
from rich.console import Console
from rich.table import Table

import swe_gym
from swe_gym.cli.bench import alternate
from swe_gym.envs.registration import register_tasks
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

FILES = 2_000
ROUNDS = 50


def main() -> None:
    """Measure, and print each figure beside the bar that it must not pass."""
    table = Table("what", "measured", "bar", title="swe_gym")
    table.add_row("import swe_gym, beyond gymnasium and numpy", f"{import_ms():.0f} ms", "200 ms")
    table.add_row("a step `bash true`, beside subprocess.run(['true'])", f"{step_ratio():.1f}x", "3x")
    table.add_row("construct 1,000 environments", f"{seconds(construct):.2f} s", "1 s")
    with tempfile.TemporaryDirectory() as folder:
        table.add_row("register 25,000 tasks", f"{register(Path(folder)):.2f} s", "1 s")
    with tempfile.TemporaryDirectory() as folder:
        for name, milliseconds in tools(Path(folder)).items():
            table.add_row(f"{name}, {FILES:,} files, median", f"{milliseconds:.1f} ms", "5 ms")
    Console().print(table)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def import_ms() -> float:
    """Median difference of two fresh interpreters, one that imports swe_gym too."""

    def run(modules: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", f"import {modules}"], check=True))

    differences = []
    for _ in range(7):
        without = run("gymnasium, numpy")
        differences.append(run("gymnasium, numpy, swe_gym") - without)
    return statistics.median(differences) * 1000


def step_ratio() -> float:
    """A whole step with the bash tool, over a process without a sandbox, measured in turns."""
    action = '{"name": "bash", "arguments": {"command": "true"}}'
    with gymnasium.make("SWE/Toy-v0", max_turns=100_000) as env:
        env.reset(seed=0)
        step, process = alternate(lambda: env.step(action), lambda: subprocess.run(["true"], check=True), 200)
    return step / process


def construct() -> None:
    """As users do: by id, each its own. No sandbox is started."""
    for _ in range(1_000):
        gymnasium.make("SWE/Toy-v0")


def register(folder: Path) -> float:
    """Ids of 25,000 tasks that a file holds; reading the file is not counted."""
    path = folder / "tasks.jsonl"
    write_tasks((Task(task_id=f"task-{number}", problem_statement="") for number in range(25_000)), path)
    ids = [f"task-{number}" for number in range(25_000)]
    return seconds(lambda: register_tasks("file", ids, prefix="Bench", path=str(path)))


def tools(folder: Path) -> dict[str, float]:
    """Milliseconds of `env.step` for each of the tools that look at files."""
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
    source_options = {"path": str(folder), "test_cmd": "true"}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with gymnasium.make("SWE/Local-v0", max_turns=100_000, **source_options) as env:
        env.reset()
        for turn in range(ROUNDS):
            for name, call in calls.items():
                action = call.replace("ROUND", str(turn))
                started = time.perf_counter()
                *_, info = env.step(action)
                times[name].append(time.perf_counter() - started)
                if not info["tool_ok"] and name != "grep, no match":
                    raise SystemExit(f"{name} failed")
    return {name: statistics.median(values) * 1000 for name, values in times.items()}


if __name__ == "__main__":
    assert swe_gym.__version__
    main()
