"""SWE-bench: full, Lite, Verified, Multilingual, Multimodal, with rows of harness v4 and v5; SWE-Gym; SWE-bench-Live.

Rows of v5 have `image`, `eval_script`, `log_parser` and `eval_type`. For rows of v4, this module builds them from the
test commands of that harness (`swebench_specs.toml`). Rows of SWE-Gym get image and test command here. Those
of SWE-bench-Live have lists of commands that build, test and print results.
"""

import functools
import re
import shlex
import tomllib
from collections.abc import Mapping
from importlib import resources

from ..errors import TaskError
from ..types import Json, JsonMapping, LogScript, Oracle, Task
from .dataset import Columns, DatasetSource, Moment, Object, Text, Texts, facts, read_columns, task_name

TIMEOUT = 1800.0
"""Time limit of an evaluation in the harness, in seconds."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"

PARSERS = {
    **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pydicom", "requests", "pylint"), "pytest_options"),
    **dict.fromkeys(("astropy", "scikit", "sphinx"), "pytest_v2"),
}
"""The harness's name of a log parser, after a repository -> ours."""

NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Suffixes of changed files that are not passed to the test command."""


class SWEBenchRow(Columns):
    """The columns of SWE-bench and of datasets with the same columns."""

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
    """The tasks of SWE-bench, in any edition; by default Verified.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement. Leaderboards do
            not use them.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-bench/SWE-bench_Verified"
    split = "test"
    model = SWEBenchRow

    def __init__(self, path: str | None = None, *, hints: bool = False, **options: Json) -> None:
        super().__init__(path, **options)
        self._hints = hints

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, hints=self._hints, place=place)


class SWEBenchFull(SWEBenchSource):
    """The full SWE-bench: 2,294 tasks."""

    dataset = "SWE-bench/SWE-bench"


class SWEBenchLite(SWEBenchSource):
    """SWE-bench Lite: 300 tasks."""

    dataset = "SWE-bench/SWE-bench_Lite"


class SWEBenchMultilingual(SWEBenchSource):
    """SWE-bench Multilingual: 300 tasks in nine languages."""

    dataset = "SWE-bench/SWE-bench_Multilingual"


class SWEBenchMultimodal(SWEBenchSource):
    """SWE-bench Multimodal: the 102 tasks whose tests are public."""

    dataset = "SWE-bench/SWE-bench_Multimodal"
    split = "dev"


def task_from_row(row: JsonMapping, *, hints: bool = False, place: str = "the row") -> Task:
    """Return the task of a row of SWE-bench.

    Args:
        row: The row, by column.
        hints: Append the hints to the problem statement.
        place: File and row, for messages.

    Raises:
        TaskError: A column is missing or invalid, or no evaluation is known for the row's version.
    """
    columns = read_columns(SWEBenchRow, row, place)
    script, parser = columns.eval_script, parser_name(columns.log_parser)
    if not script or not parser:
        script, parser = make_evaluation(columns, known_specs("swebench_specs.toml"), place)
    return instance_task(columns, image_of(columns), script, parser, hints=hints)


def instance_task(columns: SWEBenchRow, image: str, script: str, parser: str, *, hints: bool = False) -> Task:
    """Return the task of a row with the columns of SWE-bench, given its image, evaluation script and log parser.

    It has the tag "binary-tests" if the tests need binary files, which the harness downloads.
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


def image_of(columns: SWEBenchRow, owner: str = "swebench") -> str:
    """Return the image that a row names, or the one that `owner` publishes for its id."""
    named = columns.image or columns.docker_image or columns.image_name
    return named or f"{owner}/sweb.eval.x86_64.{columns.instance_id.lower().replace('__', '_1776_')}:latest"


def parser_name(published: str) -> str:
    """Return our name of a log parser of the harness: "pytest_v2" for "parse_log_astropy"."""
    name = published.removeprefix("parse_log_")
    return PARSERS.get(name, name)


# --- evaluation of rows without a script --------------------------------------------------------------------


class Spec(Columns):
    """How some versions of a repository are tested.

    Attributes:
        versions: The versions.
        test_cmd: Command that runs the test files appended to it.
        install: Command that builds and installs the repository with the work in it.
        eval_commands: Commands that run before.
        log_parser: Name of the log parser.
        skips_removed: Omit files that the test patch removes. SWE-bench's own harness passes them to the command.
    """

    versions: tuple[str, ...]
    test_cmd: str
    install: str = ""
    eval_commands: tuple[str, ...] = ()
    log_parser: str
    skips_removed: bool = False


@functools.cache
def known_specs(file: str) -> dict[tuple[str, str], Spec]:
    """Return a table of specs: (repository in lower case, version) -> how it is tested."""
    data = tomllib.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"))
    found: dict[tuple[str, str], Spec] = {}
    for repo, entry in data.items():
        for spec in entry["specs"]:
            checked = Spec(log_parser=entry["log_parser"], **spec)
            found |= {(repo.lower(), version): checked for version in checked.versions}
    return found


def make_evaluation(columns: SWEBenchRow, specs: Mapping[tuple[str, str], Spec], place: str) -> tuple[str, str]:
    """Return the evaluation script that the harness would run, and the name of its log parser.

    Raises:
        TaskError: No test command is known for this version of the repository.
    """
    spec = specs.get((columns.repo.lower(), columns.version))
    if spec is None:
        raise TaskError(
            f"{place}: eval_script: missing, and no test command is known for {columns.repo[:80]} version "
            f"{columns.version[:20] or 'unknown'}"
        )
    return evaluation_script(columns, spec), spec.log_parser


def evaluation_script(columns: SWEBenchRow, spec: Spec) -> str:
    """Return a script that puts the hidden tests into `/testbed` and runs them. Two marks enclose their output."""
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
        *tests[:-1],  # restore the test files
    ]
    return "\n".join(lines) + "\n"


def hidden_tests(columns: SWEBenchRow) -> list[str]:
    """Return script lines that restore the test files of the base commit; the last one applies the test patch."""
    files = changed_files(columns.test_patch)
    reset = [f"git checkout {columns.base_commit} {shlex.join(files)}"] if files else []
    return [*reset, f"git apply -v - <<'EOF_114329324912'\n{columns.test_patch}\nEOF_114329324912"]


def changed_files(diff: str) -> list[str]:
    """Return the files of a diff that existed before it."""
    return re.findall(r"^--- a/(.*?)\t?$", diff, re.MULTILINE)  # git adds a tab to names with spaces


def touched_patterns(diff: str) -> tuple[str, ...]:
    """Return the files that a diff changes, adds or removes, each as a pattern that matches only that file."""
    names = re.findall(r"^diff --git a/.* b/(.*)$", diff, re.MULTILINE)
    return tuple(re.sub(r"([*?[])", r"[\1]", name) for name in dict.fromkeys(names))


def test_command(columns: SWEBenchRow, spec: Spec) -> str:
    """Return the test command with the files of the test patch as arguments, in the form that the runner takes."""
    if columns.repo == "python/mypy":  # files hold many cases, which are selected by name
        cases = re.findall(r"\[case ([^\]]+)\]", columns.test_patch)
        return f'{spec.test_cmd} "{" or ".join(cases)}"'
    touched = re.findall(r"diff --git a/.* b/(.*)", columns.test_patch)
    removed = re.findall(r"^diff --git a/.* b/(.*)\ndeleted file mode", columns.test_patch, re.MULTILINE)
    skipped = set(removed) if spec.skips_removed else ()
    files = [file for file in touched if not file.endswith(NOT_TESTS) and file not in skipped]
    if columns.repo == "django/django":
        files = [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in files]
    return " ".join([spec.test_cmd, *files])


class SWEGymSource(SWEBenchSource):
    """The tasks of SWE-Gym and SWE-Gym Lite.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-Gym/SWE-Gym"
    split = "train"

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return swegym_task(row, hints=self._hints, place=place)


def swegym_task(row: JsonMapping, *, hints: bool = False, place: str = "the row") -> Task:
    """Return the task of a row of SWE-Gym.

    Raises:
        TaskError: A column is missing or invalid, or no test command is known for the row's version.
    """
    columns = read_columns(SWEBenchRow, row, place)
    script, parser = make_evaluation(columns, known_specs("swegym_specs.toml"), place)
    image = columns.image or f"xingyaoww/sweb.eval.x86_64.{columns.instance_id.lower().replace('__', '_s_')}:latest"
    return instance_task(columns, image, script, parser, hints=hints)


OWN_PARSER = """\
{code}

if __name__ == "__main__":
    import json, sys
    log = ""
    for stream in sys.argv[1:3]:
        with open(stream, encoding="utf-8") as lines:
            log += lines.read()
    words = {{"pass": "PASSED", "skip": "SKIPPED"}}
    tests = []
    for name, end in parser(log).items():
        status = next((status for word, status in words.items() if word in str(end).lower()), "FAILED")
        tests.append({{"name": name, "status": status}})
    with open(sys.argv[3], "w") as results:
        json.dump({{"tests": tests}}, results)
"""
"""A row's own parser as a program. Its arguments are the files of standard output, standard error and results."""


class LiveRow(SWEBenchRow):
    """The columns of SWE-bench-Live."""

    test_cmds: Texts = ()
    rebuild_cmds: Texts = ()
    print_cmds: Texts = ()
    parser: Text = ""
    language: Text = ""


class SWEBenchLiveSource(SWEBenchSource):
    """The tasks of SWE-bench-Live, and of its MultiLang edition.

    Args:
        path: File or folder of rows; None uses the Hub.
        hints: Append the comments on the issue that preceded the solution to the problem statement.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "SWE-bench-Live/SWE-bench-Live"
    split = "verified"
    model = LiveRow

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return live_task(row, hints=self._hints, place=place)


def live_task(row: JsonMapping, *, hints: bool = False, place: str = "the row") -> Task:
    """Return the task of a row of SWE-bench-Live.

    Raises:
        TaskError: A column is missing or invalid. Unfinished rows of the dataset's pipeline have no tests or commands.
    """
    columns = read_columns(LiveRow, row, place)
    if not columns.test_cmds:
        raise TaskError(f"{place}: test_cmds: empty, so the task cannot be tested")
    parser = columns.log_parser or columns.parser
    if "\n" in parser:
        parser = OWN_PARSER.format(code=parser)
    image = image_of(columns, "starryzhang")
    task = instance_task(columns, image, _live_script(columns), parser_name(parser or "pytest"), hints=hints)
    return task.model_copy(update={"metadata": facts(**task.metadata, language=columns.language)})


def _live_script(columns: LiveRow) -> str:
    lines = [
        "#!/bin/bash",
        "cd /testbed",
        "git config --global --add safe.directory /testbed",
        *hidden_tests(columns),
        *columns.rebuild_cmds,
        f": '{START}'",
        *columns.test_cmds,
        *columns.print_cmds,
        f": '{END}'",
    ]
    return "\n".join(lines) + "\n"
