"""debug-gym's tasks: rows with an `env_type`, or the mapping from problem to row that its datasets are in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import TaskError, unknown_name
from ..types import ExitCode, FolderWorkspace, Oracle, Task
from . import r2e, swebench, swesmith
from .dataset import Columns, Text, Texts, read_columns, task_name
from .rows import open_rows

DATASETS: dict[str, Callable[..., Task]] = {
    "swebench": swebench.task_from_row,
    "swebench-debug": swebench.task_from_row,
    "swesmith": swesmith.task_from_row,
    "r2egym": r2e.task_from_row,
    "r2e": r2e.task_from_row,
}
"""`env_type` -> what makes tasks of such rows."""

FOLDERS = ("local", "aider", "mini_nightmare", "FreeEnv")

ENTRYPOINT = "python -m pytest -sq ."
"""What runs the tests of a folder whose row does not say."""


class Folder(Columns):
    """A row that names a folder and a command."""

    path: Text = ""
    base_directory: Text = ""
    codebase: Text = ""
    local_path: Text = ""
    instructions: Text = ""
    entrypoint: Text = ""
    test_files: Texts = ()
    image: Text = ""


class DebugGymSource:
    """The tasks of a debug-gym dataset or of the `task_data` of a configuration, as a file.

    Args:
        path: A `.jsonl`, `.json` or `.parquet` file of rows, or a `.json` file of an object problem -> row.

    Raises:
        UsageError: There is no such file.
        TaskError: It is broken, or two tasks have one id.
    """

    def __init__(self, path: str) -> None:
        file = Path(path).expanduser().absolute()
        self._folder = file.parent
        self._rows: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for place, name, row in _read(file):
            task_id = task_name(name)
            if task_id in self._rows:
                raise TaskError(f"{place}: {task_id!r} is the id of {self._rows[task_id][0]} already")
            self._rows[task_id] = place, row
        self._ids = tuple(self._rows)

    def ids(self) -> Sequence[str]:
        """The ids of all tasks, in the order of the rows."""
        return self._ids

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            UsageError: There is none; the message suggests the nearest.
            TaskError: Its row is broken; the message names file, row and column.
        """
        if task_id not in self._rows:
            raise unknown_name("task", task_id, self._ids)
        place, row = self._rows[task_id]
        kind = str(row.get("env_type"))
        if kind in DATASETS:
            task = DATASETS[kind](row, place=place)
        elif kind in FOLDERS:
            task = self._folder_task(row, place)
        else:
            known = ", ".join((*DATASETS, *FOLDERS))
            raise TaskError(f"{place}: env_type: {kind[:60]!r} is unknown; known are {known}")
        return task.model_copy(update={"task_id": task_id})

    def _folder_task(self, row: Mapping[str, Any], place: str) -> Task:
        """A folder whose entry point succeeds when the work is done; files that are tests are set back."""
        columns = read_columns(Folder, row, place)
        folder = columns.path or columns.base_directory or columns.codebase or columns.local_path
        if not folder:
            raise TaskError(f"{place}: path: the row names no folder")
        try:
            workspace = FolderWorkspace(path=str(self._folder / Path(folder).expanduser()))
        except RuntimeError as error:
            raise TaskError(f"{place}: path: {error}") from None
        command = columns.entrypoint or ENTRYPOINT
        return Task(
            task_id="folder",
            problem_statement=columns.instructions or "Run the tests, find out why they fail, and change the code.",
            workspace=workspace,
            image=columns.image or None,
            eval_cmd=command,
            oracle=Oracle(test_paths=columns.test_files or _named(command), evaluation=ExitCode(test_cmd=command)),
        )


def _named(command: str) -> tuple[str, ...]:
    """The files that a command names, and whatever is called a test."""
    words = (word.strip("'\"") for word in command.split())
    return (*(word for word in words if word.endswith(".py")), "test_*.py", "*_test.py", "*/test_*.py", "*/*_test.py")


def _read(file: Path) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Place, name and content of each row."""
    found: list[tuple[str, str, Mapping[str, Any]]] = []
    for rows in open_rows(file):
        for number in range(len(rows.keys(()))):
            row, place = rows.read(number), rows.place(number)
            if "env_type" not in row and row and all(isinstance(value, dict) for value in row.values()):
                found += [(f"{file}, {name}", name, value) for name, value in row.items()]
            else:
                found.append((place, _name(row, place), row))
    return found


def _name(row: Mapping[str, Any], place: str) -> str:
    for column in ("problem", "task_name", "instance_id", "docker_image", "path"):
        if row.get(column):
            return str(row[column]).rpartition("/")[2] if column in ("docker_image", "path") else str(row[column])
    raise TaskError(f"{place}: problem, instance_id: one is needed for the id, and both are missing")
