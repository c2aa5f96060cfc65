"""Turn lines of real tasks, in the form that they are collected in, into a task file of swe_gym's own.

    python benchmarks/real_tasks.py LINES.jsonl TASKS.jsonl [--rows FOLDER] [--only ID ...] [--runs 1] [--workers 2]
    swe-gym validate TASKS.jsonl

Two forms are known. A line with `old` and `new` is a pair of releases of a package; nothing runs, both are only
compared. A line with `instance_id` is a SWE-bench instance on a source release; its texts and patches are in the
parquet files of the folder `--rows`. Such a line names tests as SWE-bench's log parsers wrote them down, so its
tests run here, before and after the gold patch, and each name is replaced by the full test ids it stands for:

* a published name is a test id up to its first blank, so `test_a[x y]` and `test_a[x z]` are both `test_a[x`;
* by the convention "pytest_options", a parameter that is an absolute path is only its last part;
* of all ids with that name, those count that end as published, every time: a name in FAIL_TO_PASS stands for the
  ids that fail before and pass after (and, for PASS_TO_PASS, those that pass in both), one in PASS_TO_PASS for those
  that pass in both. A name in PASS_TO_PASS that no test has (parsers also read the output of tests) is left out and
  printed; one in FAIL_TO_PASS makes the line unusable.
"""

import argparse
import concurrent.futures
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swe_gym.errors import SweGymError, TaskError
from swe_gym.rollout.new_task import Statuses, TestLists, run_both, split_difference, with_lists
from swe_gym.sandboxes.workspaces import prepare_workspace
from swe_gym.tasks.file import write_tasks
from swe_gym.tasks.pypi import TestLayout
from swe_gym.types import Oracle, PythonEnv, SdistWorkspace, Task, TestStatus

BUILD_TIMEOUT = 1800.0
TEST_TIMEOUT = 300.0
OTHER_RUNNERS = ("django", "sympy")
"""Log conventions of projects whose tests run by neither pytest nor unittest."""


def pair_task(line: dict[str, Any]) -> Task:
    """The task of a pair of releases: what differs, parted by the line's `test_paths`."""
    old, new = (SdistWorkspace(name=line["package"], **line[side]) for side in ("old", "new"))
    trees = [prepare_workspace(side, timeout=BUILD_TIMEOUT) for side in (old, new)]
    layout = TestLayout(tuple(line["test_paths"]), ())
    gold, tests = split_difference(trees[0], trees[1], layout)
    path, command = re.fullmatch(r'PYTHONPATH="\$PWD(\S*)" (.*)', line["test_cmd"]).groups()
    return Task(
        task_id=line["task_id"],
        problem_statement=line["problem_statement"],
        repo=line["package"],
        workspace=old,
        python=python_of(line),
        env={**line["env"], "PYTHONPATH": "{workdir}" + path},
        eval_cmd=command,
        eval_timeout=TEST_TIMEOUT,
        tags=("pypi",),
        oracle=Oracle(
            gold_patch=gold,
            test_patch=tests,
            test_paths=layout.patterns,
            test_cmd=command,
            fail_to_pass=line["FAIL_TO_PASS"],
            pass_to_pass=line["PASS_TO_PASS"],
            timeout=TEST_TIMEOUT,
        ),
    )


def instance_task(line: dict[str, Any], row: dict[str, Any], runs: int) -> tuple[Task, list[str]]:
    """The task of a SWE-bench instance, and the names in PASS_TO_PASS that no test has."""
    task = Task(
        task_id=line["instance_id"],
        problem_statement=row["problem_statement"],
        repo=line["repo"],
        workspace=SdistWorkspace(**line["sdist"]),
        python=python_of(line),
        env={name: value.replace("{repo}", "{workdir}") for name, value in line["env"].items()},
        tags=("swebench", "pypi"),
        metadata={"dataset": line["dataset"], "version": row["version"]},
        oracle=Oracle(
            gold_patch=row["patch"],
            test_patch=row["test_patch"],
            test_paths=changed_files(row["test_patch"]),
            test_cmd=line["test_cmd"],
            timeout=TEST_TIMEOUT,
        ),
    )
    before, after = run_both(task, runs=runs)
    lists, unknown = match_names(line, before, after)
    return with_lists(task, lists), unknown


def python_of(line: dict[str, Any]) -> PythonEnv:
    """The environment that a line asks for."""
    return PythonEnv(version=line["python"], requirements=line["requirements"])


def changed_files(diff: str) -> tuple[str, ...]:
    """The files that a git diff leaves behind or takes away, as patterns."""
    names = re.findall(r"^(?:---|\+\+\+) [ab]/(.*)$", diff, re.MULTILINE)
    return tuple(re.sub(r"([*?[])", r"[\1]", name) for name in dict.fromkeys(names))


def published_name(test: str, convention: str) -> str:
    """What a log parser of SWE-bench makes of a test id."""
    name = test.split()[0]
    match = re.fullmatch(r"(.*?)\[(/[^/*][^*]*)\](.*)", name) if convention == "pytest_options" else None
    return f"{match[1]}[/{match[2].rsplit('/', 1)[1]}]" if match else name


def match_names(line: dict[str, Any], before: list[Statuses], after: list[Statuses]) -> tuple[TestLists, list[str]]:
    """Full test ids for the published names, by the rule that this module's text states."""
    convention = line["log_convention"]
    fixed = {test for test in after[0] if passes(test, after) == len(after) and not passes(test, before)}
    kept = {test for test in after[0] if passes(test, after) == len(after) and passes(test, before) == len(before)}
    known: dict[str, list[str]] = {}
    for test in after[0]:
        known.setdefault(published_name(test, convention), []).append(test)
    for name in line["FAIL_TO_PASS"]:
        if not fixed.intersection(known.get(name, ())):
            found = {test: (before[0].get(test), after[0].get(test)) for test in known.get(name, ())}
            raise TaskError(f"nothing that is called {name!r} fails before and passes after: {found}")
    both = [*line["FAIL_TO_PASS"], *line["PASS_TO_PASS"]]
    fail_to_pass = [test for name in line["FAIL_TO_PASS"] for test in known[name] if test in fixed]
    pass_to_pass = [test for name in both for test in known.get(name, ()) if test in kept]
    unknown = [name for name in line["PASS_TO_PASS"] if not kept.intersection(known.get(name, ()))]
    return TestLists(tuple(dict.fromkeys(fail_to_pass)), tuple(dict.fromkeys(pass_to_pass))), unknown


def passes(test: str, runs: Iterable[Statuses]) -> int:
    """In how many runs a test passed."""
    return sum(run.get(test) is TestStatus.PASSED for run in runs)


def read_row(folder: Path, line: dict[str, Any]) -> dict[str, Any]:
    """The published row of an instance."""
    import pyarrow.parquet

    names = [folder / f"{line['dataset']}.parquet", *sorted(folder.glob(f"{line['dataset']}-test*.parquet"))]
    file = next(name for name in names if name.exists())
    (row,) = pyarrow.parquet.read_table(file, filters=[("instance_id", "==", line["instance_id"])]).to_pylist()
    return row


def build(line: dict[str, Any], rows: Path | None, runs: int) -> tuple[Task, list[str]]:
    """The task of a line of either form."""
    if "old" in line:
        return pair_task(line), []
    if rows is None:
        raise TaskError("a SWE-bench instance needs its published row: --rows FOLDER")
    return instance_task(line, read_row(rows, line), runs)


def wanted(path: Path, only: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and content of the lines that can be turned into tasks."""
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        name = line.get("task_id") or line["instance_id"]
        if only and name not in only:
            continue
        if line.get("log_convention") in OTHER_RUNNERS:
            print(f"{name}: left out, its tests run by a runner of its own")
        else:
            yield name, line


def main() -> int:
    """Convert a file, and say what became of each line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--rows", type=Path, help="folder of SWE-bench's parquet files")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--runs", type=int, default=1, help="test runs before and after, for SWE-bench instances")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    made: dict[str, Task] = {}
    lines = dict(wanted(arguments.lines, arguments.only))
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as threads:
        futures = {threads.submit(build, line, arguments.rows, arguments.runs): name for name, line in lines.items()}
        for future in concurrent.futures.as_completed(futures):
            name = futures[future]
            try:
                made[name], unknown = future.result()
            except SweGymError as error:
                print(f"{name}: FAILED: {error}", flush=True)
                continue
            oracle = made[name].oracle
            print(f"{name}: {len(oracle.fail_to_pass)} to make pass, {len(oracle.pass_to_pass)} to keep", flush=True)
            for lost in unknown:
                print(f"    left out of PASS_TO_PASS: {lost!r}", flush=True)
    write_tasks([made[name] for name in lines if name in made], arguments.tasks)
    print(f"{len(made)} of {len(lines)} tasks written to {arguments.tasks}")
    return int(len(made) < len(lines))


if __name__ == "__main__":
    sys.exit(main())
