"""Records of validated tasks, one line of a record file each."""

import hashlib
import os
from typing import Literal

from pydantic import model_validator

from ..errors import UsageError
from ..files import read_models
from ..types import Frozen, TarWorkspace, Task

Status = Literal["valid", "invalid", "skipped", "error"]
"""`skipped`: the machine lacks something that the task needs. `error`: the infrastructure failed; try again."""


class TaskRate(Frozen):
    """How often a policy resolved a task.

    Attributes:
        resolved: Number of resolved attempts.
        attempts: Number of graded attempts, at least one.
        low: Lower end of the 95 % Wilson interval of the pass rate.
        high: Upper end of it.
    """

    resolved: int
    attempts: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The pass rate, from 0 to 1."""
        return self.resolved / self.attempts


class TaskRecord(Frozen):
    """The result of validating one task, one line of a record file. Hidden from policies, because it names tests.

    Attributes:
        task_id: Id of the task.
        status: Whether the task is usable.
        reason: Why it is not, in one sentence; empty if it is.
        gold: Whether each run judged the gold patch resolved.
        empty: Whether each run judged the untouched repository resolved.
        seconds: Wall-clock time of each run, gold and empty in turns.
        test_seconds: Part of it that the tests took.
        flaky: Required tests that pass in some runs of gold, or of empty, and not in others. They make a task invalid.
        broken: Tests that must keep passing and fail without work, as those of a file that needs the work to load.
        wrong: Required test with a wrong status -> the status, and the work.
        counter_tests: Test that must start passing -> change of its counter-test, such as "literal". Each counter-test
            failed with the gold patch in every run, as it must.
        uncovered: Test that must start passing and has no counter-test -> why.
        unfit: Test -> changes that the gold patch survived. Grading with this record does not use them.
        texts: Test of `counter_tests` -> number of its texts among which only a guess finds the original.
        unforkable: Tests that forks of the test process cannot play with the gold patch. Grading with this record
            proves them by a second run.
        passing: Test that must start passing -> lines of its assertions that pass without work. Grading with this
            record changes others, if the test has any.
        returned: Test that must start passing -> line of an assertion that fails without work -> `repr` of the value
            that it expects, and of the one that comes. Grading with this record changes what differs between both.
        natural: Whether each grading has a counter-test that reads like a test that a person wrote.
        backend: Kind of sandbox.
        isolation: Isolation of the sandbox; empty if none started.
        image: Digest of the image, as the backend knows it; empty without an image.
        digest: SHA-256 of the task and its oracle. A changed task is validated again.
        date: Date that the caller gave.
        rates: Model or policy -> its pass rate at the task, as `rate_tasks` counted it.
    """

    task_id: str
    status: Status
    reason: str = ""
    gold: tuple[bool, ...] = ()
    empty: tuple[bool, ...] = ()
    seconds: tuple[float, ...] = ()
    test_seconds: tuple[float, ...] = ()
    flaky: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    wrong: dict[str, str] = {}
    counter_tests: dict[str, str] = {}
    uncovered: dict[str, str] = {}
    unfit: dict[str, tuple[str, ...]] = {}
    texts: dict[str, int] = {}
    unforkable: tuple[str, ...] = ()
    passing: dict[str, tuple[int, ...]] = {}
    returned: dict[str, dict[int, tuple[str, str]]] = {}
    natural: bool = False
    backend: str
    isolation: str = ""
    image: str = ""
    digest: str = ""
    date: str = ""
    rates: dict[str, TaskRate] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_old_fields(cls, data: object) -> object:
        """Read the records of version 0.1, which had a field for tests that changed neighbours disturb."""
        return {name: value for name, value in data.items() if name != "disturbing"} if isinstance(data, dict) else data


def read_records(path: str | os.PathLike[str]) -> list[TaskRecord]:
    """Read the records of a file, in order. A task's last line counts. A missing file has no records.

    Raises:
        UsageError: A line is not a record. The message names file and line.
    """
    return list({one.task_id: one for one in read_models(path, TaskRecord, "a validation record")}.values())


def read_rates(path: str | os.PathLike[str], policy: str = "") -> dict[str, TaskRate]:
    """Read the pass rates of one policy or model from a record file, by task.

    Args:
        path: The record file.
        policy: Name of the policy or model. Empty: the only one of the file.

    Raises:
        UsageError: The file has no rates, those of several policies and none is named, or none of the named one.
    """
    records = read_records(path)
    known = sorted({name for record in records for name in record.rates})
    if not known:
        raise UsageError(f"{path} has no pass rates: add them with `swe-gym tasks rate {path} RUN`")
    if policy not in known and (policy or len(known) > 1):
        has = f"{path} has pass rates of {', '.join(map(repr, known))}"
        raise UsageError(f"{has}, not of {policy!r}" if policy else f"{has}: name one, for example {known[0]}=...")
    name = policy or known[0]
    return {record.task_id: record.rates[name] for record in records if name in record.rates}


def digest(task: Task) -> str:
    """Return the SHA-256 of a task and its oracle. The path of an archive that has a SHA-256 itself does not count."""
    if isinstance(task.workspace, TarWorkspace) and task.workspace.sha256:
        task = task.model_copy(update={"workspace": task.workspace.model_copy(update={"path": ""})})
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()


def doubt(task: Task, records: dict[str, TaskRecord]) -> str:
    """Return why rewards of a task should not be trusted, by some records; empty if they can be."""
    record = records.get(task.task_id)
    if record is None:
        return "it was not validated"
    if record.status != "valid":
        return f"its record says {record.status}"
    return "" if record.digest == digest(task) else "it has changed since it was validated"
