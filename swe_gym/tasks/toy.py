"""The bundled tasks: small repositories that ship with the package and need only Python.

Each is a folder of `toy_repos`:

    larder-overwrite-evicts/
      issue.md      the problem statement
      task.toml     repo, difficulty, tags, eval_cmd and the ids of the hidden tests
      repo/         the repository with the bug
      hidden/       the hidden tests, laid out as in the repository
      gold.patch    a git diff that solves the task
"""

import functools
import re
import tomllib
from pathlib import Path

from ..errors import TaskError
from ..types import FolderWorkspace, Frozen, Oracle, PythonEnv, Task, TestCommand
from .base import ListedSource, split_lines

_FOLDER = Path(__file__).with_name("toy_repos")
_TEST_CMD = "python -m unittest discover -v -s tests -t ."
_TIMEOUT = 60.0  # seconds; the tests of every bundled task take less than one


class ToySource(ListedSource[Path]):
    """The tasks that ship with swe_gym, sorted by id."""

    def __init__(self) -> None:
        super().__init__()
        for folder in _find_folders():
            self.add(folder.name, folder)

    def build(self, task_id: str, item: Path) -> Task:  # noqa: ARG002  the folder's name is the id
        """Return the task in a folder."""
        return _read_bundled(item)


@functools.cache
def _find_folders() -> tuple[Path, ...]:
    """The folders of the bundled tasks."""
    return tuple(sorted(path.parent for path in _FOLDER.glob("*/task.toml")))


class _Card(Frozen):
    """The fields of `task.toml`."""

    repo: str
    difficulty: str
    tags: tuple[str, ...]
    eval_cmd: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def read_task(folder: Path) -> Task:
    """Return the task in a folder that is laid out like the bundled ones. The folder's name is the id.

    Raises:
        TaskError: A file is missing or invalid.
    """
    hidden = folder / "hidden"
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
                test_files={path.relative_to(hidden).as_posix(): _text(path) for path in sorted(hidden.rglob("*.py"))},
                test_paths=("tests/*",),
                evaluation=TestCommand(test_cmd=_TEST_CMD),
                fail_to_pass=card.fail_to_pass,
                pass_to_pass=card.pass_to_pass,
                timeout=_TIMEOUT,
            ),
        )
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, not TOML, or not the right fields
        raise TaskError(f"cannot read the task in {folder}: {error}") from error


_read_bundled = functools.cache(read_task)  # the package does not change while it is loaded


@functools.cache
def read_solved(task: str) -> dict[str, str]:
    """Return the files of a bundled task's repository after the solution, with the hidden tests: path -> text."""
    folder = _FOLDER / task
    files: dict[str, str] = {}
    for part in ("repo", "hidden"):
        paths = sorted(path for path in (folder / part).rglob("*") if path.is_file() and path.suffix != ".pyc")
        files |= {path.relative_to(folder / part).as_posix(): _text(path) for path in paths}
    return files | _apply_patch(_text(folder / "gold.patch"), files)


def _apply_patch(patch: str, files: dict[str, str]) -> dict[str, str]:
    """Return the files that a git diff changes or adds, with their new text. It must fit exactly."""
    found = {}
    for section in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^(?=@@ )", section, flags=re.MULTILINE)
        (path,) = re.findall(r"^\+\+\+ b/(\S+)", head, flags=re.MULTILINE)
        before, after, done = split_lines(files.get(path, "")), list[str](), 0
        for hunk in hunks:
            header, *lines = split_lines(hunk)
            (start, count) = re.findall(r"-(\d+)(?:,(\d+))?", header)[0]
            size = int(count or 1)
            first = int(start) - (size > 0)
            after += [*before[done:first], *(line[1:] for line in lines if line[0] in " +")]
            done = first + size
        found[path] = "".join([*after, *before[done:]])
    return found


def _text(path: Path) -> str:
    """Return the text with its line endings: a patch of CRLF files needs them."""
    return path.read_bytes().decode()
