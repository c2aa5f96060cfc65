"""The bundled tasks: small repositories that ship with the package and need nothing but Python.

Each is a folder of `toy_repos`:

    larder-overwrite-evicts/
      issue.md      what the policy reads
      task.toml     repo, difficulty, tags, eval_cmd, and the ids of the tests that judge
      repo/         the repository, with the bug in it
      hidden/       the hidden tests, laid out as in the repository
      gold.patch    a git diff that solves the task
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from ..errors import TaskError, unknown_name
from ..types import FolderWorkspace, Frozen, Oracle, PythonEnv, Task, TestCommand

_FOLDER = Path(__file__).with_name("toy_repos")
_TEST_CMD = "python -m unittest discover -v -s tests -t ."
_TIMEOUT = 60.0  # seconds; the tests of every bundled task take less than one


class ToySource:
    """The tasks that ship with swe_gym, sorted by id."""

    def __init__(self) -> None:
        self._folders = {path.parent.name: path.parent for path in sorted(_FOLDER.glob("*/task.toml"))}

    def ids(self) -> Sequence[str]:
        """The ids of all bundled tasks."""
        return list(self._folders)

    def get(self, task_id: str) -> Task:
        """The bundled task of that id.

        Raises:
            UsageError: There is none; the message suggests the nearest.
            TaskError: Its files are damaged.
        """
        if task_id not in self._folders:
            raise unknown_name("toy task", task_id, self._folders)
        return read_task(self._folders[task_id])


class _Card(Frozen):
    """The fields of a `task.toml`."""

    repo: str
    difficulty: str
    tags: tuple[str, ...]
    eval_cmd: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def read_task(folder: Path) -> Task:
    """The task in a folder that is laid out like the bundled ones; the folder's name is its id.

    Raises:
        TaskError: A file is missing or says something else than it should.
    """
    try:
        card = _Card.model_validate(tomllib.loads(_text(folder / "task.toml")))
        return Task(
            task_id=folder.name,
            problem_statement=_text(folder / "issue.md"),
            repo=card.repo,
            workspace=FolderWorkspace(path=str(folder / "repo")),
            python=PythonEnv(),
            eval_cmd=card.eval_cmd,
            eval_timeout=_TIMEOUT,
            difficulty=card.difficulty,
            tags=card.tags,
            oracle=Oracle(
                gold_patch=_text(folder / "gold.patch"),
                test_files=_hidden_tests(folder / "hidden"),
                test_paths=("tests/*",),
                evaluation=TestCommand(test_cmd=_TEST_CMD),
                fail_to_pass=card.fail_to_pass,
                pass_to_pass=card.pass_to_pass,
                timeout=_TIMEOUT,
            ),
        )
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, not TOML, or not the right fields
        raise TaskError(f"the task in {folder} cannot be read: {error}") from error


def _hidden_tests(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): _text(path) for path in sorted(folder.rglob("*.py"))}


def _text(path: Path) -> str:
    """The file as text, line endings untouched: a patch of CRLF files lives by them."""
    return path.read_bytes().decode()
