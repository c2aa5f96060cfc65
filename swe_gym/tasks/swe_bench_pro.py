"""SWE-bench Pro: rows with a script that runs the tests and one that parses their output.

Rows on the Hub lack both scripts. Pass a copy of the authors' repository, which holds them, as `scripts`.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from ..errors import TaskError, UsageError
from ..types import Json, JsonMapping, LogScript, Oracle, Task
from .dataset import Columns, DatasetSource, Text, Texts, facts, read_columns, task_name
from .swebench import END, START, touched_patterns

TIMEOUT = 3600.0
"""Time limit of an evaluation in the authors' harness, in seconds."""

UNLIKE_THE_REST = "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
"""The only task whose image name follows other rules."""

LONGEST_TAG = 128
"""Maximum length of an image tag. The authors cut longer ones."""


def _decode_text(value: Json) -> Json:
    """Return text that some copies hold as a JSON string, with quotes and escapes."""
    if isinstance(value, str) and value.startswith('"') and value.endswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return "" if value is None else value


Plain = Annotated[str, BeforeValidator(_decode_text)]


class SWEBenchProRow(Columns):
    """The columns of SWE-bench Pro that make a task."""

    instance_id: str
    repo: str
    base_commit: str
    patch: str
    test_patch: str
    problem_statement: Plain
    before_repo_set_cmd: str
    selected_test_files_to_run: Texts
    dockerhub_tag: Text = ""
    requirements: Plain = ""
    interface: Plain = ""
    repo_language: Text = ""
    fail_to_pass: Texts = ()
    pass_to_pass: Texts = ()
    FAIL_TO_PASS: Texts = ()
    PASS_TO_PASS: Texts = ()
    run_script: Text = ""
    parser_script: Text = ""
    base_dockerfile: Text = ""
    instance_dockerfile: Text = ""


class SWEBenchProSource(DatasetSource):
    """The tasks of SWE-bench Pro.

    Args:
        path: File or folder of rows; None uses the Hub.
        scripts: Folder of a copy of the repository `scaleapi/SWE-bench_Pro-os`, for rows without scripts.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "ScaleAI/SWE-bench_Pro"
    split = "test"
    model = SWEBenchProRow

    def __init__(self, path: str | None = None, *, scripts: str | None = None, **options: Json) -> None:
        self._scripts = None if scripts is None else Path(scripts).expanduser().absolute()
        if self._scripts is not None and not (self._scripts / "run_scripts").is_dir():
            raise UsageError(
                f"scripts={self._scripts} has no folder run_scripts: pass a copy of scaleapi/SWE-bench_Pro-os"
            )
        super().__init__(path, **options)

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        if self._scripts is not None and not row.get("run_script"):
            row = {**row, **_scripts(self._scripts, str(row.get("instance_id")))}
        return task_from_row(row, place=place)


def _scripts(folder: Path, instance_id: str) -> dict[str, str]:
    files = {
        "run_script": folder / "run_scripts" / instance_id / "run_script.sh",
        "parser_script": folder / "run_scripts" / instance_id / "parser.py",
        "base_dockerfile": folder / "dockerfiles" / "base_dockerfile" / instance_id / "Dockerfile",
        "instance_dockerfile": folder / "dockerfiles" / "instance_dockerfile" / instance_id / "Dockerfile",
    }
    return {column: file.read_text(encoding="utf-8") for column, file in files.items() if file.is_file()}


def task_from_row(row: JsonMapping, *, place: str = "the row") -> Task:
    """Return the task of a row of SWE-bench Pro.

    Raises:
        TaskError: A column is missing or invalid, or the row lacks its scripts.
    """
    columns = read_columns(SWEBenchProRow, row, place)
    for name in ("run_script", "parser_script"):
        if not getattr(columns, name):
            raise TaskError(f"{place}: {name}: missing; pass a copy of the authors' repository as scripts=")
    parts = {"": columns.problem_statement, "## Requirements": columns.requirements, "## Interface": columns.interface}
    return Task(
        task_id=task_name(columns.instance_id),
        problem_statement="\n\n".join(f"{title}\n\n{text}".strip() for title, text in parts.items() if text),
        repo=columns.repo,
        image=f"jefzda/sweap-images:{columns.dockerhub_tag or _tag(columns, place)}",
        workdir="/app",
        tags=(columns.repo_language,) if columns.repo_language else (),
        metadata=facts(
            instance_id=columns.instance_id, base_commit=columns.base_commit, language=columns.repo_language
        ),
        oracle=Oracle(
            gold_patch=columns.patch,
            test_paths=touched_patterns(columns.test_patch),  # the script takes them from the solution's commit
            fail_to_pass=columns.fail_to_pass or columns.FAIL_TO_PASS,
            pass_to_pass=columns.pass_to_pass or columns.PASS_TO_PASS,
            timeout=TIMEOUT,
            hidden_paths=("/workspace", "/preprocess.sh"),
            evaluation=LogScript(eval_script=_script(columns), log_parser=columns.parser_script),
        ),
    )


def _tag(columns: SWEBenchProRow, place: str) -> str:
    """Return the image tag by the authors' rules, for older rows without a column for it."""
    if not re.fullmatch(r"[^/]+/[^/]+", columns.repo):
        raise TaskError(f"{place}: repo: not owner/name, which is required to name the image without dockerhub_tag")
    owner, name = columns.repo.lower().split("/")
    task = columns.instance_id.removeprefix("instance_")
    if columns.instance_id != UNLIKE_THE_REST:
        name = "element" if (owner, name) == ("element-hq", "element-web") else name
        task = task.removesuffix("-vnan")
    return f"{owner}.{name}-{task}"[:LONGEST_TAG]


def _script(columns: SWEBenchProRow) -> str:
    """Return the authors' evaluation: set the image's variables, check out the tests, run the row's script."""
    dockerfiles = f"{columns.base_dockerfile}\n{columns.instance_dockerfile}".splitlines()
    variables = [line.strip().replace("ENV", "export", 1) for line in dockerfiles if line.strip().startswith("ENV ")]
    lines = [
        "#!/bin/bash",
        *variables,
        "cd /app",
        columns.before_repo_set_cmd.strip().split("\n")[-1],
        "folder=$(mktemp -d)",
        f"cat > $folder/run_script.sh <<'EOF_114329324912'\n{columns.run_script}\nEOF_114329324912",
        f": '{START}'",
        f"bash $folder/run_script.sh {shlex.quote(','.join(columns.selected_test_files_to_run))}",
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"
