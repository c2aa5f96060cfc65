"""What is known of tasks that were validated: one line of a record file for each."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ..errors import UsageError, wrong_fields
from ..lines import json_lines
from ..types import Frozen, Task

Status = Literal["valid", "invalid", "skipped", "error"]
"""`skipped`: this machine lacks what the task needs; `error`: the infrastructure failed, try again."""


class TaskRecord(Frozen):
    """What validating one task found, as one line of a record file. Kept from policies: it names tests.

    Attributes:
        task_id: The task.
        status: Whether it is usable.
        reason: Why not, in one sentence; empty where it is.
        gold: Whether the gold patch was judged resolved, run by run.
        empty: Whether the untouched repository was judged resolved, run by run.
        seconds: Wall-clock time of each run, gold and empty in turns.
        test_seconds: Of that, what the tests took.
        flaky: Required tests that did not end alike in all runs of gold, or in all runs of empty.
        wrong: Required test that did not end as it should -> how it ended, and with which work.
        counter_tests: Test that must start passing -> what its counter-test changes, such as "literal". Each
            counter-test failed with the gold patch in every run, as it must.
        uncovered: Test that must start passing and has no counter-test -> why.
        unfit: Test -> changes that the gold patch survived, and that grading with this record does not use.
        disturbing: Whether a required test fails with right work because another test was changed. Environments with
            this record confirm a failure by a run in which nothing is changed.
        natural: Whether each grading has a counter-test that reads like a test that a person wrote.
        backend: Where it ran.
        isolation: How well that was isolated; empty where no sandbox came up.
        image: Digest of the image that it ran in, as the backend knows it; empty where there is none.
        digest: SHA-256 of the task and its oracle: a changed task is validated anew.
        date: As the caller gave it.
    """

    task_id: str
    status: Status
    reason: str = ""
    gold: tuple[bool, ...] = ()
    empty: tuple[bool, ...] = ()
    seconds: tuple[float, ...] = ()
    test_seconds: tuple[float, ...] = ()
    flaky: tuple[str, ...] = ()
    wrong: dict[str, str] = {}
    counter_tests: dict[str, str] = {}
    uncovered: dict[str, str] = {}
    unfit: dict[str, tuple[str, ...]] = {}
    disturbing: bool = False
    natural: bool = False
    backend: str
    isolation: str = ""
    image: str = ""
    digest: str = ""
    date: str = ""


def read_records(path: str | os.PathLike[str]) -> list[TaskRecord]:
    """The records of a file, in order; none where the file does not exist. A later line of a task replaces an earlier.

    Raises:
        UsageError: A line is no record; the message names file and line.
    """
    if not Path(path).exists():
        return []
    records: dict[str, TaskRecord] = {}
    for number, line in json_lines(Path(path)):
        try:
            result = TaskRecord.model_validate_json(line)
        except ValidationError as error:
            raise UsageError(f"{path}, line {number} is no validation record: {wrong_fields(error)}") from error
        records[result.task_id] = result
    return list(records.values())


def digest(task: Task) -> str:
    """SHA-256 of everything that a task says, its oracle included."""
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()


def doubt(task: Task, records: dict[str, TaskRecord]) -> str:
    """Why rewards of a task should not be trusted, by the records of some tasks; empty where they can be."""
    record = records.get(task.task_id)
    if record is None:
        return "it was not validated"
    if record.status != "valid":
        return f"its record says {record.status}"
    return "" if record.digest == digest(task) else "it has changed since it was validated"
