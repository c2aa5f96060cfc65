"""SWE-Gym rows as tasks: the source adds image and test command."""

from typing import Any

import pytest

from swe_gym.errors import TaskError
from swe_gym.grading.log_parsers import load_parser
from swe_gym.tasks.swebench import SWEGymSource, swegym_task
from swe_gym.types import Task

PATCH = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"


def row(**columns: Any) -> dict[str, Any]:
    return {
        "instance_id": "getmoto__moto-7365",
        "repo": "getmoto/moto",
        "base_commit": "abc",
        "version": "5.0",
        "patch": PATCH.format("moto/core.py"),
        "test_patch": PATCH.format("tests/test_core.py"),
        "problem_statement": "It is wrong.",
        "hints_text": "",
        "created_at": "2024-02-19 20:29:03",
        "FAIL_TO_PASS": ["tests/test_core.py::test_a"],
        "PASS_TO_PASS": [],
        **columns,
    }


def test_image_and_command_are_known() -> None:
    task = swegym_task(row())
    assert task.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest"
    assert "\npytest -n0 -rA tests/test_core.py\n" in task.oracle.eval_script
    assert "\nmake init\n" in task.oracle.eval_script
    assert task.oracle.log_parser == "pytest"


def test_cases_of_mypy_are_selected_by_name() -> None:
    cases = "+[case testOne]\n+x\n [case testTwo]\n"
    task = swegym_task(row(repo="python/mypy", version="1.8", test_patch=PATCH.format("a.test") + cases))
    assert '\npytest -rA -k "testOne or testTwo"\n' in task.oracle.eval_script


def test_an_unknown_version_is_rejected() -> None:
    with pytest.raises(TaskError, match=r"eval_script: .* getmoto/moto version 0\.0"):
        swegym_task(row(version="0.0"))


def test_repository_names_ignore_case() -> None:
    assert swegym_task(row(repo="Project-MONAI/MONAI", version="1.0")).oracle.log_parser == "pytest"


def test_real_rows_load_and_survive_json(real) -> None:
    source = SWEGymSource(str(real("swegym/rows.jsonl")))
    assert len(source.ids()) == 5
    for task_id in source.ids():
        task = source.get(task_id)
        assert Task.model_validate_json(task.model_dump_json()) == task
        assert load_parser(task.oracle.log_parser)
