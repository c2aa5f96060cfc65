"""Invalid rows: any value makes a task, or an error that names row and column."""

import datetime
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from swe_gym.errors import TaskError
from swe_gym.tasks import (
    load_source,
    multi_swe_bench,
    r2e,
    swe_bench_pro,
    swe_rebench,
    swebench,
    swesmith,
)
from swe_gym.types import Task

DIFF = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"

INSTANCE = {
    "instance_id": "owner__thing-1",
    "repo": "owner/thing",
    "base_commit": "abc",
    "patch": DIFF.format("x.py"),
    "test_patch": DIFF.format("test_x.py"),
    "problem_statement": "It is wrong.",
    "hints_text": "Somebody knows why.",
    "created_at": "2024-01-01",
    "version": "5.0",
    "FAIL_TO_PASS": ["test_x.py::a"],
    "PASS_TO_PASS": ["test_x.py::b"],
    "image_assets": {"problem_statement": ["https://example.org/x.png"]},
}

COMMIT = {
    "file_diffs": [
        {
            "header": {"file": {"path": "x.py"}, "misc_line": None},
            "minus_file": {"path": "a/x.py"},
            "plus_file": {"path": "b/x.py"},
            "hunks": [
                {
                    "descriptor": {"old_range": {"start": 1}, "new_range": {"start": 1}},
                    "line_group": {
                        "all_lines": [{"type": "deleted", "content": "a"}, {"type": "added", "content": "b"}]
                    },
                }
            ],
        }
    ]
}

ROWS: dict[str, tuple[Callable[..., Task], dict[str, Any]]] = {
    "swebench": (
        swebench.task_from_row,
        {**INSTANCE, "eval_script": "pytest", "log_parser": "pytest", "eval_type": "pass_and_fail", "image": "x:1"},
    ),
    "swegym": (swebench.swegym_task, {**INSTANCE, "repo": "getmoto/moto"}),
    "swe_rebench": (
        swe_rebench.task_from_row,
        {
            **INSTANCE,
            "install_config": {"test_cmd": ["make check"], "log_parser": "parse_log_jq"},
            "language": "c",
            "interface": "f(x)",
            "meta": {"llm_metadata": [{"difficulty": "easy"}]},
        },
    ),
    "swe_bench_live": (
        swebench.live_task,
        {**INSTANCE, "test_cmds": ["pytest"], "rebuild_cmds": [], "print_cmds": [], "log_parser": "pytest"},
    ),
    "swe_bench_pro": (
        swe_bench_pro.task_from_row,
        {
            **INSTANCE,
            "before_repo_set_cmd": "git checkout abc",
            "selected_test_files_to_run": "['test_x.py']",
            "dockerhub_tag": "t",
            "run_script": "pytest",
            "parser_script": "import sys\n",
            "requirements": "r",
        },
    ),
    "multi_swe_bench": (
        multi_swe_bench.task_from_row,
        {
            "org": "google",
            "repo": "gson",
            "number": 1,
            "fix_patch": DIFF.format("x.java"),
            "test_patch": DIFF.format("XTest.java"),
            "base": {"sha": "abc"},
            "title": "It is wrong",
            "body": None,
            "resolved_issues": [{"number": 1, "title": "It", "body": "is wrong."}],
            "f2p_tests": {"com.google.XTest": {"run": "NONE"}},
            "p2p_tests": {},
            "lang": "java",
        },
    ),
    "swesmith": (
        swesmith.task_from_row,
        {**INSTANCE, "repo": "swesmith/owner__thing.abc", "image_name": "swesmith.x86_64.owner__thing.abc"},
    ),
    "r2e": (
        r2e.task_from_row,
        {
            "repo_name": "aiohttp",
            "docker_image": "x/aiohttp_final:abc",
            "commit_hash": "abc",
            "problem_statement": "[ISSUE]It is wrong.[/ISSUE]",
            "expected_output_json": '{"test_a": "PASSED"}',
            "parsed_commit_content": json.dumps(COMMIT),
            "modified_files": ["x.py"],
            "num_non_test_lines": 2,
        },
    ),
}

ODD: dict[str, Any] = {
    "nothing": None,
    "not a number": math.nan,
    "empty text": "",
    "text": "x",
    "text with a zero": "a\0b",
    "number": 10**20,
    "truth": True,
    "empty list": [],
    "list of nothing": [None],
    "list of numbers": [1],
    "empty object": {},
    "object": {"a": 1},
    "lists by name": {"name": ["a"], "x": 5},
    "half a list": '["a"',
    "no Python": "{[]: 1}",
    "a deep hole": "[" * 100_000,
    "deep and closed": "[" * 900 + "]" * 900,
    "half a character": "\ud83d",
    "half a character in JSON": '["\\ud83d"]',
    "objects without end": [{}] * 5_000,
}


def complaint(make: Callable[[], Task]) -> str:
    """Return the error about a row; empty if it makes a task, which must survive JSON."""
    try:
        task = make()
    except TaskError as error:
        return str(error)
    assert Task.model_validate_json(task.model_dump_json()) == task
    return ""


def check(make: Callable[..., Task], row: Mapping[str, Any], column: str) -> None:
    said = complaint(lambda: make(row))
    # Without a parser, version or repository that is known, there is no evaluation.
    assert not said or any(f" {name}" in said for name in (column, "eval_script: ", "lang: ", "f2p_tests: ")), said
    assert not said or (said.startswith("the row: ") and len(said) < 2_000)


@pytest.mark.parametrize("source", ROWS)
def test_any_value_makes_a_task_or_an_error_that_names_its_column(source: str) -> None:
    make, row = ROWS[source]
    assert not complaint(lambda: make(row))
    for column in row:
        for value in ODD.values():
            check(make, {**row, column: value}, column)
        check(make, {name: row[name] for name in row if name != column}, column)


def parts(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the path to every part of nested data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, part in items for deeper in parts(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def test_a_broken_description_of_a_commit_is_named_at_any_depth() -> None:
    make, row = ROWS["r2e"]
    for path in parts(COMMIT):
        for value in (None, 5, "x", [], {}, [None]):
            check(make, {**row, "parsed_commit_content": replaced(COMMIT, path, value)}, "parsed_commit_content")


def as_pandas_has_it(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: numpy.array(value, dtype=object) if isinstance(value, list) else math.nan if value is None else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("source", ROWS)
def test_rows_of_a_data_frame_are_the_same_tasks(source: str) -> None:
    make, row = ROWS[source]
    assert make(as_pandas_has_it(row)) == make(row)
    lacking = {**row, "hints_text": None, "created_at": None, "difficulty": None}
    assert make(as_pandas_has_it(lacking)) == make(lacking)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
        (1_700_000_000_000, "2023-11-14T22:13:20+00:00"),
        (1_700_000_000_000.0, "2023-11-14T22:13:20+00:00"),
        (None, None),
    ],
)
def test_dates_of_any_type_become_text(value: Any, text: str | None) -> None:
    make, row = ROWS["swebench"]
    assert make({**row, "created_at": value}).metadata.get("created_at") == text


def test_a_bug_that_cannot_be_reversed_is_named() -> None:
    make, row = ROWS["swesmith"]
    head = "diff --git a/x b/x\n"
    for patch in ("", " ", "nonsense", f"{head}GIT binary patch\n", f"{head}--- a/x\n+++ b/x\n@@ -nonsense\n"):
        with pytest.raises(TaskError, match="the row: patch: "):
            make({**row, "patch": patch})


# --- sources that read files of their own -------------------------------------------------------------------


def opened(source: str, path: Path, row: Mapping[str, Any]) -> Task:
    path.write_text(json.dumps(row) + "\n")
    tasks = load_source(source, path=str(path))
    return tasks.get(tasks.ids()[0])


@pytest.mark.parametrize(
    ("source", "row"),
    [
        (
            "graph_planner",
            {
                "task_id": "t",
                "issue": {"title": "x", "body": "[ISSUE]x is wrong[/ISSUE]"},
                "sandbox": {"docker_image": "i:1", "r2e_ds_json": "ds.json", "env": {"A": "b"}},
                "max_steps": 20,
            },
        ),
        (
            "graph_planner",
            {"extra_info": {"issue_id": "t", "sandbox": {"docker_image": "i:1", "r2e_ds_json": "ds.json"}}},
        ),
        ("debug_gym", {"env_type": "local", "problem": "p", "path": "x", "entrypoint": "pytest", "image": "i:1"}),
    ],
)
def test_records_of_other_systems_make_tasks_or_errors_that_name_the_field(
    tmp_path: Path, source: str, row: dict[str, Any]
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ROWS["r2e"][1]))
    path = tmp_path / "rows.jsonl"
    assert opened(source, path, row).image == "i:1"
    for part in parts(row)[1:]:
        for value in (None, math.nan, "", 7, True, [1], {"a": 1}, "{", "~nobody/x", 'a "b', "x" * 10_000):
            changed = replaced(row, part, value)
            said = complaint(lambda changed=changed: opened(source, path, changed))  # type: ignore[misc]  # a default
            named = (*map(str, part), "r2e_ds_json", "extra_info", "path")
            assert not said or (f"{path}, line 1: " in said and any(name in said for name in named)), said


def test_graph_planner_policies_read_the_issue_without_its_marks(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ROWS["r2e"][1]))
    issue = {"title": "Fix it", "body": "[ISSUE]\nx is wrong\n[/ISSUE]"}
    row = {"task_id": "t", "issue": issue, "sandbox": {"r2e_ds_json": "ds.json"}}
    task = opened("graph_planner", tmp_path / "rows.jsonl", row)
    assert task.problem_statement == "# Fix it\n\nx is wrong"
