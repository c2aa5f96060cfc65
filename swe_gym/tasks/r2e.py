"""R2E-Gym: Subset, Lite and V1. A task is a commit; its tests must end as they did after that commit.

Rows have no id and no patch. The id is built from repository and commit, the gold patch from the row's description of
the commit. Images hold files that a policy must not see: the tests, and descriptions of the commit.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BeforeValidator

from ..errors import TaskError
from ..files import decode_column
from ..types import ExpectedMap, JsonMapping, Oracle, Task, TestStatus
from .dataset import Columns, DatasetSource, Object, Text, Texts, facts, read_columns, task_name

TIMEOUT = 900.0
"""Time limit of the tests in seconds. R2E-Gym uses 300, which is too short for some of its own tasks."""

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
"""Files in `/testbed`, or where R2E-Gym's runtime moved them, that reveal the tests or the solution."""

EVAL_SCRIPT = """\
#!/bin/bash
cd {workdir} || exit 1
[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests
find -L r2e_tests -name __pycache__ -prune -exec rm -rf {} +
[ -d .venv/bin ] && export PATH="$PWD/.venv/bin:$PATH"
bash run_tests.sh
"""
"""Runs the tests with `run_tests.sh`. They are in `/r2e_tests`, or in `/testbed` of some images."""


def _read_expected(value: object) -> dict[str, TestStatus]:
    """Return the expected results. Names are as R2E-Gym compares them: without colors and reasons."""
    statuses = decode_column(value)
    if not isinstance(statuses, dict):
        raise ValueError("expected an object of test names and results")
    found = {}
    for name, status in statuses.items():
        try:
            found[re.sub(r"\x1b\[\d+m", "", name).split(" - ")[0]] = TestStatus[str(status)]
        except KeyError:
            raise ValueError("results must be PASSED, FAILED, ERROR or SKIPPED") from None
    return found


class R2ERow(Columns):
    """The columns of R2E-Gym that define a task. `prompt` holds the solution and is not read."""

    repo_name: str
    docker_image: str
    commit_hash: str
    problem_statement: str
    expected_output_json: Annotated[dict[str, TestStatus], BeforeValidator(_read_expected)]
    parsed_commit_content: Object = {}
    modified_files: Texts = ()
    num_non_test_files: int | None = None
    num_non_test_func_methods: int | None = None
    num_non_test_lines: int | None = None
    difficulty: Text = ""


class R2ESource(DatasetSource):
    """The tasks of R2E-Gym."""

    dataset = "R2E-Gym/R2E-Gym-Subset"
    model = R2ERow
    id_columns = ("repo_name", "commit_hash")

    @classmethod
    def instance_id(cls, *values: str) -> str:
        """Return repository and commit."""
        return "-".join(values)

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, place=place)


def task_from_row(row: JsonMapping, *, place: str = "the row") -> Task:
    """Return the task of a row of R2E-Gym.

    Args:
        row: The row, by column.
        place: File and row, for messages.

    Raises:
        TaskError: A column is missing or invalid.
    """
    columns = read_columns(R2ERow, row, place)
    if not columns.expected_output_json:
        raise TaskError(f"{place}: expected_output_json: no tests")
    return Task(
        task_id=task_name(R2ESource.instance_id(columns.repo_name, columns.commit_hash)),
        problem_statement=issue_text(columns.problem_statement),
        repo=columns.repo_name,
        image=columns.docker_image,
        difficulty=columns.difficulty,
        # Without the commit and the files that it changed: they would tell a policy where to look.
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
    """Return the text between `[ISSUE]` and `[/ISSUE]`. Either mark may be missing or in bold type."""
    body = re.split(r"\**\[ISSUE\]\**", statement, maxsplit=1)[-1]
    return re.split(r"\**\[/ISSUE\]\**", body, maxsplit=1)[0].strip()


# --- the gold patch -----------------------------------------------------------------------------------------


def _gold_patch(columns: R2ERow, place: str) -> str:
    files = columns.parsed_commit_content.get("file_diffs", [])
    try:
        return "".join(_file_diff(file) for file in files if not is_test(file["header"]["file"]["path"]))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise TaskError(f"{place}: parsed_commit_content: invalid description of a commit: {error!r}") from None


def is_test(path: str) -> bool:
    """Return whether a file of a commit is a test. R2E-Gym uses those as hidden tests."""
    folders, _, name = path.rpartition("/")
    in_tests = any(part in ("tests", "test") for part in folders.lower().split("/"))
    return in_tests or fnmatchcase(name, "test_*.py") or fnmatchcase(name, "*_test.py")


def _file_diff(file: JsonMapping) -> str:
    """Return one file's part of a git diff. It is empty if the row lacks the changes, as for binary files."""
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


def _side(file: JsonMapping, name: str) -> str:
    side: str = file[name]["path"]
    return side


def _hunk(hunk: JsonMapping) -> Iterator[str]:
    old, new = (_range(hunk["descriptor"][side]) for side in ("old_range", "new_range"))
    section = hunk["descriptor"].get("section") or ""
    yield f"@@ -{old} +{new} @@ {section}".rstrip()
    marks = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
    for line in hunk["line_group"]["all_lines"]:
        yield marks[line["type"]] + line["content"].removeprefix("\\ " if line["type"] == "note" else "")


def _range(numbers: JsonMapping) -> str:
    length = numbers.get("length")
    return str(numbers["start"]) if length is None else f"{numbers['start']},{length}"
