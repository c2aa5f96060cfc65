"""Tasks of other systems: Graph Planner's records and debug-gym's rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import TaskError, UsageError
from swe_gym.tasks import load_source
from swe_gym.types import FolderWorkspace

R2E = {
    "repo_name": "aiohttp",
    "docker_image": "namanjain12/aiohttp_final:abc",
    "commit_hash": "abc",
    "problem_statement": "[ISSUE] x is wrong [/ISSUE]",
    "expected_output_json": '{"test_a": "PASSED"}',
}

SWEBENCH = {
    "instance_id": "psf__requests-1",
    "repo": "psf/requests",
    "base_commit": "abc",
    "version": "2.0",
    "patch": "gold",
    "test_patch": "diff --git a/test_x.py b/test_x.py\n--- a/test_x.py\n+++ b/test_x.py\n",
    "problem_statement": "It is wrong.",
    "FAIL_TO_PASS": ["test_x.py::test_a"],
    "PASS_TO_PASS": [],
}

# --- Graph Planner ------------------------------------------------------------------------------------------


def record(**columns: Any) -> dict[str, Any]:
    return {
        "task_id": "r2e-1",
        "data_source": "R2E-Gym/R2E-Gym-Lite",
        "split": "train",
        "max_steps": 20,
        "issue": {"title": "x", "body": "x is wrong, said anew"},
        "sandbox": {
            "backend": "repoenv",
            "docker_image": "mine/aiohttp:1",
            "r2e_ds_json": "/gone/instances/r2e-1.json",
        },
        "repo": "aio-libs/aiohttp",
        **columns,
    }


def test_records_are_judged_like_their_original_row(write_rows, tmp_path: Path) -> None:
    path = write_rows("train.jsonl", [record()])
    source = load_source("graph_planner", path=str(path))
    with pytest.raises(TaskError, match=r"line 1: sandbox.r2e_ds_json: file not found: /gone/instances/r2e-1\.json"):
        source.get("r2e-1")
    (tmp_path / "instances").mkdir()
    (tmp_path / "instances" / "r2e-1.json").write_text(json.dumps({"task_id": "r2e-1", "raw": R2E}))
    task = source.get("r2e-1")
    assert (task.task_id, task.image, task.repo) == ("r2e-1", "mine/aiohttp:1", "aio-libs/aiohttp")
    assert task.problem_statement == "x is wrong, said anew"
    assert task.metadata["max_steps"] == 20
    assert task.oracle.expected


def test_records_of_swe_bench_need_its_rows(write_rows, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"instance_id": "psf__requests-1", "test_patch": "..."}))
    sandbox = {"docker_image": "sweb.eval:1", "r2e_ds_json": "ds.json"}
    path = str(write_rows("test.jsonl", [record(task_id="psf__requests-1", sandbox=sandbox)]))
    with pytest.raises(TaskError, match=r"ds.json: expected_output_json: missing; .* rows="):
        load_source("graph_planner", path=path).get("psf__requests-1")
    rows = str(write_rows("rows.jsonl", [SWEBENCH]))
    task = load_source("graph_planner", path=path, rows=rows).get("psf__requests-1")
    assert task.oracle.fail_to_pass == ("test_x.py::test_a",)
    assert task.image == "sweb.eval:1"


def test_parquet_for_verl_is_read_too(write_rows, tmp_path: Path) -> None:
    extra = {"sandbox": {"docker_image": "mine:1", "r2e_ds_json": "ds.json"}, "issue_id": "r2e-1", "issue_title": "x"}
    prompt = [{"role": "user", "content": "[CODE-REPAIR]"}]
    path = str(write_rows("train_verl.parquet", [{"prompt": prompt, "extra_info": json.dumps(extra)}]))
    (tmp_path / "ds.json").write_text(json.dumps(R2E))
    task = load_source("graph_planner", path=path).get("r2e-1")
    assert task.problem_statement == "x is wrong"


@pytest.mark.parametrize("as_text", [True, False])
def test_parquet_for_verl_without_ids_names_tasks_by_their_files(write_rows, as_text: bool) -> None:
    named = "/gone/datasets/swebench/instances/psf__requests-1.json"
    sandbox = {"docker_image": "theirs/verified:psf__requests-1", "r2e_ds_json": named, "mounts": None}
    extra: Any = {"sandbox": sandbox, "repo": "psf/requests", "issue_id": None, "issue_title": None}
    prompt = [{"role": "user", "content": "[CODE-REPAIR]"}]
    extra = json.dumps(extra) if as_text else extra
    path = str(write_rows("val_verl.parquet", [{"prompt": prompt, "extra_info": extra}]))
    rows = str(write_rows("rows.jsonl", [SWEBENCH]))
    source = load_source("graph_planner", path=path, rows=rows)
    assert source.ids() == ("psf__requests-1",)
    task = source.get("psf__requests-1")
    assert (task.repo, task.image, task.problem_statement) == (
        "psf/requests",
        "theirs/verified:psf__requests-1",
        "It is wrong.",
    )


def test_records_need_a_path_and_ids(write_rows) -> None:
    with pytest.raises(UsageError, match="path= is required"):
        load_source("graph_planner")
    with pytest.raises(TaskError, match=r"line 1: task_id, extra_info.issue_id: both missing"):
        load_source("graph_planner", path=str(write_rows("rows.jsonl", [{"issue": {}}])))


# --- debug-gym ----------------------------------------------------------------------------------------------


def test_debug_gym_rows_are_tasks_of_their_datasets(write_rows) -> None:
    rows = [
        {**SWEBENCH, "env_type": "swebench"},
        {**R2E, "env_type": "r2egym", "instance_id": "aiohttp_final-abc"},
        {"env_type": "swesmith", "instance_id": "a.b"},
        {"env_type": "chess", "instance_id": "c"},
    ]
    source = load_source("debug_gym", path=str(write_rows("rows.jsonl", rows)))
    assert source.ids() == ("psf__requests-1", "aiohttp_final-abc", "a.b", "c")
    assert source.get("psf__requests-1").oracle.grader == "log"
    assert source.get("aiohttp_final-abc").oracle.grader == "expected"
    with pytest.raises(TaskError, match=r"line 3: repo: Field required; patch: Field required"):
        source.get("a.b")
    with pytest.raises(TaskError, match=r"line 4: env_type: unknown type 'chess'. Known: swebench"):
        source.get("c")
    with pytest.raises(UsageError, match="unknown task"):
        source.get("d")


def test_debug_gym_datasets_may_be_objects_by_problem(tmp_path: Path) -> None:
    (tmp_path / "counter").mkdir()
    problems = {
        "counter": {"env_type": "mini_nightmare", "codebase": "counter", "entrypoint": "python -m pytest -s test.py"},
        "other": {"env_type": "local", "path": "/somewhere", "instructions": "Do it."},
        "free": {"env_type": "FreeEnv", "image": "i:1", "local_path": "counter", "entrypoint": None},
    }
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    source = load_source("debug_gym", path=str(tmp_path / "problems.json"))
    task = source.get("counter")
    assert task.workspace == FolderWorkspace(path=str(tmp_path / "counter"))
    assert task.eval_cmd == task.oracle.test_cmd == "python -m pytest -s test.py"
    assert {"test.py", "test_*.py"} <= set(task.oracle.test_paths)
    assert source.get("other").problem_statement == "Do it."
    free = source.get("free")
    assert (free.workspace, free.image, free.eval_cmd) == (task.workspace, "i:1", "python -m pytest -sq .")
