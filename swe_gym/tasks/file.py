"""Task files: tasks as JSON lines, as a JSON list or as parquet."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from ..errors import TaskError, UsageError
from ..files import SUFFIXES, load_arrow, scan_table, write_table
from ..types import FolderWorkspace, GitWorkspace, Json, JsonObject, TarWorkspace, Task
from .base import ListedSource
from .hub import fetch_files

MAX_SHOWN = 20
"""How many broken rows an error lists."""

BUNDLE_TASKS = "tasks.jsonl"
"""The task file of a bundle; see `swe_gym.curation.bundle`."""

HUB = "hf://"
"""Prefix of a bundle on the Hugging Face Hub: "hf://owner/name" or "hf://owner/name@revision"."""

NO_TASK = "no task_id. For the rows of a public dataset, use its source ('swebench', 'r2e', ...) with the argument path"

_JSON = {name for name, field in Task.model_fields.items() if field.annotation not in (str, float, str | None)}
"""The fields that a parquet file holds as columns of JSON text."""


class FileSource(ListedSource[Task]):
    """The tasks of a file. The whole file is read and checked first: one broken row fails it.

    Relative paths of workspaces are relative to the file.

    Args:
        path: A `.jsonl`, `.json` (one list) or `.parquet` file, as `write_tasks` writes it; the folder of a bundle; or
            a bundle on the Hugging Face Hub, as "hf://owner/name" or "hf://owner/name@revision".

    Raises:
        UsageError: The file or bundle is missing, or its suffix is unknown.
        TaskError: Rows are broken; the message names each row and field.
        MissingDependency: A parquet file needs pyarrow.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        for task in _load(_locate(path), confined=path.startswith(HUB)):
            self.add(task.task_id, task)

    def build(self, task_id: str, item: Task) -> Task:  # noqa: ARG002  the task has its id
        """Return the task."""
        return item


def is_place_of_tasks(name: str) -> bool:
    """Return whether a name is a path that `FileSource` reads, rather than the name of a task source."""
    return name.endswith(SUFFIXES) or name.startswith(HUB) or (Path(name).expanduser() / BUNDLE_TASKS).is_file()


def _locate(path: str) -> Path:
    if path.startswith(HUB):
        dataset, _, revision = path.removeprefix(HUB).partition("@")
        return fetch_files(dataset, revision or None) / BUNDLE_TASKS
    file = Path(path).expanduser().absolute()
    return file / BUNDLE_TASKS if file.is_dir() else file


# --- reading ----------------------------------------------------------------------------------------------


class _BadRow(Exception):
    """The problems of a row, one line per field. Never holds the row's values: they may belong to the oracle."""


def _load(file: Path, *, confined: bool) -> list[Task]:
    tasks: dict[str, tuple[str, Task]] = {}
    problems: list[tuple[str, str]] = []
    for place, data in scan_table(file):
        try:
            task = _task(data)
            if confined:
                _check_confined(task)
            if task.task_id in tasks:
                raise _BadRow(f"field 'task_id': {tasks[task.task_id][0]} already has the id {task.task_id!r}")
            tasks[task.task_id] = place, _with_absolute_path(task, file.parent)
        except _BadRow as error:
            problems += [(place, line) for line in str(error).splitlines()]
    if problems and {line for _, line in problems} == {NO_TASK}:
        raise TaskError(f"{file} is not a task file: {problems[0][0]}: {NO_TASK}")
    if problems:
        shown = [f"{place}, {line}" for place, line in problems[:MAX_SHOWN]]
        more = [f"... and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else []
        raise TaskError("\n  ".join([f"{file} has broken rows:", *shown, *more]))
    if not tasks:
        raise TaskError(f"{file} holds no tasks")
    return [task for _, task in tasks.values()]


def _task(data: object) -> Task:
    if isinstance(data, ValueError):
        raise _BadRow(str(data))
    if not isinstance(data, dict):
        raise _BadRow("not an object")
    if "task_id" not in data:
        raise _BadRow(NO_TASK)
    try:
        decoded = {name: _decode(name, data[name]) for name in _JSON if isinstance(data.get(name), str)}
        unset = {"needs"} if data.get("needs") is None else set()  # a column that only other rows have
        return Task.model_validate({name: value for name, value in {**data, **decoded}.items() if name not in unset})
    except ValidationError as error:
        lines = (f"field '{'.'.join(map(str, problem['loc']))}': {problem['msg']}" for problem in error.errors())
        raise _BadRow("\n".join(lines)) from None


def _decode(name: str, value: str) -> Json:
    """Decode a column that parquet files hold as JSON text. Other programs may write it as a list or struct."""
    try:
        return json.loads(value)
    except ValueError as error:
        raise _BadRow(f"field '{name}': not JSON: {error}") from None


def _check_confined(task: Task) -> None:
    """Refuse what a downloaded bundle must not do: read other files of this machine, or open a network."""
    workspace = task.workspace
    place = workspace.url if isinstance(workspace, GitWorkspace) else getattr(workspace, "path", "")
    if place.startswith(("/", "~", "file:")) or ".." in place.split("/"):
        raise _BadRow(f"field 'workspace': {place!r} is outside the bundle: copy the bundle to a folder to trust it")
    if task.needs.build:
        raise _BadRow("field 'needs.build': a build reads this machine: copy the bundle to a folder to trust it")
    if task.needs.network not in (None, "none"):
        raise _BadRow("field 'needs.network': it opens a network: copy the bundle to a folder to trust it")


def _with_absolute_path(task: Task, folder: Path) -> Task:
    workspace = task.workspace
    if isinstance(workspace, FolderWorkspace | TarWorkspace):
        field, value = "path", workspace.path
    elif isinstance(workspace, GitWorkspace) and ":" not in workspace.url:
        field, value = "url", workspace.url
    else:
        return task
    if value.startswith(("/", "~")):
        return task
    return task.model_copy(update={"workspace": workspace.model_copy(update={field: str(folder / value)})})


# --- writing ----------------------------------------------------------------------------------------------


def write_tasks(tasks: Iterable[Task], path: str | os.PathLike[str]) -> None:
    """Write tasks to a file that `FileSource` reads back equal. An existing file is replaced atomically.

    Args:
        tasks: The tasks, in the order of the file.
        path: A `.jsonl`, `.json` or `.parquet` file.

    Raises:
        UsageError: The suffix is unknown, two tasks share an id, or JSON cannot hold a task's metadata.
        MissingDependency: A parquet file needs pyarrow.
    """
    file = Path(path).expanduser().absolute()
    rows: dict[str, JsonObject] = {}
    for task in tasks:
        if task.task_id in rows:
            raise UsageError(f"{file}: two tasks have the id {task.task_id!r}")
        rows[task.task_id] = _row(task)
    if file.suffix == ".parquet":
        write_table(map(_as_columns, rows.values()), file, schema=_schema())
    else:
        write_table(rows.values(), file)


def _row(task: Task) -> JsonObject:
    """Return the task as JSON data, from which an equal task can be made."""
    try:
        row: JsonObject = json.loads(json.dumps(task.model_dump(mode="json"), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"task {task.task_id!r} cannot be written as JSON: {error}") from error
    if Task.model_validate(row) != task:
        raise UsageError(f"task {task.task_id!r} changes in a round trip through JSON: check its metadata")
    return row


def _as_columns(row: JsonObject) -> JsonObject:
    return {name: json.dumps(value) if name in _JSON else value for name, value in row.items()}


def _schema() -> object:
    arrow = load_arrow()
    fields = Task.model_fields.items()
    return arrow.schema(
        (name, arrow.float64() if field.annotation is float else arrow.string()) for name, field in fields
    )
