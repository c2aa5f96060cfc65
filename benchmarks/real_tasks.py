"""Validate real tasks that need only the package index: the gold patch must earn 1 and an empty patch 0, every time.

    python benchmarks/real_tasks.py LINES --rows ROWS [--backend docker --base IMAGE] [--record FILE] [--seconds 280]
                                    [--seed 1] [--slice 0:20]

LINES is a JSONL file, or a folder with `release_pairs.jsonl` and `swebench_on_pypi.jsonl`. ROWS holds the parquet
files of SWE-bench. There are two kinds of lines:

old, new       Two releases of a package. If FAIL_TO_PASS is missing, the lists of tests are measured as in
               `swe-gym tasks new`.
instance_id    A SWE-bench instance on the release nearest to its base commit. The line replaces the image. The instance
               is graded as published; a line with its own lists omits tests that cannot be reproduced.

With --base, a Docker engine builds the image of each task first; the backend "local" then runs it without the engine.
With --record, finished tasks are not run again. With --seconds, no task starts after that time; repeat the command to
resume. --seed shuffles the tasks, and --slice selects from them.
"""

import argparse
import concurrent.futures
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import LiveTable, import_image, with_image

from swe_gym.curation.new_task import compare_runs, run_both, split_difference, with_lists
from swe_gym.curation.releases import TestLayout
from swe_gym.curation.validation import TaskRecord, read_records, validate
from swe_gym.errors import SweGymError
from swe_gym.sandboxes.contents.workspaces import prepare_workspace
from swe_gym.tasks.file import write_tasks
from swe_gym.tasks.swebench import task_from_row
from swe_gym.types import Oracle, PythonEnv, SdistWorkspace, Task

FILES = ("release_pairs.jsonl", "swebench_on_pypi.jsonl")
BUILD_TIMEOUT = 1800.0
TEST_TIMEOUT = 600.0
SCRIPT = "cd {workdir}\n: '>>>>> Start Test Output'\n%s\n: '>>>>> End Test Output'\n"
"""A SWE-bench evaluation script without conda and builds."""
UNSEEDED, SEEDED = "subprocess=False)", "subprocess=False, seed=1)"
"""sympy's runner draws a random seed, which makes some tests flaky."""


def pair_task(line: dict[str, Any]) -> Task:
    """Make a task from two releases; `test_paths` splits their difference into tests and gold patch."""
    old, new = (SdistWorkspace(name=line["package"], **line[side]) for side in ("old", "new"))
    trees = [prepare_workspace(side, timeout=BUILD_TIMEOUT) for side in (old, new)]
    layout = TestLayout(tuple(line["test_paths"]), ())
    gold, tests = split_difference(trees[0], trees[1], layout)
    match = re.fullmatch(r'PYTHONPATH="\$PWD(\S*)" (.*)', line["test_cmd"])
    assert match is not None
    path, command = match.groups()
    return Task(
        task_id=line["task_id"],
        problem_statement=line["problem_statement"],
        repo=line["package"],
        workspace=old,
        python=PythonEnv(version=line["python"], requirements=line["requirements"]),
        env={**line["env"], "PYTHONPATH": "{workdir}" + path},
        eval_cmd=command,
        eval_timeout=TEST_TIMEOUT,
        tags=("pypi",),
        oracle=Oracle(
            gold_patch=gold,
            test_patch=tests,
            test_paths=layout.patterns,
            test_cmd=command,
            **published_lists(line),
            timeout=TEST_TIMEOUT,
        ),
    )


def published_lists(line: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the lists of tests in a line, as fields of an oracle."""
    return {name.lower(): tuple(line[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS") if name in line}


def instance_task(line: dict[str, Any], row: dict[str, Any]) -> Task:
    """Make the task of a SWE-bench row, in the workspace and environment of the line."""
    task = task_from_row(row)
    oracle = task.oracle.model_copy(
        update={
            "eval_script": SCRIPT % line["test_cmd"].replace(UNSEEDED, SEEDED),
            **published_lists(line),
            "timeout": TEST_TIMEOUT,
        }
    )
    return task.model_copy(
        update={
            "image": None,
            "workspace": SdistWorkspace(**line["sdist"]),
            "python": PythonEnv(version=line["python"], requirements=line["requirements"]),
            "env": {name: value.replace("{repo}", "{workdir}") for name, value in line["env"].items()},
            "tags": ("swebench", "pypi"),
            "oracle": oracle,
        }
    )


def read_row(folder: Path, line: dict[str, Any]) -> dict[str, Any]:
    """Read the published row of an instance."""
    import pyarrow.parquet

    file = folder / f"{line['dataset']}.parquet"
    (row,) = pyarrow.parquet.read_table(file, filters=[("instance_id", "==", line["instance_id"])]).to_pylist()
    return dict(row)


class RealTasks:
    """A task source over lines. A task, its image and its lists are made once, on first use.

    Args:
        lines: A file, or a folder with the files of `FILES`.
        rows: Folder with SWE-bench's parquet files.
        base: Base image for images to build; None builds none.
        backend: Backend that measures missing lists of tests.
        runs: Test runs per state for these measurements.
    """

    def __init__(
        self, lines: Path, rows: Path | None, base: str | None = None, backend: str = "local", runs: int = 3
    ) -> None:
        files = [lines] if lines.is_file() else [lines / name for name in FILES]
        found = [json.loads(text) for file in files for text in file.read_text(encoding="utf-8").splitlines()]
        self._lines = {line.get("task_id") or line["instance_id"]: line for line in found}
        self._rows = rows
        self._base = base
        self._backend = backend
        self._runs = runs
        self._made: dict[str, Task] = {}

    def ids(self) -> Sequence[str]:
        """Return the ids in the order of the files."""
        return tuple(self._lines)

    def get(self, task_id: str) -> Task:
        """Return the task of a line, with its image if images are built."""
        if task_id not in self._made:
            self._made[task_id] = self._make(self._lines[task_id])
        return self._made[task_id]

    def _make(self, line: dict[str, Any]) -> Task:
        task = pair_task(line) if "old" in line else instance_task(line, read_row(self._rows or Path(), line))
        task = with_image(task, self._base)
        if self._base is not None and self._backend == "local":
            import_image(task)
        if task.oracle.fail_to_pass:
            return task
        return with_lists(task, compare_runs(*run_both(task, runs=self._runs, backend=self._backend)))


def part(text: str) -> slice:
    """Parse `0:20`, `20:` or `:20` as a slice."""
    first, colon, end = text.partition(":")
    if not colon:
        raise ValueError(text)
    return slice(int(first or 0), int(end) if end else None)


def check(tasks: RealTasks, name: str, arguments: argparse.Namespace) -> TaskRecord:
    """Validate a task unless the record file holds it. Errors become records."""
    known = {old.task_id: old for old in read_records(arguments.record)} if arguments.record else {}
    if (old := known.get(name)) and (old.status, len(old.gold)) == ("valid", arguments.times):
        return old
    options = {"local": {}, "docker": {"pull": "never"}, "kubernetes": {"image_pull_policy": "Never"}}
    try:
        (record,) = validate(
            tasks,
            [name],
            backend=arguments.backend,
            sandbox_options={"options": options[arguments.backend]},
            times=arguments.times,
            workers=1,
            record=arguments.record,
        )
    except SweGymError as error:
        return TaskRecord(task_id=name, status="error", reason=str(error), backend=arguments.backend)
    return record


def print_record(table: LiveTable, record: TaskRecord) -> None:
    """Print the row of a task, and the reason if it has one."""
    gold, empty = (f"{sum(runs)}/{len(runs)}" for runs in (record.gold, record.empty))
    longest = max(record.seconds, default=0.0)
    table.add(record.status, gold, empty, f"{longest:.1f} s", record.task_id)
    for reason in record.reason.splitlines():
        print(f"         {reason}", flush=True)


def print_totals(backend: str, records: Sequence[TaskRecord | None]) -> None:
    """Count the tasks of each status. None is a task that was not started."""
    counts = Counter(record.status if record else "not started" for record in records)
    print(f"{backend}, {len(records)} tasks: {', '.join(f'{n} {status}' for status, n in counts.items())}")


def main() -> int:
    """Validate the tasks, and print a table and totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path, help="JSONL file, or folder with both files")
    parser.add_argument("--rows", type=Path, help="folder with SWE-bench's parquet files")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--seed", type=int, help="shuffle the tasks")
    parser.add_argument("--slice", type=part, default=slice(None), metavar="0:20", help="select from the tasks")
    parser.add_argument("--backend", default="local", choices=["local", "docker", "kubernetes"])
    parser.add_argument("--base", help="base image for images to build")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no task after this time")
    parser.add_argument("--write", type=Path, help="write the tasks to this file and exit")
    arguments = parser.parse_args()
    tasks = RealTasks(arguments.lines, arguments.rows, arguments.base, arguments.backend, arguments.times)
    names = [name for name in tasks.ids() if not arguments.only or name in arguments.only]
    if arguments.seed is not None:
        random.Random(arguments.seed).shuffle(names)
    names = names[arguments.slice]
    if arguments.write:
        write_tasks(map(tasks.get, names), arguments.write)
        return 0
    end = time.monotonic() + arguments.seconds
    records: list[TaskRecord | None] = []
    table = LiveTable("status", "gold", "empty", "longest", "task")
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as threads:
        futures = [
            threads.submit(lambda name=name: check(tasks, name, arguments) if time.monotonic() < end else None)
            for name in names
        ]
        for future in futures:
            records.append(record := future.result())
            if record:
                print_record(table, record)
    print_totals(arguments.backend, records)
    return int(any(record is None or record.status != "valid" for record in records))


if __name__ == "__main__":
    raise SystemExit(main())
