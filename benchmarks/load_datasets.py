"""Load published datasets: count the tasks, and measure time and memory.

    python benchmarks/load_datasets.py [FOLDER] [--rows 50000]

FOLDER holds published rows (default: `../shared/data`). Three tables are printed:

* rows per file, rows that load as tasks, and why others do not;
* time and memory of opening SWE-bench Verified in a fresh process, and of its first tasks;
* the same for a generated dataset of `--rows` rows of SWE-smith's size. The bytes read show that other rows are not.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from common import show

from swe_gym.errors import SweGymError, TaskError
from swe_gym.grading.log_parsers import load_parser
from swe_gym.tasks import load_source
from swe_gym.types import Task

FILES = {
    "swebench": ("swebench", "swebench/*.parquet"),
    "r2e": ("r2e", "r2e/*row*.json*"),
    "swesmith": ("swesmith", "swesmith/rows.jsonl"),
    "swegym": ("swegym", "swegym/rows.jsonl"),
    "swe_rebench": ("swe_rebench", "swe_rebench/*"),
    "multi_swe_bench": ("multi_swe_bench", "multi_swe_bench/*.jsonl"),
    "swe_bench_pro": ("swe_bench_pro", "swe_bench_pro/rows.jsonl"),
    "swe_bench_live": ("swe_bench_live", "swe_bench_live/*.jsonl"),
}
"""Task source -> its files in the folder."""

PROBE = """
import json, sys, time
import swe_gym
def memory():
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
def read_bytes():
    return int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])
source, path, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
before, started = memory(), time.perf_counter()
from swe_gym.tasks import load_source
tasks = load_source(source, path=path)
opened, ids = time.perf_counter() - started, tasks.ids()
after, read = memory(), read_bytes()
started = time.perf_counter()
tasks.get(ids[number])
first = time.perf_counter() - started
read = read_bytes() - read
started = time.perf_counter()
tasks.get(ids[number // 2])
print(json.dumps([len(ids), opened, after - before, first, memory() - before, time.perf_counter() - started, read]))
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(Path(__file__).parents[2] / "shared" / "data"))
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    if folder.is_dir():
        print_loading(folder)
        print_costs("SWE-bench Verified, 500 rows", "swebench", folder / "swebench/SWE-bench_Verified-test.parquet")
    else:
        print(f"{folder} does not exist: only the generated dataset is measured\n")
    print_large(arguments.rows)


def print_loading(folder: Path) -> None:
    """Count the rows of each file that load as tasks."""
    rows: list[tuple[str, ...]] = []
    reasons: list[str] = []
    for source, pattern in FILES.values():
        for file in sorted(folder.glob(pattern)):
            name = str(file.relative_to(folder))
            try:
                tasks = load_source(source, path=str(file))
            except SweGymError as error:
                reasons.append(str(error))
                rows.append((name, "-", "0"))
                continue
            loaded: list[Task] = []
            for task_id in tasks.ids():
                try:
                    loaded.append(round_trip(tasks.get(task_id)))
                except TaskError as error:
                    reasons.append(str(error))
            tests = sum(
                len(t.oracle.fail_to_pass) + len(t.oracle.pass_to_pass) + len(t.oracle.expected) for t in loaded
            )
            unknown = Counter(t.oracle.log_parser for t in loaded if not parser_known(t.oracle.log_parser))
            rows.append((name, str(len(tasks.ids())), str(len(loaded)), str(tests), ", ".join(unknown) or "none"))
    show("datasets", ("file", "rows", "tasks", "required tests", "unknown parsers"), rows)
    print("\nNot loaded:\n")
    alike = Counter(re.sub(r"(line|row) \d+", r"\1 ...", reason.replace(f"{folder}/", "")) for reason in reasons)
    for reason, count in alike.items():
        print(f"* {count}: {reason}")
    print()


def round_trip(task: Task) -> Task:
    """Return the task after a lossless round trip through JSON."""
    assert Task.model_validate_json(task.model_dump_json()) == task
    return task


def parser_known(name: str) -> bool:
    """Return whether a log parser is known by name, or is a program in the row."""
    try:
        return "\n" in name or load_parser(name) is not None
    except SweGymError:
        return False


def print_costs(title: str, source: str, path: Path, number: int = -1) -> None:
    """Measure a fresh process."""
    probe = [sys.executable, "-c", PROBE, source, str(path), str(number)]
    runs = [json.loads(subprocess.run(probe, capture_output=True, check=True, timeout=600).stdout) for _ in range(3)]
    count, opened, memory, first, memory_after, second, read = min(runs, key=lambda run: run[1])
    size = path.stat().st_size / 1e6
    columns = ("open", "memory", "first task", "bytes read for it", "memory after it", "second task")
    row = (
        f"{opened:.3f} s",
        f"{memory:.0f} MB",
        f"{first * 1000:.1f} ms",
        f"{read / 1e6:.3f} MB",
        f"{memory_after:.0f} MB",
        f"{second * 1000:.1f} ms",
    )
    show(f"{title}: {count} ids, {size:.1f} MB on disk", columns, [row])


def print_large(rows: int) -> None:
    """Measure one task of a large generated dataset."""
    tests = [f"tests/test_module_{number // 20}.py::TestClass::test_number_{number}" for number in range(200)]
    patch = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    row = {"patch": patch, "PASS_TO_PASS": tests, "FAIL_TO_PASS": tests[:2], "problem_statement": "An issue. " * 150}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WRITERS.items():
            path = Path(folder) / f"rows.{name}"
            started = time.perf_counter()
            write(path, [{"instance_id": f"a__b.c.{number}", "repo": "swesmith/a__b.c", "image_name": "x", **row}
                         for number in range(rows)])  # fmt: skip
            print(f"\nwrote {rows} rows as {name} in {time.perf_counter() - started:.1f} s")
            print_costs(f"{rows} rows as {name}", "swesmith", path, rows - 7)


def _write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1000)


WRITERS: dict[str, Callable[[Path, list[dict[str, object]]], None]] = {"parquet": _write_parquet, "jsonl": _write_jsonl}


if __name__ == "__main__":
    main()
