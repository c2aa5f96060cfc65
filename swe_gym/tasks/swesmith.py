"""SWE-smith: working repositories with an inserted bug. The row's patch is the bug; its reverse is the gold patch.

The image holds the working repository. The bug is applied when a sandbox starts, from the row, without `git fetch`.
Test files that the bug makes fail are absent while a policy works, as in SWE-smith's own branches.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from ..errors import TaskError
from ..types import Json, JsonMapping, LogScript, Oracle, Task
from .dataset import Columns, DatasetSource, Moment, Text, Texts, facts, read_columns, task_name
from .swebench import END, START, TIMEOUT

PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose"

COMMANDS = {
    "mido__mido.a0158ff9": f"{PYTEST} -rs -c /dev/null --rootdir=.",
    "paramiko__paramiko.23f92003": "pytest -rA --color=no --disable-warnings",
    "pydantic__pydantic.acb0f10f": f"/root/.local/bin/uv run {PYTEST}",
}
"""Test commands of the Python repositories with their own pytest options."""

FOREIGN_ROOT = "../dev/"
"""Prefix that pytest adds to files under `-c /dev/null` without `--rootdir=.`; some rows of mido have it."""

OTHER_RUNNERS = ("python__mypy.e93f06ce", "tornadoweb__tornado.d5ac65c1", "un33k__python-slugify.872b3750")
"""Repositories that are not tested by pytest on files."""


class SWESmithRow(Columns):
    """The columns of SWE-smith that define a task."""

    instance_id: str
    repo: str
    patch: str
    FAIL_TO_PASS: Texts
    PASS_TO_PASS: Texts
    image_name: str
    problem_statement: Text = ""
    created_at: Moment = ""


class SWESmithSource(DatasetSource):
    """The tasks of SWE-smith. Languages other than Python need `test_cmd` and `log_parser`.

    Args:
        path: File or folder of rows; None uses the Hub.
        test_cmd: Test command, if other than pytest on the test files, such as "go test -v ./...".
        log_parser: Name of the log parser, as in `swe_gym.grading.log_parsers`.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-bench/SWE-smith-py"
    model = SWESmithRow

    def __init__(self, path: str | None = None, *, test_cmd: str = "", log_parser: str = "", **options: Json) -> None:
        super().__init__(path, **options)
        self._test_cmd = test_cmd
        self._log_parser = log_parser

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, test_cmd=self._test_cmd, log_parser=self._log_parser, place=place)


def task_from_row(row: JsonMapping, *, test_cmd: str = "", log_parser: str = "", place: str = "the row") -> Task:
    """Return the task of a row of SWE-smith.

    Args:
        row: The row, by column.
        test_cmd: Test command, if other than pytest on the test files.
        log_parser: Name of the log parser.
        place: File and row, for messages.

    Raises:
        TaskError: A column is missing or invalid, the issue is empty, or no test command is known.
    """
    columns = read_columns(SWESmithRow, row, place)
    if not columns.problem_statement.strip():
        raise TaskError(f"{place}: problem_statement: empty; SWE-smith has no issue for this bug")
    try:
        gold_patch = reverse_diff(columns.patch)
    except TaskError as error:
        raise TaskError(f"{place}: patch: {error}") from None
    if not gold_patch.strip():
        raise TaskError(f"{place}: patch: empty, so there is no bug")
    fail_to_pass = tuple(test.removeprefix(FOREIGN_ROOT) for test in columns.FAIL_TO_PASS)
    pass_to_pass = tuple(test.removeprefix(FOREIGN_ROOT) for test in columns.PASS_TO_PASS)
    tests = test_files((*fail_to_pass, *pass_to_pass))
    command = test_cmd or _pytest_command(columns, tests, place)
    return Task(
        task_id=task_name(columns.instance_id),
        problem_statement=columns.problem_statement,
        repo=repository(columns.repo),
        image=image_of(columns.image_name),
        metadata=facts(instance_id=columns.instance_id, created_at=columns.created_at),
        oracle=Oracle(
            gold_patch=gold_patch,
            start_patch=columns.patch,
            test_paths=tests,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            timeout=TIMEOUT,
            hidden_paths=test_files(fail_to_pass),
            evaluation=LogScript(
                eval_script="\n".join(
                    [
                        "#!/bin/bash",
                        "CONDA=/opt/miniconda3/bin/activate",
                        '[ -f "$CONDA" ] && source "$CONDA" && conda activate testbed',
                        "cd {workdir}",
                        f": '{START}'",
                        command,
                        f": '{END}'",
                        "",
                    ]
                ),
                log_parser=log_parser or "swesmith_pytest",
            ),
        ),
    )


def test_files(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the files of pytest ids, sorted and unique. Ids of other runners name no file."""
    return tuple(sorted({test.partition("::")[0] for test in ids if "::" in test}))


def _pytest_command(columns: SWESmithRow, tests: Sequence[str], place: str) -> str:
    name = columns.repo.rpartition("/")[2]
    if not tests or not all(file.endswith(".py") for file in tests) or name in OTHER_RUNNERS:
        raise TaskError(f"{place}: repo: {name} is not tested by pytest: pass test_cmd= and log_parser=")
    return f"{COMMANDS.get(name, PYTEST)} {shlex.join(tests)}"


def repository(mirror: str) -> str:
    """Return the repository of a mirror: "pallets/flask" for "swesmith/pallets__flask.bc098406"."""
    return mirror.rpartition("/")[2].rpartition(".")[0].replace("__", "/", 1)


def image_of(name: str) -> str:
    """Return the name of the published image. Rows of some revisions omit its owner."""
    if "/" in name:
        return name
    return f"swebench/{name.lower().replace('__', '_1776_')}:latest"


# --- reversing a diff ---------------------------------------------------------------------------------------

SWAPPED = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
    "rename from": "rename to",
    "rename to": "rename from",
}


def reverse_diff(diff: str) -> str:
    """Return the git diff that reverts another.

    Raises:
        TaskError: The text is not a git diff, or it changes binary files or copies files.
    """
    lines: list[str] = []
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        if part.strip() and not re.search(r"^(diff --git|---) ", part, flags=re.MULTILINE):
            raise TaskError("not a git diff")
        head, *hunks = re.split(r"^(?=@@ -)", part, flags=re.MULTILINE)
        lines += _reverse_head(head.split("\n"))
        for hunk in hunks:
            lines += _reverse_hunk(hunk.split("\n"))
    return "\n".join(lines) + "\n" if lines else ""


def _reverse_head(head: list[str]) -> Iterator[str]:
    """Yield the lines above the hunks of one file, with before and after swapped, in git's order."""
    names: dict[str, str] = {}
    modes = []
    for line in filter(None, head):
        if line.startswith(("GIT binary patch", "Binary files", "copy ")):
            raise TaskError("a diff of binary files or copies cannot be reversed")
        if line.startswith(("--- ", "+++ ")):
            names[line[:3]] = line[4:]
        elif match := re.match(r"(index )(\w+)\.\.(\w+)(.*)", line):
            yield f"{match[1]}{match[3]}..{match[2]}{match[4]}"
        elif swapped := next((word for word in SWAPPED if line.startswith(f"{word} ")), None):
            modes.append(f"{SWAPPED[swapped]}{line[len(swapped) :]}")
            if swapped in ("new mode", "rename to"):  # the pair swaps its order
                yield from reversed(modes)
                modes.clear()
            elif swapped.endswith("file mode"):
                yield modes.pop()
        else:
            yield line
    if names:
        yield f"--- {_swap_side(names['+++'], 'b/', 'a/')}"
        yield f"+++ {_swap_side(names['---'], 'a/', 'b/')}"


def _swap_side(name: str, old: str, new: str) -> str:
    quote = '"' if name.startswith('"') else ""
    return quote + new + name[len(quote + old) :] if name.startswith(quote + old) else name


def _reverse_hunk(hunk: list[str]) -> Iterator[str]:
    match = re.match(r"@@ -(\S+) \+(\S+) @@(.*)", hunk[0])
    if match is None:
        raise TaskError("not a git diff")
    yield f"@@ -{match[2]} +{match[1]} @@{match[3]}"
    sides: dict[str, list[str]] = {"-": [], "+": []}
    last: list[str] = []
    for line in hunk[1:]:
        mark = line[:1]
        if mark in sides:
            last = sides["+" if mark == "-" else "-"]
            last.append(("+" if mark == "-" else "-") + line[1:])
        elif mark == "\\" and (sides["-"] or sides["+"]):
            last.append(line)
        elif line:
            yield from (*sides["-"], *sides["+"], line)
            sides = {"-": [], "+": []}
    yield from (*sides["-"], *sides["+"])
