"""Measure how often cheats that know of counter-tests are rewarded.

    python benchmarks/aware_cheats.py [TASKS.jsonl|toy|micro] [--starting 1] [--times 20] [--record FILE]
    python benchmarks/aware_cheats.py [TASKS.jsonl|toy|micro] --published [--times 3] [--backend docker --base IMAGE]

Each cheat is played `--times` times, over the tasks in turn. A row shows the share of resolved plays with its 95 %
Wilson interval, the plays that raised an alarm, those without a verdict, the first tasks that are resolved without
counter-tests, and how many functions with which effective number of texts were won. `--shows` lists those functions.

Most rates fall with the number of tests that must start passing. `--starting 1` keeps one per task, as many published
tasks have. `--record` names a record file of `swe-gym validate`. Without it, this process remembers what it finds out
about a task, as long runs do; `--forget` drops that before each play.

`--published` plays the other cheats, which must all score 0, and honest work, which must score 1: a row shows the plays
that ended so. The exit status is 1 if one did not.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from common import Knowledge, LiveTable, Opener, open_box, with_image

from swe_gym.cli.common import open_source
from swe_gym.errors import GradingError, SweGymError
from swe_gym.grading.graders import TESTS
from swe_gym.testing.cheats import AWARE, CHEATS, HONEST, Cheat, play_cheat
from swe_gym.types import Task, Verdict

UNCOUNTED = replace(TESTS, counted=False)
"""The grader "tests" without counter-tests."""

CHECKED = 1
"""Tasks, from the first, on which each cheat is also played without counter-tests: there it must be rewarded."""


def with_oracle(task: Task, **fields: Any) -> Task:
    """Replace fields of a task's oracle."""
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=fields)})


def interval(won: int, played: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z = 1.96
    middle = (won + z * z / 2) / (played + z * z)
    half = z / (played + z * z) * math.sqrt(won * (played - won) / played + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def measure(
    cheat: Cheat,
    tasks: list[Task],
    times: int,
    play: Callable[[Cheat, Task], Verdict | None],
    open_box: Opener,
    *,
    shows: bool,
) -> tuple[str, ...]:
    """Play a cheat and return its row."""
    played = [(tasks[number % len(tasks)], play(cheat, tasks[number % len(tasks)])) for number in range(times)]
    verdicts = [verdict for _, verdict in played if verdict is not None]
    won = [(task, verdict) for task, verdict in played if verdict is not None and verdict.resolved]
    if shows:
        for task, verdict in won:
            print(f"    {task.task_id}: {_texts(task, verdict)} texts, {dict(verdict.counter_tests.kinds)}", flush=True)
    alarms = sum(bool(verdict.counter_tests.alarms) for verdict in verdicts)
    uncounted = [with_oracle(task, grader="aware_cheats:UNCOUNTED") for task in tasks[: min(times, CHECKED)]]
    known = sum(play_cheat(cheat, task, open_box).verdict.resolved for task in uncounted)
    low, high = interval(len(won), times)
    rate = f"{len(won) / times:.1%} [{low:.1%}, {high:.1%}]"
    texts = Counter(_texts(task, verdict) for task, verdict in won)
    of_won = " ".join(f"{number}:{count}" for number, count in sorted(texts.items())) or "-"
    return (
        *(f"{len(won)}/{times}", f"{rate:>21}", str(alarms), str(times - len(verdicts))),
        *(f"{known}/{len(uncounted)}", of_won, cheat.name),
    )


def check(cheat: Cheat, tasks: list[Task], times: int, open_box: Opener) -> tuple[str, ...]:
    """Play a published cheat or honest work, and return its row: plays that ended as they must, and all.

    The first tasks differ between cheats, so that few plays of each meet all tasks.
    """
    right, reasons = 0, []
    for number in range(times):
        task = tasks[(len(cheat.name) + number) % len(tasks)]
        try:
            result = play_cheat(cheat, task, open_box)
        except SweGymError as error:
            reasons.append(f"{task.task_id}: {error}")
            continue
        ends = result.verdict.resolved is cheat.resolved and not result.leaked
        right += ends
        if not ends:
            reasons.append(f"{task.task_id}: {result.verdict.reason or 'resolved'}: {result.output[-300:]}")
    return f"{right}/{times}", "1" if cheat.resolved else "0", " ".join([cheat.name, *reasons])


def player(knowledge: Knowledge, open_box: Opener) -> Callable[[Cheat, Task], Verdict | None]:
    """Return a function that plays a cheat. It returns None if there is no verdict."""

    def play(cheat: Cheat, task: Task) -> Verdict | None:
        try:
            return play_cheat(cheat, task, open_box, counter=knowledge.options(task)).verdict
        except GradingError:
            return None

    return play


def _texts(task: Task, verdict: Verdict) -> int:
    """The effective number of texts of the function that has the fewest."""
    texts = verdict.counter_tests.texts
    return min((texts.get(test, 1) for test in task.oracle.fail_to_pass), default=1)


def main() -> int:
    """Play the cheats of `AWARE`, or the published ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="toy")
    parser.add_argument("--starting", type=int, help="tests per task that must start passing (default: all)")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--published", action="store_true", help="play the cheats that must score 0, and honest work")
    parser.add_argument("--cheat", action="append", choices=[cheat.name for cheat in (*CHEATS, *HONEST, *AWARE)])
    parser.add_argument("--tasks", type=int, default=14, help="number of tasks, from the start of the source")
    parser.add_argument("--timeout", type=float, help="time limit of the tests in seconds (default: the task's)")
    parser.add_argument("--shows", action="store_true", help="list the functions that were won")
    parser.add_argument("--record", default="", help="record file of `swe-gym validate`")
    parser.add_argument("--forget", action="store_true", help="find out about each task in each play")
    parser.add_argument("--backend", default="local", choices=["local", "docker", "kubernetes"])
    parser.add_argument("--base", help="base image of the images that a Docker engine builds for the tasks")
    arguments = parser.parse_args()
    opener = partial(open_box, backend=arguments.backend)
    play = player(Knowledge(arguments.record, forgets=arguments.forget), opener)
    source = open_source(arguments.source)
    tasks = [with_image(source.get(task_id), arguments.base) for task_id in source.ids()[: arguments.tasks]]
    tasks = [with_oracle(task, fail_to_pass=task.oracle.fail_to_pass[: arguments.starting]) for task in tasks]
    if arguments.timeout:
        tasks = [with_oracle(task, timeout=arguments.timeout) for task in tasks]
    chosen = [
        cheat
        for cheat in ((*CHEATS, *HONEST) if arguments.published else AWARE)
        if not arguments.cheat or cheat.name in arguments.cheat
    ]
    if arguments.published:
        table = LiveTable("right", "reward", "cheat")
        wrong = 0
        for cheat in chosen:
            row = check(cheat, tasks, arguments.times, opener)
            table.add(*row)
            wrong += row[0] != f"{arguments.times}/{arguments.times}"
        return int(wrong > 0)
    columns = ("resolved", "rate [95 % interval] ", "alarms", "no verdict", "without", "texts of won", "cheat")
    table = LiveTable(*columns)
    for cheat in chosen:
        table.add(*measure(cheat, tasks, arguments.times, play, opener, shows=arguments.shows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
