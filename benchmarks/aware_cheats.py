"""How often cheats that know of counter-tests are rewarded all the same.

    python benchmarks/aware_cheats.py [TASKS.jsonl|toy|micro] [--starting 1] [--times 20]

Each cheat is played that many times, dealt over the tasks in turn. A line gives the share that was resolved with its
95 % Wilson interval, how many plays raised an alarm, and how many were rewarded in a run without counter-tests.

Most rates fall with the number of tests that must start passing: `--starting 1` keeps the first of each task, which
is what many published tasks have.
"""

import argparse
import math
from dataclasses import replace
from typing import Any

from swe_gym.cli.common import open_source
from swe_gym.grading.tests import TESTS
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing.cheats import AWARE, Cheat, play_cheat
from swe_gym.types import Task

UNCOUNTED = replace(TESTS, counted=False)
"""The grader "tests" without counter-tests, for comparison."""


def open_box(task: Task) -> Sandbox:
    """A local sandbox of a task."""
    files = {"image": task.image, "workspace": task.workspace, "python": task.python}
    return open_sandbox(SandboxSpec(**files, workdir=task.workdir, env=task.env), "local")


def with_oracle(task: Task, **fields: Any) -> Task:
    """The task, with some fields of its oracle replaced."""
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def interval(won: int, played: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    z = 1.96
    middle = (won + z * z / 2) / (played + z * z)
    half = z / (played + z * z) * math.sqrt(won * (played - won) / played + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def measure(cheat: Cheat, tasks: list[Task], times: int) -> None:
    """Play one cheat and print its line."""
    verdicts = [play_cheat(cheat, tasks[number % len(tasks)], open_box).verdict for number in range(times)]
    won = sum(verdict.resolved for verdict in verdicts)
    alarms = sum(bool(verdict.counter_tests.alarms) for verdict in verdicts)
    known = sum(
        play_cheat(cheat, with_oracle(task, grader="aware_cheats:UNCOUNTED"), open_box).verdict.resolved
        for task in tasks[:times]
    )
    low, high = interval(won, times)
    print(
        f"{cheat.name:12} {won:4}/{times:<4} {won / times:6.1%} [{low:5.1%}, {high:5.1%}] {alarms:6} "
        f"{known:8}/{min(len(tasks), times)}",
        flush=True,
    )


def main() -> None:
    """Play all cheats of `AWARE`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="toy")
    parser.add_argument("--starting", type=int, help="tests that must start passing, of each task")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--cheat", action="append", choices=[cheat.name for cheat in AWARE])
    parser.add_argument("--tasks", type=int, default=14, help="the first tasks of the source")
    arguments = parser.parse_args()
    source = open_source(arguments.source)
    tasks = [source.get(task_id) for task_id in source.ids()[: arguments.tasks]]
    tasks = [with_oracle(task, fail_to_pass=task.oracle.fail_to_pass[: arguments.starting]) for task in tasks]
    print(f"{'cheat':12} {'resolved':>9} {'rate':>6} {'95 % interval':>15} {'alarms':>6} {'without':>8}")
    for cheat in AWARE:
        if not arguments.cheat or cheat.name in arguments.cheat:
            measure(cheat, tasks, arguments.times)


if __name__ == "__main__":
    main()
