"""Bugs in the repositories of the bundled tasks, for the upper difficulties of `SWE/Micro-v0`.

Each starts from a repository with its own task solved, and breaks one function. The tests that find it are hidden.
`toy_repos/mutants.jsonl` holds one a line, in the order of their numbers: a change that adds or removes lines there
changes tasks. `benchmarks/micro_mutants.py` makes the file.
"""

import difflib
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..types import FilesWorkspace, Frozen, Task, ToolCall
from .base import split_lines, write_diff
from .toy import ToySource, read_solved

MUTANT_RUNGS = (6, 7, 8)
"""The difficulties that are bugs of bundled repositories."""

HELD_OUT_FROM = 40
"""From this number on, the tasks of each of these difficulties are of repositories that those before are not of."""

_FILE = Path(__file__).with_name("toy_repos") / "mutants.jsonl"


class LineEdit(NamedTuple):
    """Lines of a file that are replaced.

    Attributes:
        first: Number of lines before them.
        size: Number of lines that are replaced.
        text: Lines that replace them.
    """

    first: int
    size: int
    text: str


class ToyMutant(Frozen):
    """A bug in the repository of a bundled task.

    Attributes:
        difficulty: 6 to 8.
        toy: Id of the bundled task, without its bug here.
        path: The file with the bug.
        function: The function with the bug, within its classes.
        edits: What makes the bug, from the file as the bundled task's solution leaves it.
        hidden: Test file -> what takes the tests that find the bug out of it.
        fail_to_pass: The tests that find the bug.
        problem_statement: The issue.
    """

    difficulty: int
    toy: str
    path: str
    function: str
    edits: tuple[LineEdit, ...]
    hidden: dict[str, tuple[LineEdit, ...]]
    fail_to_pass: tuple[str, ...]
    problem_statement: str

    @property
    def broken(self) -> str:
        """The file with the bug."""
        return edit_lines(read_solved(self.toy)[self.path], self.edits)

    def task(self, task_id: str) -> Task:
        """Return the task: the bundled one with another bug, hidden tests and issue."""
        solved, toy = read_solved(self.toy), ToySource().get(self.toy)
        start = {path: edit_lines(solved[path], edits) for path, edits in self.hidden.items()}
        tests = (*toy.oracle.fail_to_pass, *toy.oracle.pass_to_pass)
        oracle = toy.oracle.model_copy(
            update={
                "gold_patch": write_diff(self.path, self.broken, solved[self.path]),
                "test_files": {path: solved[path] for path in self.hidden},
                "fail_to_pass": self.fail_to_pass,
                "pass_to_pass": tuple(test for test in sorted(tests) if test not in self.fail_to_pass),
            }
        )
        return toy.model_copy(
            update={
                "task_id": task_id,
                "problem_statement": self.problem_statement,
                "workspace": FilesWorkspace(files={**solved, **start, self.path: self.broken}),
                "difficulty": str(self.difficulty),
                "tags": ("micro",),
                "oracle": oracle,
            }
        )

    @property
    def expert(self) -> tuple[ToolCall, ...]:
        """The calls that solve the task. Lines are replaced from the last to the first."""
        search = ToolCall(name="grep", arguments={"pattern": f"def {self.function.rpartition('.')[2]}"})
        view = ToolCall(name="view", arguments={"path": self.path})
        before, after = split_lines(self.broken), split_lines(read_solved(self.toy)[self.path])
        fixes = [
            ToolCall(
                name="rewrite",
                arguments={
                    "path": self.path,
                    "new_code": "".join(after[new:new_end]).replace("\r\n", "\n"),
                    "start": old + 1,
                    "end": old_end,
                },
            )
            for old, old_end, new, new_end in reversed([*_changed_blocks(before, after)])
        ]
        return (*([] if self.difficulty == MUTANT_RUNGS[0] else [search]), view, *fixes)


@functools.cache
def read_mutants(difficulty: int) -> tuple[ToyMutant, ...]:
    """Return the bugs of a difficulty, in the order of their numbers."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    every = [ToyMutant.model_validate_json(line) for line in lines if line.startswith(f'{{"difficulty":{difficulty},')]
    return tuple(every)


def edit_lines(text: str, edits: Iterable[LineEdit]) -> str:
    """Return a text after edits that do not overlap."""
    lines = split_lines(text)
    for edit in sorted(edits, reverse=True):
        lines[edit.first : edit.first + edit.size] = [edit.text]
    return "".join(lines)


def find_edits(before: str, after: str) -> tuple[LineEdit, ...]:
    """Return the edits that make one text of another."""
    old, new = split_lines(before), split_lines(after)
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return tuple(LineEdit(a, b - a, "".join(new[c:d])) for tag, a, b, c, d in blocks if tag != "equal")


def _changed_blocks(before: list[str], after: list[str]) -> Iterable[tuple[int, int, int, int]]:
    """Yield the ranges of lines that differ. Before an insertion, they begin with the line above it."""
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            above = int(a == b)
            yield a - above, b, c - above, d
