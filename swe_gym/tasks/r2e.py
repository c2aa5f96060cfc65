"""R2E-Gym: Subset, Lite and V1. A task is a commit; its tests must end as they ended after that commit.

Rows have no id and no patch. The id is repository and commit; the gold patch is put together from what the row says
of the commit's files. Images carry what a policy must not see: the tests, and files that describe the commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator

from ..errors import TaskError
from ..types import ExpectedMap, Oracle, Task, TestStatus
from .dataset import Columns, DatasetSource, Object, Text, Texts, decoded, facts, read_columns, task_name

TIMEOUT = 900.0
"""Seconds for the tests. R2E-Gym gives 300, too few for some of its own tasks; others give 900."""

LEFTOVERS = (
    "run_tests.sh",
    "r2e_tests",
    "syn_issue.json",
    "expected_test_output.json",
    "execution_result.json",
    "parsed_commit.json",
    "modified_files.json",
    "modified_entities.json",
)
"""What lies in `/testbed`, or where R2E-Gym's own runtime moved it to, and tells the tests or the solution."""

EVAL_SCRIPT = """\
#!/bin/bash
cd {workdir} || exit 1
[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests
find -L r2e_tests -name __pycache__ -prune -exec rm -rf {} +
[ -d .venv/bin ] && export PATH="$PWD/.venv/bin:$PATH"
bash run_tests.sh
"""
"""The tests lie in `/r2e_tests`, in some images in `/testbed` already; `run_tests.sh` runs them from there."""


def _expected(value: Any) -> dict[str, TestStatus]:
    """The map of expected results, each name as R2E-Gym compares it: without colours, cut where a reason begins."""
    statuses = decoded(value)
    if not isinstance(statuses, dict):
        raise ValueError("it is no object of test names and results")
    found = {}
    for name, status in statuses.items():
        try:
            found[re.sub(r"\x1b\[\d+m", "", name).split(" - ")[0]] = TestStatus[str(status)]
        except KeyError:
            raise ValueError("a result is none of PASSED, FAILED, ERROR, SKIPPED") from None
    return found


class Row(Columns):
    """The columns of R2E-Gym that make a task. `prompt` holds the solution and is not read."""

    repo_name: str
    docker_image: str
    commit_hash: str
    problem_statement: str
    expected_output_json: Annotated[dict[str, TestStatus], BeforeValidator(_expected)]
    parsed_commit_content: Object = {}
    modified_files: Texts = ()
    num_non_test_files: int | None = None
    num_non_test_func_methods: int | None = None
    num_non_test_lines: int | None = None
    difficulty: Text = ""


class R2ESource(DatasetSource):
    """The tasks of R2E-Gym."""

    dataset = "R2E-Gym/R2E-Gym-Subset"
    model = Row
    id_columns = ("repo_name", "commit_hash")

    @classmethod
    def instance_id(cls, *values: str) -> str:
        """Repository and commit."""
        return "-".join(values)

    def task_of(self, row: Mapping[str, Any], place: str) -> Task:
        """The task of a row."""
        return task_from_row(row, place=place)


def task_from_row(row: Mapping[str, Any], *, place: str = "the row") -> Task:
    """The task that a row of R2E-Gym means.

    Args:
        row: The row, by column.
        place: Where the row stands, for messages.

    Raises:
        TaskError: A column is missing or wrong.
    """
    columns = read_columns(Row, row, place)
    if not columns.expected_output_json:
        raise TaskError(f"{place}: expected_output_json: it names no test")
    return Task(
        task_id=task_name(R2ESource.instance_id(columns.repo_name, columns.commit_hash)),
        problem_statement=issue_text(columns.problem_statement),
        repo=columns.repo_name,
        image=columns.docker_image,
        difficulty=columns.difficulty,
        # Not the commit, nor which files it changed: that is where to look, or what to look for.
        metadata=facts(
            num_non_test_files=columns.num_non_test_files,
            num_non_test_func_methods=columns.num_non_test_func_methods,
            num_non_test_lines=columns.num_non_test_lines,
        ),
        oracle=Oracle(
            gold_patch=_gold_patch(columns, place),
            test_paths=LEFTOVERS,
            timeout=TIMEOUT,
            hidden_paths=(*LEFTOVERS, "/r2e_tests", *(f"/root/{name}" for name in LEFTOVERS)),
            evaluation=ExpectedMap(eval_script=EVAL_SCRIPT, log_parser="r2e", expected=columns.expected_output_json),
        ),
    )


def issue_text(statement: str) -> str:
    """What stands between `[ISSUE]` and `[/ISSUE]`; the models that wrote the issues left out or dressed up either."""
    body = re.split(r"\**\[ISSUE\]\**", statement, maxsplit=1)[-1]
    return re.split(r"\**\[/ISSUE\]\**", body, maxsplit=1)[0].strip()


# --- the gold patch -----------------------------------------------------------------------------------------


def _gold_patch(columns: Row, place: str) -> str:
    files = columns.parsed_commit_content.get("file_diffs", [])
    try:
        return "".join(_file_diff(file) for file in files if not is_test(file["header"]["file"]["path"]))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise TaskError(f"{place}: parsed_commit_content: it is no description of a commit: {error!r}") from None


def is_test(path: str) -> bool:
    """Whether a file of a commit belongs to its tests: R2E-Gym has put those aside, as its hidden tests."""
    folders, _, name = path.rpartition("/")
    in_tests = any(part in ("tests", "test") for part in folders.lower().split("/"))
    return in_tests or fnmatchcase(name, "test_*.py") or fnmatchcase(name, "*_test.py")


def _file_diff(file: Mapping[str, Any]) -> str:
    """One file's part of a git diff; empty where the row does not say what changed, as for binary files."""
    if file.get("is_binary_file") or not (file["hunks"] or file["header"].get("misc_line")):
        return ""
    path = file["header"]["file"]["path"]
    lines = [f"diff --git a/{path} b/{path}"]
    if misc := file["header"].get("misc_line"):
        lines.append(misc)
    if file["hunks"]:
        lines += [f"--- {_side(file, 'minus_file')}", f"+++ {_side(file, 'plus_file')}"]
    for hunk in file["hunks"]:
        lines += _hunk(hunk)
    return "\n".join(lines) + "\n"


def _side(file: Mapping[str, Any], name: str) -> str:
    side: str = file[name]["path"]
    return side


def _hunk(hunk: Mapping[str, Any]) -> Iterator[str]:
    old, new = (_range(hunk["descriptor"][side]) for side in ("old_range", "new_range"))
    section = hunk["descriptor"].get("section") or ""
    yield f"@@ -{old} +{new} @@ {section}".rstrip()
    marks = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
    for line in hunk["line_group"]["all_lines"]:
        yield marks[line["type"]] + line["content"].removeprefix("\\ " if line["type"] == "note" else "")


def _range(numbers: Mapping[str, Any]) -> str:
    length = numbers.get("length")
    return str(numbers["start"]) if length is None else f"{numbers['start']},{length}"
