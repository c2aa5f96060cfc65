"""Audit tasks and print the table, the worst first.

    python benchmarks/audit.py toy --record FILE [--variants 16] [--match PATTERN] [--seconds 600]
    python benchmarks/audit.py LINES --rows ROWS --record FILE

The first form takes a task source by its name, or a task file. In the second, LINES and ROWS are those of
`real_tasks.py`. Finished tasks are not run again. With --seconds, no task starts after that time.
"""

import argparse
import fnmatch
import os
import time
from collections import Counter
from pathlib import Path

import real_tasks
from common import LiveTable

from swe_gym.curation import AuditRecord, audit_tasks
from swe_gym.tasks import TaskSource, is_place_of_tasks, load_source


def open_tasks(place: str, rows: Path | None) -> TaskSource:
    """Return the tasks that the arguments name."""
    if rows is not None:
        return real_tasks.RealTasks(Path(place), rows)
    return load_source("file", path=place) if is_place_of_tasks(place) else load_source(place)


def cells(record: AuditRecord) -> list[str]:
    """Return the row of one audit."""
    strength = "" if record.strength is None else f"{record.strength:.2f} ({record.killed}/{record.tried})"
    not_tried = [name for name, end in record.conditions.items() if end.startswith("not tried") and name != "network"]
    kinds = Counter(finding.kind for finding in record.findings)
    said = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or record.reason or "none"
    return [record.task_id, strength, ", ".join(not_tried), str(record.runs), f"{record.seconds:.0f}", said]


def main() -> None:
    """Audit the tasks that the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--variants", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--match", default="*")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    tasks, started = open_tasks(options.place, options.rows), time.monotonic()
    found: list[AuditRecord] = []
    print(f"load {os.getloadavg()[0]:.1f}")
    names = fnmatch.filter(tasks.ids(), options.match)
    for first in range(0, len(names), options.workers):
        if time.monotonic() - started > options.seconds:
            print(f"{len(names) - first} tasks left")
            break
        some = names[first : first + options.workers]
        found += audit_tasks(
            tasks,
            some,
            variants=options.variants,
            workers=options.workers,
            record=options.record,
            date=time.strftime("%F"),
        )
    table = LiveTable("task", "strength", "not tried", "runs", "s", "findings")
    for record in sorted(found, key=lambda record: record.rank):
        table.add(*cells(record))
    audited = [record for record in found if record.status == "audited"]
    strengths = sorted(record.strength for record in audited if record.strength is not None)
    middle = strengths[len(strengths) // 2] if strengths else 0.0
    clean = sum(not record.findings for record in audited)
    print(f"{len(audited)} of {len(found)} audited, {clean} without findings, median strength {middle:.2f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
