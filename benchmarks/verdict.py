"""Measure the overhead of a verdict: the time from `submit` to the reward, minus the time of the tests.

    python benchmarks/verdict.py [--backend local] [--image IMAGE] [--source toy] [--match '*'] [--times 5]

Each episode's sandbox contains the gold patch, so that there is a patch to grade.
"""

import argparse
import contextlib
import statistics
import time
from fnmatch import fnmatchcase
from typing import Any

from common import LiveTable

from swe_gym.cli.common import open_source
from swe_gym.envs.swe_env import SweEnv
from swe_gym.grading.patch import apply_diff

SUBMIT = '{"name": "submit", "arguments": {}}'


def measure(env: SweEnv, task_id: str) -> tuple[float, float]:
    """Return the seconds of the last step and of its tests."""
    env.reset(options={"task_id": task_id})
    apply_diff(env.sandbox, env.task.oracle.gold_patch)
    started = time.monotonic()
    _, reward, _, _, info = env.step(SUBMIT)
    seconds = time.monotonic() - started
    assert env.verdict is not None, env.stats["failure"]
    assert reward == 1.0, (info, env.verdict.reason)
    return seconds, env.verdict.duration


def sandbox_options(backend: str, image: str | None) -> dict[str, Any]:
    """Return the options that set an image, if the backend runs images."""
    return {"options": {"default_image": image}} if image and backend != "local" else {}


def main() -> None:
    """Measure tasks, and print a row for each and the median of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--image", help="image of tasks without one")
    parser.add_argument("--source", default="toy", help="'toy' or a task file")
    parser.add_argument("--match", default="*")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    source, options = ("toy", {}) if arguments.source == "toy" else ("file", {"path": arguments.source})
    ids = [name for name in open_source(arguments.source).ids() if fnmatchcase(name, arguments.match)]
    env = SweEnv(
        source, options, backend=arguments.backend, sandbox_options=sandbox_options(arguments.backend, arguments.image)
    )
    extra: list[float] = []
    table = LiveTable("tests", "verdict", "overhead", "relative", "task")
    with contextlib.closing(env):
        for task_id in ids:
            runs = [measure(env, task_id) for _ in range(arguments.times)]
            tests, total = statistics.median(t for _, t in runs), statistics.median(s for s, _ in runs)
            beside = [seconds - duration for seconds, duration in runs]
            extra += beside
            cost = statistics.median(beside)
            table.add(f"{tests:.3f} s", f"{total:.3f} s", f"{cost:.3f} s", f"{cost / tests:.0%}", task_id)
    print(f"overhead: median {statistics.median(extra):.3f} s, maximum {max(extra):.3f} s, {len(extra)} verdicts")


if __name__ == "__main__":
    main()
