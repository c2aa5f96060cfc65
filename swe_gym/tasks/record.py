"""Records of validated tasks, one line of a record file each."""

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from ..cache import digest as cache_key
from ..cache import file_sha256
from ..commands import commit_of, find_repository
from ..errors import SweGymError, TaskError, UsageError
from ..files import FileMetadata, read_models, scan_folder
from ..types import (
    FolderWorkspace,
    Frozen,
    GitWorkspace,
    JsonObject,
    RewardScript,
    SandboxNeeds,
    TarWorkspace,
    Task,
    Workspace,
)

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
        counter: Which tests that must keep passing got a counter-test too, as in `CounterOptions`. None: not known.
        backend: Kind of sandbox.
        sandbox_options: Its options, without secrets. With others, such as a network, a task is validated again. None:
            not known, in a record of an earlier version.
        isolation: Isolation of the sandbox; empty if none started.
        image: Digest of the image, as the backend knows it; empty without an image.
        digest: SHA-256 of the task, its oracle and its code, as `digest`. A changed task is validated again.
        date: Date that the caller gave.
        rates: Model or policy -> its pass rate at the task, as `rate_tasks` counted it.
        cpu_seconds: CPU time of the validation: of the processes that ended in its sandboxes, and of the thread that
            judged. For a bug of `make_mutants`, also of the tests that looked for it. None if sandboxes do not tell.
        bytes: Size of the task in a task file.
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
    counter: Literal["few", "all"] | None = None
    backend: str
    sandbox_options: JsonObject | None = None
    isolation: str = ""
    image: str = ""
    digest: str = ""
    date: str = ""
    rates: dict[str, TaskRate] = {}
    cpu_seconds: float | None = None
    bytes: int = 0

    @model_validator(mode="before")
    @classmethod
    def _drop_old_fields(cls, data: object) -> object:
        """Read the records of version 0.1, which had a field for tests that changed neighbours disturb."""
        return {name: value for name, value in data.items() if name != "disturbing"} if isinstance(data, dict) else data

    def doubt_image(self, task: Task, backend: str, image: str) -> str:
        """Return why the image that runs may not be the one that was validated; empty if nothing tells.

        An image that is built here, or that another backend holds, has another digest each time.

        Args:
            task: The task.
            backend: Kind of sandbox.
            image: Digest of the image that runs, as the backend knows it; empty if it is not known.
        """
        built = task.workspace or task.python or task.needs.build or BUILT_IMAGE.fullmatch(task.image or "")
        if not task.image or built or backend != self.backend or not image or self.image in ("", image):
            return ""
        return f"its image {task.image} has another digest than when it was validated: run `swe-gym validate` again"


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


CODE_SECONDS = 600.0
"""Seconds that reading the code of a task may take."""

TRIES = 3
"""How often code is read that changes meanwhile."""

BUILT_IMAGE = re.compile("swe-gym/(harbor|task)-.+:[0-9a-f]{16}")
"""Names of images that are built here: they end with a digest of the content."""


def digest(task: Task, *, strict: bool = False) -> str:
    """Return the SHA-256 of a task, its oracle and its code: the same on every machine, wherever the code lies.

    A folder counts by the names, contents and executable bits of the files that a sandbox gets. They are read again
    if a name, size, mode or time has changed. A local repository counts by the commit, an archive by its SHA-256, and
    the context of an image's build by its content. An image counts by its name, and so does a branch or tag of a
    repository elsewhere.

    Args:
        task: The task.
        strict: Whether to raise if the code cannot be read. Otherwise it then counts by its place alone.

    Raises:
        TaskError: The code cannot be identified, if `strict`.
    """
    try:
        task = _without_places(task)
    except (SweGymError, OSError, ValueError, RuntimeError) as error:  # the last two: paths that cannot be
        if strict:
            raise TaskError(f"the code of task {task.task_id} cannot be identified: {error}") from error
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()


def _without_places(task: Task) -> Task:
    """Return a task that is equal wherever the code lies, and different for other code."""
    oracle = task.oracle
    if script := oracle.in_place:
        oracle = oracle.model_copy(update={"evaluation": _identify_script(script)})
    needs = _identify_build(task.needs, task.image)
    return task.model_copy(update={"workspace": _identify_code(task.workspace), "needs": needs, "oracle": oracle})


def _identify_script(script: RewardScript) -> RewardScript:
    verifier = script.verifier
    if verifier:
        verifier = verifier.model_copy(update={"needs": _identify_build(verifier.needs, verifier.image)})
    steps = tuple(one.model_copy(update={"script": _identify_script(one.script)}) for one in script.steps)
    return script.model_copy(update={"verifier": verifier, "steps": steps})


def _identify_build(needs: SandboxNeeds, image: str | None) -> SandboxNeeds:
    if needs.build is None:
        return needs
    context = "" if BUILT_IMAGE.fullmatch(image or "") else _hash_folder(needs.build.context)
    return needs.model_copy(update={"build": needs.build.model_copy(update={"context": context})})


def _identify_code(workspace: Workspace | None) -> Workspace | None:
    if isinstance(workspace, FolderWorkspace):
        return FolderWorkspace(path=_hash_folder(workspace.path))
    if isinstance(workspace, TarWorkspace):
        return workspace.model_copy(update={"path": "", "sha256": workspace.sha256 or _hash_archive(workspace.path)})
    if isinstance(workspace, GitWorkspace):
        deadline = time.monotonic() + CODE_SECONDS
        if local := find_repository(workspace.url):
            return GitWorkspace(url="", ref=commit_of(local, workspace.ref, deadline))
        if re.fullmatch("[0-9a-fA-F]{40}|[0-9a-fA-F]{64}", workspace.ref):
            return GitWorkspace(url="", ref=workspace.ref.lower())
    return workspace


_hashed: dict[tuple[str, str], str] = {}
"""Path and digest of the metadata of a folder -> SHA-256 of its content."""


def _hash_folder(path: str) -> str:
    """Return the SHA-256 of what a sandbox gets of a folder; again if files change meanwhile."""
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise TaskError(f"{root} is not a folder")
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            entries = _scan(root)
            key = str(root), cache_key(entries)
            if key in _hashed:
                return _hashed[key]
            found = _hash_entries(root, entries)
            if _scan(root) == entries:
                _hashed[key] = found
                return found
    raise TaskError(f"{root} changes while it is read: stop the program that writes to it")


def _scan(root: Path) -> list[FileMetadata]:
    return scan_folder(root, time.monotonic() + CODE_SECONDS)


def _hash_entries(root: Path, entries: Sequence[FileMetadata]) -> str:
    found = hashlib.sha256()
    for path, mode, _, _, link in entries:
        content = file_sha256(root / path) if stat.S_ISREG(mode) else ""
        found.update(json.dumps([path, bool(mode & stat.S_IXUSR), link, content]).encode())
    return found.hexdigest()


def _hash_archive(path: str) -> str:
    place = Path(path).expanduser().absolute()
    for _ in range(TRIES):
        before = _describe(place)
        found = _hash_file(place, *before)
        if _describe(place) == before:
            return found
    raise TaskError(f"{place} changes while it is read: stop the program that writes to it")


def _describe(place: Path) -> tuple[int, int, int]:
    status = place.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _hash_file(path: Path, *_: int) -> str:
    """Return the SHA-256 of a file, as it was with this size and these times."""
    return file_sha256(path)


def doubt(task: Task, records: Mapping[str, TaskRecord]) -> str:
    """Return why rewards of a task should not be trusted, by some records; empty if they can be.

    Args:
        task: The task.
        records: Records by id of the task.
    """
    record = records.get(task.task_id)
    if record is None:
        return "it was not validated"
    if record.status != "valid":
        return f"its record says {record.status}"
    return "" if record.digest == digest(task) else "it or its code has changed since it was validated"
