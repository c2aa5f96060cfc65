"""R2E-Gym rows as tasks: expected results, issue texts, gold patches and hidden files."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import TaskError
from swe_gym.grading.log_parsers import load_parser
from swe_gym.tasks import load_source
from swe_gym.tasks.r2e import R2ESource, issue_text, task_from_row
from swe_gym.types import Task, TestStatus

COMMIT = "c0ffee" * 6 + "beef"


def hunk(start: int, lines: list[tuple[str, str]], section: str = "") -> dict[str, Any]:
    length = {side: sum(kind in ("context", side) for kind, _ in lines) for side in ("deleted", "added")}
    return {
        "descriptor": {
            "old_range": {"start": start, "length": length["deleted"]},
            "new_range": {"start": start, "length": length["added"]},
            "section": section,
        },
        "line_group": {"all_lines": [{"type": kind, "content": text} for kind, text in lines]},
    }


def file_diff(path: str, hunks: list[dict[str, Any]], *, misc: str | None = None, new: bool = False) -> dict[str, Any]:
    return {
        "header": {"file": {"path": path}, "misc_line": misc},
        "minus_file": {"path": "/dev/null" if new else f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "is_binary_file": False,
        "hunks": hunks,
    }


COMMIT_CONTENT = {
    "file_diffs": [
        file_diff("pkg/core.py", [hunk(1, [("deleted", "x = 1"), ("added", "x = 2"), ("context", "y = 1")], "def f")]),
        file_diff("pkg/new.py", [hunk(0, [("added", "z = 1")])], misc="new file mode 100644", new=True),
        file_diff("pkg/tests/test_core.py", [hunk(1, [("added", "assert False")])]),
        {**file_diff("logo.png", []), "is_binary_file": True},
    ]
}


def row(**columns: Any) -> dict[str, Any]:
    return {
        "repo_name": "aiohttp",
        "docker_image": f"namanjain12/aiohttp_final:{COMMIT}",
        "commit_hash": COMMIT,
        "parsed_commit_content": json.dumps(COMMIT_CONTENT),
        "prompt": "The solution is x = 2.",
        "problem_statement": "[ISSUE]\n**Title:** x is wrong\n[/ISSUE]",
        "expected_output_json": json.dumps(
            {"A.test_a": "PASSED", "\x1b[1mtest_b\x1b[0m": "FAILED", "test_c - because": "ERROR"}
        ),
        "modified_files": ["pkg/core.py"],
        "num_non_test_lines": 2,
        **columns,
    }


def test_the_id_is_repository_and_commit(write_rows) -> None:
    source = load_source("r2e", path=str(write_rows("rows.jsonl", [row(), row(commit_hash="f00")])))
    assert source.ids() == (f"aiohttp-{COMMIT}", "aiohttp-f00")
    assert source.get("aiohttp-f00").task_id == "aiohttp-f00"


def test_each_test_must_end_as_expected() -> None:
    oracle = task_from_row(row()).oracle
    assert (oracle.grader, oracle.log_parser) == ("expected", "r2e")
    assert oracle.expected == {"A.test_a": TestStatus.PASSED, "test_b": TestStatus.FAILED, "test_c": TestStatus.ERROR}


def test_files_of_the_image_are_hidden_and_restored() -> None:
    oracle = task_from_row(row()).oracle
    assert {"/r2e_tests", "/root/r2e_tests", "run_tests.sh", "parsed_commit.json"} <= set(oracle.hidden_paths)
    assert {"r2e_tests", "run_tests.sh"} <= set(oracle.test_paths)
    assert "bash run_tests.sh" in oracle.eval_script


def test_a_policy_reads_only_the_issue() -> None:
    task = task_from_row(row())
    assert task.problem_statement == "**Title:** x is wrong"
    seen = task.model_dump_json(exclude={"oracle"})
    for secret in ("x = 2", "solution", "core.py", "test_a"):
        assert secret not in seen


@pytest.mark.parametrize(
    "text",
    [
        "[ISSUE]\nWrong.\n[/ISSUE]",
        "[ISSUE]\n\nWrong.",
        "Wrong.\n[/ISSUE]",
        "**[ISSUE]**\n\nWrong.\n\n**[/ISSUE]**",
        "**Analysis:** line 7 should be x = 2.\n\n[ISSUE]\nWrong.\n[/ISSUE]\nThat was it.",
        "Wrong.",
    ],
)
def test_the_issue_is_found_between_its_marks(text: str) -> None:
    assert issue_text(text) == "Wrong."


def test_the_gold_patch_is_built_without_tests(tmp_path: Path) -> None:
    gold = task_from_row(row()).oracle.gold_patch
    assert "test_core" not in gold
    assert "logo.png" not in gold
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/core.py").write_text("x = 1\ny = 1\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=gold, text=True, check=True, timeout=60)
    assert (tmp_path / "pkg/core.py").read_text() == "x = 2\ny = 1\n"
    assert (tmp_path / "pkg/new.py").read_text() == "z = 1\n"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"expected_output_json": "{}"}, "expected_output_json: no tests"),
        ({"expected_output_json": '{"a": "FINE"}'}, "expected_output_json: .*results must be"),
        ({"expected_output_json": "secret"}, "expected_output_json: .*"),
        ({"parsed_commit_content": '{"file_diffs": [{}]}'}, "parsed_commit_content: invalid description of a commit"),
        ({"docker_image": None}, "docker_image: "),
    ],
)
def test_a_broken_row_is_named_by_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"the row: {message}") as caught:
        task_from_row(row(**columns))
    assert "secret" not in str(caught.value)


def test_real_rows_load_and_survive_json(real) -> None:
    source = R2ESource(str(real("r2e/rows_rebuilt.jsonl")))
    assert len(source.ids()) == 7
    for task_id in source.ids():
        task = source.get(task_id)
        assert Task.model_validate_json(task.model_dump_json()) == task
        assert load_parser(task.oracle.log_parser)
        assert task.image == f"namanjain12/{task.repo}_final:{task_id.rpartition('-')[2]}"
        assert "+++ b/" in task.oracle.gold_patch


def test_real_gold_patches_turn_old_files_into_new_ones(real, tmp_path: Path) -> None:
    for number, line in enumerate(real("r2e/rows_rebuilt.jsonl").read_text().splitlines()):
        columns = json.loads(line)
        gold = task_from_row(columns).oracle.gold_patch
        folder = tmp_path / str(number)
        files = json.loads(columns["parsed_commit_content"])["file_diffs"]
        for file in files:
            path = folder / file["header"]["file"]["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["old_file_content"])
        subprocess.run(["git", "apply", "-"], cwd=folder, input=gold, text=True, check=True, timeout=60)
        changed = [file for file in files if f"+++ b/{file['header']['file']['path']}\n" in gold]
        assert changed
        for file in changed:
            assert (folder / file["header"]["file"]["path"]).read_text() == file["new_file_content"]


def test_incomplete_rows_name_the_missing_column(real) -> None:
    texts = [json.loads(line) for line in real("r2e/r2e_subset_meta_18rows.jsonl").read_text().splitlines()]
    assert len(texts) == 18
    for columns in texts:
        assert "ISSUE]" not in issue_text(columns["problem_statement"])
        with pytest.raises(TaskError, match="expected_output_json: Field required"):
            task_from_row(columns)
