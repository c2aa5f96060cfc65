"""debug-gym's tasks: rows with an `env_type`, or a mapping from problem to row."""

from collections.abc import Callable
from pathlib import Path

from ..errors import TaskError
from ..types import ExitCode, FolderWorkspace, JsonMapping, Oracle, Task
from . import r2e, swebench, swesmith
from .base import ListedSource
from .dataset import Columns, Text, Texts, open_rows, read_columns, task_name

DATASETS: dict[str, Callable[..., Task]] = {
    "swebench": swebench.task_from_row,
    "swebench-debug": swebench.task_from_row,
    "swesmith": swesmith.task_from_row,
    "r2egym": r2e.task_from_row,
    "r2e": r2e.task_from_row,
}
"""`env_type` -> function that makes a task of such a row."""

FOLDERS = ("local", "aider", "mini_nightmare", "FreeEnv")
"""Values of `env_type` for rows that name a folder."""

ENTRYPOINT = "python -m pytest -sq ."
"""Default test command of a folder."""


class Folder(Columns):
    """The columns of a row that names a folder and a command."""

    path: Text = ""
    base_directory: Text = ""
    codebase: Text = ""
    local_path: Text = ""
    instructions: Text = ""
    entrypoint: Text = ""
    test_files: Texts = ()
    image: Text = ""


class DebugGymSource(ListedSource[tuple[str, JsonMapping]]):
    """The tasks of a debug-gym dataset, or of the `task_data` of a configuration, in a file.

    Args:
        path: A `.jsonl`, `.json` or `.parquet` file of rows, or a `.json` file with an object problem -> row.

    Raises:
        UsageError: The file does not exist.
        TaskError: The file is broken, or two tasks have the same id.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        file = Path(path).expanduser().absolute()
        self._folder = file.parent
        for place, name, row in _read(file):
            self.add(task_name(name), (place, row))

    def place(self, item: tuple[str, JsonMapping]) -> str:
        """Return file and row."""
        return item[0]

    def build(self, task_id: str, item: tuple[str, JsonMapping]) -> Task:
        """Return the task of a row."""
        place, row = item
        kind = str(row.get("env_type"))
        if kind in DATASETS:
            task = DATASETS[kind](row, place=place)
        elif kind in FOLDERS:
            task = self._folder_task(row, place)
        else:
            known = ", ".join((*DATASETS, *FOLDERS))
            raise TaskError(f"{place}: env_type: unknown type {kind[:60]!r}. Known: {known}")
        return task.model_copy(update={"task_id": task_id})

    def _folder_task(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a folder. Its entry point succeeds once the work is done."""
        columns = read_columns(Folder, row, place)
        folder = columns.path or columns.base_directory or columns.codebase or columns.local_path
        if not folder:
            raise TaskError(f"{place}: path: missing, the row names no folder")
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
            oracle=Oracle(test_paths=columns.test_files or _find_named(command), evaluation=ExitCode(test_cmd=command)),
        )


def _find_named(command: str) -> tuple[str, ...]:
    """Return patterns of the files that a command names, and of all test files."""
    words = (word.strip("'\"") for word in command.split())
    return (*(word for word in words if word.endswith(".py")), "test_*.py", "*_test.py", "*/test_*.py", "*/*_test.py")


def _read(file: Path) -> list[tuple[str, str, JsonMapping]]:
    """Return place, name and content of each row."""
    found: list[tuple[str, str, JsonMapping]] = []
    for rows in open_rows(file):
        for number in range(len(rows.keys(()))):
            row, place = rows.read(number), rows.place(number)
            if "env_type" not in row and row and all(isinstance(value, dict) for value in row.values()):
                found += [(f"{file}, {name}", name, value) for name, value in row.items()]
            else:
                found.append((place, _name(row, place), row))
    return found


def _name(row: JsonMapping, place: str) -> str:
    for column in ("problem", "task_name", "instance_id", "docker_image", "path"):
        if row.get(column):
            return str(row[column]).rpartition("/")[2] if column in ("docker_image", "path") else str(row[column])
    raise TaskError(f"{place}: problem, instance_id: both missing, but one is required for the id")
