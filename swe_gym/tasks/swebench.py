"""SWE-bench: full, Lite, Verified, Multilingual and Multimodal, with rows of harness v4 and of harness v5.

Rows of v5 bring `image`, `eval_script`, `log_parser` and `eval_type`. For those of v4 the same is made here, from the
commands that the harness knew then (`swebench_specs.toml`).
"""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ..errors import TaskError
from ..types import LogScript, Oracle, Task
from .dataset import Columns, DatasetSource, Moment, Object, Text, Texts, facts, read_columns, task_name

TIMEOUT = 1800.0
"""Seconds that the harness gives an evaluation."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"

PARSERS = {
    **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pydicom", "requests", "pylint"), "pytest_options"),
    **dict.fromkeys(("astropy", "scikit", "sphinx"), "pytest_v2"),
}
"""Parsers that the harness names after repositories, and the ones that they are."""

NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Ends of the names of files that a test patch touches and that are not given to the test command."""


class Row(Columns):
    """The columns of SWE-bench, and of datasets in its form."""

    instance_id: str
    repo: str
    base_commit: str
    patch: str
    test_patch: str
    problem_statement: str
    FAIL_TO_PASS: Texts
    PASS_TO_PASS: Texts
    hints_text: Text = ""
    created_at: Moment = ""
    version: Text = ""
    difficulty: Text = ""
    image: Text = ""
    image_name: Text = ""
    docker_image: Text = ""
    image_assets: Object = {}
    eval_script: Text = ""
    log_parser: Text = ""
    eval_type: Text = ""


class SWEBenchSource(DatasetSource):
    """The tasks of SWE-bench, in any of its editions.

    Args:
        path: A file or folder of rows; None is the Hub.
        hints: Whether the problem statement ends with what was said below the issue before it was solved. The
            leaderboards do without.
        **options: As in `DatasetSource`.
    """

    dataset = "SWE-bench/SWE-bench_Verified"
    split = "test"
    model = Row

    def __init__(self, path: str | None = None, *, hints: bool = False, **options: Any) -> None:
        super().__init__(path, **options)
        self._hints = hints

    def task_of(self, row: Mapping[str, Any], place: str) -> Task:
        """The task of a row."""
        return task_from_row(row, hints=self._hints, place=place)


def task_from_row(row: Mapping[str, Any], *, hints: bool = False, place: str = "the row") -> Task:
    """The task that a row of SWE-bench means.

    Args:
        row: The row, by column.
        hints: Whether the problem statement ends with the hints.
        place: Where the row stands, for messages.

    Raises:
        TaskError: A column is missing or wrong, or the row brings no evaluation and none is known for its version.
    """
    columns = read_columns(Row, row, place)
    script, parser = columns.eval_script, parser_name(columns.log_parser)
    if not script or not parser:
        script, parser = made_evaluation(columns, known_specs("swebench_specs.toml"), place)
    return instance_task(columns, image_of(columns), script, parser, hints=hints)


def instance_task(columns: Row, image: str, script: str, parser: str, *, hints: bool = False) -> Task:
    """The task of a row in SWE-bench's form, with how it is evaluated.

    Its tag is "binary-tests" where the tests need files that no textual patch holds; the harness downloads them.
    """
    statement = columns.problem_statement
    if hints and columns.hints_text:
        statement = f"{statement}\n\n## Hints\n\n{columns.hints_text}"
    return Task(
        task_id=task_name(columns.instance_id),
        problem_statement=statement,
        repo=columns.repo,
        image=image or None,
        difficulty=columns.difficulty,
        tags=("binary-tests",) if columns.image_assets.get("test_patch") else (),
        metadata=facts(
            instance_id=columns.instance_id,
            base_commit=columns.base_commit,
            version=columns.version,
            created_at=columns.created_at,
            images=columns.image_assets.get("problem_statement"),
        ),
        oracle=Oracle(
            gold_patch=columns.patch,
            test_patch=columns.test_patch,
            fail_to_pass=columns.FAIL_TO_PASS,
            pass_to_pass=columns.PASS_TO_PASS,
            timeout=TIMEOUT,
            hidden_paths=("/run_tests.sh", "/eval.sh"),  # images of others keep the evaluation there
            evaluation=LogScript(eval_script=script, log_parser=parser, fails_only=columns.eval_type == "fail_only"),
        ),
    )


def image_of(columns: Row, owner: str = "swebench") -> str:
    """The image that a row names, or the one that its owner publishes for its id."""
    named = columns.image or columns.docker_image or columns.image_name
    return named or f"{owner}/sweb.eval.x86_64.{columns.instance_id.lower().replace('__', '_1776_')}:latest"


def parser_name(published: str) -> str:
    """The name of a log parser, of what the harness calls it: "parse_log_astropy" is "pytest_v2"."""
    name = published.removeprefix("parse_log_")
    return PARSERS.get(name, name)


# --- the evaluation of a row that brings none ---------------------------------------------------------------


class Spec(Columns):
    """How some versions of a repository are tested.

    Attributes:
        versions: Those.
        test_cmd: What runs the files that are given to it.
        install: What builds and installs the repository again, once the work is in it.
        eval_commands: What has to be set before.
        log_parser: What reads the log.
        skips_removed: Files that the test patch removes are not given to it. SWE-bench's own harness gives them.
    """

    versions: tuple[str, ...]
    test_cmd: str
    install: str = ""
    eval_commands: tuple[str, ...] = ()
    log_parser: str
    skips_removed: bool = False


@functools.cache
def known_specs(file: str) -> dict[tuple[str, str], Spec]:
    """A table of test commands: (repository in lower case, version) -> how it is tested."""
    data = tomllib.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"))
    found: dict[tuple[str, str], Spec] = {}
    for repo, entry in data.items():
        for spec in entry["specs"]:
            checked = Spec(log_parser=entry["log_parser"], **spec)
            found |= {(repo.lower(), version): checked for version in checked.versions}
    return found


def made_evaluation(columns: Row, specs: Mapping[tuple[str, str], Spec], place: str) -> tuple[str, str]:
    """The evaluation script that the harness would run, and the name of the parser of its log.

    Raises:
        TaskError: It is not known how this version of the repository is tested.
    """
    spec = specs.get((columns.repo.lower(), columns.version))
    if spec is None:
        raise TaskError(
            f"{place}: eval_script: the row brings none, and for {columns.repo[:80]} version "
            f"{columns.version[:20] or 'unknown'} no test command is known"
        )
    return evaluation_script(columns, spec), spec.log_parser


def evaluation_script(columns: Row, spec: Spec) -> str:
    """A script that puts the hidden tests into `/testbed` and runs them, their output between two marks."""
    activate = ["source /opt/miniconda3/bin/activate", "conda activate testbed"]
    tests = hidden_tests(columns)
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        *activate,
        "cd /testbed",
        *spec.eval_commands,
        "git config --global --add safe.directory /testbed",
        "cd /testbed",
        "git status",
        "git show",
        f"git -c core.fileMode=false diff {columns.base_commit}",
        *activate,
        *([spec.install] if spec.install else []),
        *tests,
        f": '{START}'",
        test_command(columns, spec),
        f": '{END}'",
        *tests[:-1],  # tidies up
    ]
    return "\n".join(lines) + "\n"


def hidden_tests(columns: Row) -> list[str]:
    """Lines of a script: set back the test files that were there at the base commit, and last apply the test patch."""
    files = changed_files(columns.test_patch)
    reset = [f"git checkout {columns.base_commit} {shlex.join(files)}"] if files else []
    return [*reset, f"git apply -v - <<'EOF_114329324912'\n{columns.test_patch}\nEOF_114329324912"]


def changed_files(diff: str) -> list[str]:
    """The files of a diff that were there before it."""
    return re.findall(r"^--- a/(.*?)\t?$", diff, re.MULTILINE)  # git ends names with blanks by a tab


def touched_patterns(diff: str) -> tuple[str, ...]:
    """The files that a diff changes, adds or removes, each as a pattern that matches only it."""
    names = re.findall(r"^diff --git a/.* b/(.*)$", diff, re.MULTILINE)
    return tuple(re.sub(r"([*?[])", r"[\1]", name) for name in dict.fromkeys(names))


def test_command(columns: Row, spec: Spec) -> str:
    """The test command with what the test patch touches as its arguments, in the form that the runner takes."""
    if columns.repo == "python/mypy":  # one file of cases a subject; the cases are chosen by name
        cases = re.findall(r"\[case ([^\]]+)\]", columns.test_patch)
        return f'{spec.test_cmd} "{" or ".join(cases)}"'
    touched = re.findall(r"diff --git a/.* b/(.*)", columns.test_patch)
    removed = re.findall(r"^diff --git a/.* b/(.*)\ndeleted file mode", columns.test_patch, re.MULTILINE)
    skipped = set(removed) if spec.skips_removed else ()
    files = [file for file in touched if not file.endswith(NOT_TESTS) and file not in skipped]
    if columns.repo == "django/django":
        files = [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in files]
    return " ".join([spec.test_cmd, *files])


test_command.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever pytest makes of the name
