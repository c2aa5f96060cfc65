"""Measure how often cheats that know of counter-tests are rewarded.

    python benchmarks/aware_cheats.py [TASKS.jsonl|toy|micro] [--starting 1] [--times 20]

Each cheat is played `--times` times, over the tasks in turn. A row shows the share of resolved plays with its 95 %
Wilson interval, the plays that raised an alarm, and the plays that are resolved without counter-tests.

Most rates fall with the number of tests that must start passing. `--starting 1` keeps one per task, as many published
tasks have.
"""

import argparse
import math
from dataclasses import replace
from typing import Any

from common import LiveTable, open_box

from swe_gym.cli.common import open_source
from swe_gym.grading.tests import TESTS
from swe_gym.testing.cheats import AWARE, Cheat, play_cheat
from swe_gym.types import Task

UNCOUNTED = replace(TESTS, counted=False)
"""The grader "tests" without counter-tests."""


def with_oracle(task: Task, **fields: Any) -> Task:
    """Replace fields of a task's oracle."""
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def interval(won: int, played: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z = 1.96
    middle = (won + z * z / 2) / (played + z * z)
    half = z / (played + z * z) * math.sqrt(won * (played - won) / played + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def measure(cheat: Cheat, tasks: list[Task], times: int) -> tuple[str, ...]:
    """Play a cheat and return its row."""
    verdicts = [play_cheat(cheat, tasks[number % len(tasks)], open_box).verdict for number in range(times)]
    won = sum(verdict.resolved for verdict in verdicts)
    alarms = sum(bool(verdict.counter_tests.alarms) for verdict in verdicts)
    known = sum(
        play_cheat(cheat, with_oracle(task, grader="aware_cheats:UNCOUNTED"), open_box).verdict.resolved
        for task in tasks[:times]
    )
    low, high = interval(won, times)
    rate = f"{won / times:.1%} [{low:.1%}, {high:.1%}]"
    return f"{won}/{times}", f"{rate:>21}", str(alarms), f"{known}/{min(len(tasks), times)}", cheat.name


def main() -> None:
    """Play the cheats of `AWARE`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="toy")
    parser.add_argument("--starting", type=int, help="tests per task that must start passing (default: all)")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--cheat", action="append", choices=[cheat.name for cheat in AWARE])
    parser.add_argument("--tasks", type=int, default=14, help="number of tasks, from the start of the source")
    arguments = parser.parse_args()
    source = open_source(arguments.source)
    tasks = [source.get(task_id) for task_id in source.ids()[: arguments.tasks]]
    tasks = [with_oracle(task, fail_to_pass=task.oracle.fail_to_pass[: arguments.starting]) for task in tasks]
    table = LiveTable("resolved", "rate [95 % interval] ", "alarms", "resolved without counter-tests", "cheat")
    for cheat in AWARE:
        if not arguments.cheat or cheat.name in arguments.cheat:
            table.add(*measure(cheat, tasks, arguments.times))


if __name__ == "__main__":
    main()
