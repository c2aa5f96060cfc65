"""Measure imports, frames, environment construction, task registration, and tools on a repository of 2,000 files.

    python benchmarks/core.py
    python benchmarks/core.py --frames [--task 'threeway-*']

The second form counts the frames of each folder, and measures nothing else. `swe-gym bench sandbox` measures sandboxes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType

import gymnasium
from common import LiveTable, milliseconds, show

import swe_gym
from swe_gym.cli.bench import alternate
from swe_gym.cli.common import open_source
from swe_gym.envs.registration import register_tasks
from swe_gym.envs.swe_env import SweEnv
from swe_gym.grading.patch import apply_diff
from swe_gym.grading.probe import forget
from swe_gym.tasks.file import write_tasks
from swe_gym.types import Task

FILES = 2_000
ROUNDS = 50


def main() -> None:
    """Measure, and print each figure with its upper bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", action="store_true", help="count the frames of toy tasks and stop")
    parser.add_argument("--task", default="*", help="toy tasks of --frames")
    arguments = parser.parse_args()
    if arguments.frames:
        print_frames(arguments.task)
        return
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
    """Count the frames of a step, and of submits of the gold patch of the first toy task."""
    with gymnasium.make("SWE/Toy-v0") as env:
        counted = count_episodes(env.unwrapped, {"seed": 0})
    bars = {"step": "120", "first submit": "", "later submit": "3,500"}
    return [(f"frames of a {name}", f"{counts.total():,}", bars[name]) for name, counts in counted.items()]


def print_frames(match: str) -> None:
    """Print the frames of each folder, for the toy tasks that a pattern matches."""
    table = LiveTable("frames", "grading/counter", "grading", "sandboxes", "the rest", "resumed", "what", "task")
    with gymnasium.make("SWE/Toy-v0") as env:
        for task_id in filter(lambda name: fnmatchcase(name, match), open_source("toy").ids()):
            for name, counts in count_episodes(env.unwrapped, {"options": {"task_id": task_id}}).items():
                folders = Counter({folder: counts[folder] for folder in ("grading/counter", "grading", "sandboxes")})
                resumed = counts["resumed"]
                rest = counts.total() - folders.total() - resumed
                row = [counts.total(), *folders.values(), rest, resumed]
                table.add(*(f"{count:,}" for count in row), name, task_id)


def count_episodes(env: gymnasium.Env, reset: dict) -> dict[str, Counter[str]]:
    """Count the frames of a step, of the first submit of gold on a machine, and of a later one."""
    assert isinstance(env, SweEnv)
    counted: dict[str, Counter[str]] = {}
    for name in ("first submit", "later submit"):
        env.reset(**reset)
        if name == "first submit":
            forget(env.task)
        apply_diff(env.sandbox, env.task.oracle.gold_patch)
        for _ in range(2):  # the first one imports
            counted["step"] = count_frames(lambda: env.step('{"name": "bash", "arguments": {"command": "true"}}'))
        counted[name] = count_frames(lambda: env.step('{"name": "submit", "arguments": {}}'))
        assert env.verdict is not None, env.stats["failure"]
        assert env.verdict.resolved, env.verdict.reason
    return counted


def count_frames(work: Callable[[], object]) -> Counter[str]:
    """Count the calls of this package's functions in all threads: folder -> calls, and "resumed" generators."""
    package = f"{Path(swe_gym.__file__).parent}/"
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            # The argument of RESUME is 0 where a function starts.
            resumed = code.co_flags & CO_GENERATOR and code.co_code[frame.f_lasti + 1] & 3
            folder = code.co_filename.removeprefix(package).rpartition("/")[0]
            counts["resumed" if resumed else folder] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed wants a function
    return counts


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
