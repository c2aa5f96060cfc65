"""Multi-SWE-bench and Multi-SWE-RL: pull requests of seven languages, each with an image that holds its test scripts.

The image also holds the tests and the solution (`/home/fix.patch`).
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from ..errors import TaskError
from ..files import decode_column
from ..types import Json, JsonMapping, JsonObject, LogScript, Oracle, Task
from .dataset import Columns, DatasetSource, Object, Text, facts, read_columns, task_name
from .swebench import TIMEOUT, touched_patterns

PARSERS = {"go": "gotest", "golang": "gotest", "rust": "cargo"}
"""Language -> log parser, for languages with one parser for all repositories."""

REPOSITORY_PARSERS = {
    **dict.fromkeys(("nlohmann/json", "fmtlib/fmt", "simdjson/simdjson"), "ctest"),
    **dict.fromkeys(("sveltejs/svelte", "vuejs/core"), "js_4"),
    **dict.fromkeys(("iamkun/dayjs", "anuraghazra/github-readme-stats"), "jest_suites"),
    "yhirose/cpp-httplib": "googletest",
    "jqlang/jq": "jq",
}
"""Repository in lower case -> log parser, for the other languages."""

SECRETS = ("fix.patch", "test.patch", "run.sh", "test-run.sh", "fix-run.sh", "prepare.sh", "check_git_changes.sh")
"""Files in `/home` of the images that are hidden from policies."""


def _tests(value: Json) -> Json:
    """Return the test names of an object by name or, in parquet, of one with a list of names."""
    tests = decode_column(value)
    if isinstance(tests, dict) and isinstance(tests.get("name"), list):
        return tests["name"]
    if not isinstance(tests, dict | list | None):
        raise ValueError(f"expected an object of tests, got {type(tests).__name__}")
    return list(tests or ())


def _issues(value: Json) -> Json:
    issues = decode_column(value)
    if isinstance(issues, dict):
        if not all(isinstance(values, list) for values in issues.values()):
            raise ValueError("expected a list of issues, got one object")
        return [dict(zip(issues, issue, strict=True)) for issue in zip(*issues.values(), strict=True)]
    return issues or []


Tests = Annotated[tuple[str, ...], BeforeValidator(_tests)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]


class MultiSWEBenchRow(Columns):
    """The columns of Multi-SWE-bench that define a task."""

    org: Name
    repo: Name
    number: int
    fix_patch: str
    test_patch: str
    base: Object
    title: Text = ""
    body: Text = ""
    resolved_issues: Annotated[list[JsonObject], BeforeValidator(_issues)] = []
    p2p_tests: Tests = ()
    f2p_tests: Tests = ()
    s2p_tests: Tests = ()
    n2p_tests: Tests = ()
    lang: Text = ""
    docker_image: Text = ""


class MultiSWEBenchSource(DatasetSource):
    """The tasks of Multi-SWE-bench.

    Args:
        path: File or folder of rows; None uses the Hub.
        log_parser: Name of the log parser, if language and test names do not determine it.
        **options: Arguments of `DatasetSource`.
    """

    dataset = "ByteDance-Seed/Multi-SWE-bench"
    model = MultiSWEBenchRow
    id_columns = ("org", "repo", "number")

    def __init__(self, path: str | None = None, *, log_parser: str = "", **options: Json) -> None:
        super().__init__(path, **options)
        self._log_parser = log_parser

    @classmethod
    def instance_id(cls, *values: str) -> str:
        """Return the id of newer revisions of the dataset: "google__gson-1787"."""
        org, repo, number = values
        return f"{org}__{repo}-{number}"

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row."""
        return task_from_row(row, log_parser=self._log_parser, place=place)


def task_from_row(row: JsonMapping, *, log_parser: str = "", place: str = "the row") -> Task:
    """Return the task of a row of Multi-SWE-bench.

    Raises:
        TaskError: A column is missing or invalid, or no log parser is known.
    """
    columns = read_columns(MultiSWEBenchRow, row, place)
    instance_id = MultiSWEBenchSource.instance_id(columns.org, columns.repo, str(columns.number))
    fixed = (*columns.f2p_tests, *columns.s2p_tests, *columns.n2p_tests)
    if not fixed:
        raise TaskError(f"{place}: f2p_tests, s2p_tests, n2p_tests: no test has to start passing")
    return Task(
        task_id=task_name(instance_id),
        problem_statement=_statement(columns, place),
        repo=f"{columns.org}/{columns.repo}",
        image=columns.docker_image or f"mswebench/{columns.org}_m_{columns.repo}:pr-{columns.number}".lower(),
        workdir=f"/home/{columns.repo}",
        tags=(columns.lang,) if columns.lang else (),
        metadata=facts(
            instance_id=instance_id, number=columns.number, base_commit=columns.base.get("sha"), language=columns.lang
        ),
        oracle=Oracle(
            gold_patch=columns.fix_patch,
            test_paths=touched_patterns(columns.test_patch),  # the image's own script puts the test patch in
            fail_to_pass=fixed,
            pass_to_pass=columns.p2p_tests,
            timeout=TIMEOUT,
            hidden_paths=tuple(f"/home/{name}" for name in SECRETS),
            evaluation=LogScript(
                eval_script="#!/bin/bash\nbash /home/test-run.sh\n",  # the tests go in there; the solution does not
                log_parser=log_parser or _parser(columns, (*fixed, *columns.p2p_tests), place),
            ),
        ),
    )


def _statement(columns: MultiSWEBenchRow, place: str) -> str:
    """Return the issues that the pull request resolves or, if none is known, its own text."""
    issues = columns.resolved_issues or [{"title": columns.title, "body": columns.body}]
    texts = (f"# {issue.get('title') or ''}\n\n{issue.get('body') or ''}".strip() for issue in issues)
    statement = "\n\n".join(text for text in texts if text != "#")
    if not statement:
        raise TaskError(f"{place}: resolved_issues: empty, and the pull request has no title")
    return statement


def _parser(columns: MultiSWEBenchRow, tests: tuple[str, ...], place: str) -> str:
    """Return the log parser that names tests like this row: classes for Maven, tasks and methods for Gradle."""
    language = columns.lang
    known = PARSERS.get(language.lower()) or REPOSITORY_PARSERS.get(f"{columns.org}/{columns.repo}".lower())
    if known:
        return known
    if all(re.fullmatch(r"[\w$]+(\.[\w$]+)+", name) for name in tests):
        return "maven_classes"
    if language.lower() in ("", "java", "kotlin") and any(" > " in name or ":" in name for name in tests):
        return "gradle_tasks"
    raise TaskError(f"{place}: lang: no log parser is known for {language or 'these tests'}: pass log_parser=")
