"""SWE-rebench, Multi-SWE-bench, SWE-bench Pro and SWE-bench-Live: rows with their own commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import TaskError, UsageError
from swe_gym.grading.log_parsers import load_parser
from swe_gym.tasks import load_source, multi_swe_bench, swe_bench_pro, swe_rebench, swebench
from swe_gym.types import Task

PATCH = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"

INSTANCE = {
    "instance_id": "owner__thing-1",
    "repo": "owner/thing",
    "base_commit": "abc",
    "patch": PATCH.format("src/x.c"),
    "test_patch": PATCH.format("tests/test_x.py"),
    "problem_statement": "It is wrong.",
    "hints_text": "Somebody knows why.",
    "FAIL_TO_PASS": ["one", "two"],
    "PASS_TO_PASS": ["three"],
}


def check_real(name: str, path: Path, count: int) -> list[Task]:
    """Check that every row makes a task that survives JSON and reveals nothing of its oracle."""
    source = load_source(name, path=str(path))
    tasks = [source.get(task_id) for task_id in source.ids()]
    assert len(tasks) == count
    for task in tasks:
        assert Task.model_validate_json(task.model_dump_json()) == task
        assert task.oracle.gold_patch not in task.model_dump_json(exclude={"oracle"})
        assert task.oracle.fail_to_pass
        assert "\n" in task.oracle.log_parser or load_parser(task.oracle.log_parser)
    return tasks


# --- SWE-rebench --------------------------------------------------------------------------------------------

CONFIG = {"test_cmd": ["make check", "", "make more"], "log_parser": "parse_log_jq", "install": ["make"]}


def test_rebench_v2_runs_all_commands_in_the_repository_folder() -> None:
    row = {**INSTANCE, "language": "c", "install_config": CONFIG, "image_name": "docker.io/x/y:1"}
    task = swe_rebench.task_from_row(row)
    assert (task.workdir, task.image, task.tags) == ("/thing", "docker.io/x/y:1", ("c",))
    assert task.oracle.log_parser == "jq"
    script = task.oracle.eval_script
    assert "make check || status=$?\nmake more || status=$?\n(exit $status)\n" in script
    assert "git checkout abc tests/test_x.py\n" in script
    assert row["test_patch"] in script


def test_rebench_v2_appends_the_interface() -> None:
    opinion = {"llm_metadata": [{"difficulty": "medium"}]}
    row = {**INSTANCE, "language": "c", "install_config": json.dumps(CONFIG), "interface": "f(x)", "meta": opinion}
    assert swe_rebench.task_from_row(row).problem_statement == "It is wrong.\n\n## Interface\n\nf(x)"
    assert swe_rebench.task_from_row(row, interface=False).problem_statement == "It is wrong."
    assert swe_rebench.task_from_row(row).difficulty == "medium"


def test_rebench_v1_is_tested_like_swe_bench() -> None:
    config = {"test_cmd": "pytest --no-header -rA", "install": "pip install -e .", "log_parser": "parse_log_pytest"}
    row = {**INSTANCE, "install_config": config, "docker_image": "swerebench/sweb.eval.x86_64.owner_1776_thing-1"}
    task = swe_rebench.task_from_row(row, hints=True)
    assert task.workdir == "/testbed"
    assert "\npip install -e .\n" in task.oracle.eval_script
    assert "\npytest --no-header -rA tests/test_x.py\n" in task.oracle.eval_script
    assert "Somebody knows why." in task.problem_statement


def test_rebench_v1_does_not_run_tests_that_were_removed() -> None:
    """pytest does not run at all if a file is missing."""
    removed = "diff --git a/tests/test_old.py b/tests/test_old.py\ndeleted file mode 100644\n--- a/tests/test_old.py\n"
    row = {**INSTANCE, "test_patch": f"{removed}+++ /dev/null\n@@ -1 +0,0 @@\n-a\n{INSTANCE['test_patch']}"}
    task = swe_rebench.task_from_row({**row, "install_config": {"test_cmd": "pytest -rA"}})
    assert "\npytest -rA tests/test_x.py\n" in task.oracle.eval_script
    assert (task.image, task.oracle.log_parser) == ("swerebench/sweb.eval.x86_64.owner_1776_thing-1:latest", "pytest")


@pytest.mark.parametrize(
    ("commands", "lines"),
    [
        ("make check", ["make check || status=$?"]),
        ("[ -d x ] && make", ["[ -d x ] && make || status=$?"]),
        ("['make a', 'make b']", ["make a || status=$?", "make b || status=$?"]),
    ],
)
def test_commands_of_rebench_are_text_or_lists(commands: str, lines: list[str]) -> None:
    config = {"test_cmd": commands, "log_parser": "jq"}
    script = swe_rebench.task_from_row({**INSTANCE, "language": "c", "install_config": config}).oracle.eval_script
    assert "\n".join(["status=0", *lines, "(exit $status)"]) in script


def test_images_of_rebench_v2_are_only_those_of_the_row() -> None:
    assert swe_rebench.task_from_row({**INSTANCE, "language": "c", "install_config": CONFIG}).image is None


def test_a_rebench_row_without_a_command_is_named() -> None:
    for config, said in (
        ({"test_cmd": "make"}, "log_parser: missing"),
        ({"log_parser": "jq"}, "test_cmd: Field required"),
        ({"log_parser": "jq", "test_cmd": [1]}, "test_cmd.*: Input should be a valid string"),
        ({"log_parser": "jq", "test_cmd": None}, "test_cmd: empty"),
        ({"log_parser": "jq", "test_cmd": [" "]}, "test_cmd: empty"),
    ):
        with pytest.raises(TaskError, match=rf"the row: install_config: {said}"):
            swe_rebench.task_from_row({**INSTANCE, "language": "c", "install_config": config})


def test_real_rebench_rows(real) -> None:
    (task,) = check_real("swe_rebench", real("swe_rebench/SWE-rebench-V2_sample.json"), 1)
    assert (task.workdir, task.difficulty) == ("/netcdf-c", "medium")


# --- Multi-SWE-bench ----------------------------------------------------------------------------------------


def multi_row(**columns: Any) -> dict[str, Any]:
    result = {"run": "PASS", "test": "NONE", "fix": "PASS"}
    return {
        "org": "Google",
        "repo": "gson",
        "number": 1787,
        "title": "Fix the adapter",
        "body": "Solves it by x.",
        "base": {"sha": "abc"},
        "resolved_issues": [{"number": 1, "title": "Adapter breaks", "body": "It does."}],
        "fix_patch": PATCH.format("src/A.java"),
        "test_patch": PATCH.format("src/test/ATest.java"),
        "f2p_tests": {},
        "s2p_tests": {},
        "n2p_tests": {"com.google.ATest": result},
        "p2p_tests": {"com.google.BTest": result},
        **columns,
    }


def test_multi_swe_images_hold_the_solution_and_hide_it() -> None:
    task = multi_swe_bench.task_from_row(multi_row())
    assert (task.task_id, task.image) == ("Google__gson-1787", "mswebench/google_m_gson:pr-1787")
    assert task.workdir == "/home/gson"
    assert {"/home/fix.patch", "/home/test.patch", "/home/fix-run.sh"} <= set(task.oracle.hidden_paths)
    assert task.oracle.eval_script.endswith("\nbash /home/test-run.sh\n")
    assert task.oracle.test_paths == ("src/test/ATest.java",)
    assert task.oracle.fail_to_pass == ("com.google.ATest",)
    assert task.oracle.pass_to_pass == ("com.google.BTest",)


def test_multi_swe_policies_read_the_issue_and_not_the_pull_request() -> None:
    assert multi_swe_bench.task_from_row(multi_row()).problem_statement == "# Adapter breaks\n\nIt does."
    without = multi_swe_bench.task_from_row(multi_row(resolved_issues=[]))
    assert without.problem_statement == "# Fix the adapter\n\nSolves it by x."
    with pytest.raises(TaskError, match="resolved_issues: empty"):
        multi_swe_bench.task_from_row(multi_row(resolved_issues=None, title="", body=None))


def test_multi_swe_columns_may_be_lists_of_values() -> None:
    row = multi_row(
        n2p_tests={"name": ["a.B", "c.D"], "fix": ["PASS", "PASS"], "run": ["NONE", "NONE"], "test": ["NONE", "NONE"]},
        resolved_issues={"number": [1, 2], "title": ["One", "Two"], "body": ["", None]},
    )
    as_json = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
    for columns in (row, as_json):
        task = multi_swe_bench.task_from_row(columns)
        assert task.oracle.fail_to_pass == ("a.B", "c.D")
        assert task.problem_statement == "# One\n\n# Two"
    with pytest.raises(TaskError, match="the row: n2p_tests: "):
        multi_swe_bench.task_from_row(multi_row(n2p_tests="secret"))


@pytest.mark.parametrize(
    ("language", "test", "parser"),
    [
        ("", "com.google.ATest", "maven_classes"),
        ("java", "core:compileJava", "gradle_tasks"),
        ("go", "TestA/b", "gotest"),
        ("rust", "a::b", "cargo"),
    ],
)
def test_multi_swe_parsers_follow_language_and_test_names(language: str, test: str, parser: str) -> None:
    row = multi_row(lang=language, n2p_tests={test: {}}, p2p_tests={})
    assert multi_swe_bench.task_from_row(row).oracle.log_parser == parser


def test_multi_swe_parsers_follow_the_repository() -> None:
    for repo, test, parser in (("fmt", "args-test", "ctest"), ("json", "test-a_default", "ctest"), ("jq", "x", "jq")):
        org = {"fmt": "fmtlib", "json": "nlohmann", "jq": "jqlang"}[repo]
        row = multi_row(org=org, repo=repo, lang="cpp", n2p_tests={test: {}}, p2p_tests={})
        assert multi_swe_bench.task_from_row(row).oracle.log_parser == parser
    for parser in multi_swe_bench.REPOSITORY_PARSERS.values():
        assert load_parser(parser)("") == {}


def test_multi_swe_rows_without_a_known_parser_are_rejected() -> None:
    row = multi_row(lang="ts", n2p_tests={"does a thing": {}})
    with pytest.raises(TaskError, match=r"lang: no log parser is known for ts: pass log_parser="):
        multi_swe_bench.task_from_row(row)
    assert multi_swe_bench.task_from_row(row, log_parser="vitest").oracle.log_parser == "vitest"
    with pytest.raises(TaskError, match="no test has to start passing"):
        multi_swe_bench.task_from_row(multi_row(n2p_tests={}))


def test_real_multi_swe_rows(real) -> None:
    tasks = check_real("multi_swe_bench", real("multi_swe_bench"), 39)
    assert {task.oracle.log_parser for task in tasks} == {"maven_classes", "gradle_tasks"}
    assert all(task.task_id == task.metadata["instance_id"] for task in tasks)


# --- SWE-bench Pro ------------------------------------------------------------------------------------------

PRO = {
    **{name: value for name, value in INSTANCE.items() if not name.endswith("TO_PASS")},
    "fail_to_pass": """["it's one", 'and "two"']""",
    "pass_to_pass": "[]",
    "before_repo_set_cmd": "git reset --hard abc\ngit checkout def -- test/x.js",
    "selected_test_files_to_run": '["test/x.js", "test/y.js"]',
    "dockerhub_tag": "owner.thing-1",
    "requirements": '"- It must \\"work\\"."',
    "interface": "",
    "repo_language": "js",
    "run_script": "echo run",
    "parser_script": "print('parse')\n",
    "base_dockerfile": "FROM node\nENV A=1 B=2",
}


def test_pro_rows_hold_their_scripts() -> None:
    task = swe_bench_pro.task_from_row(PRO)
    assert (task.image, task.workdir) == ("jefzda/sweap-images:owner.thing-1", "/app")
    assert task.problem_statement == 'It is wrong.\n\n## Requirements\n\n- It must "work".'
    oracle = task.oracle
    assert oracle.fail_to_pass == ("it's one", 'and "two"')
    assert oracle.log_parser == "print('parse')\n"
    script = oracle.eval_script
    assert "\nexport A=1 B=2\n" in script
    assert "\ngit checkout def -- test/x.js\n" in script
    assert "git reset" not in script
    assert oracle.test_paths == ("tests/test_x.py",)
    assert "\nbash $folder/run_script.sh test/x.js,test/y.js\n" in script


def test_pro_rows_of_the_hub_find_their_scripts_in_a_copy_of_the_authors_repository(write_rows, tmp_path: Path) -> None:
    scripts = ("run_script", "parser_script", "base_dockerfile")
    path = str(write_rows("rows.jsonl", [{name: value for name, value in PRO.items() if name not in scripts}]))
    with pytest.raises(TaskError, match=r"line 1: run_script: missing; .* as scripts="):
        load_source("swe_bench_pro", path=path).get("owner__thing-1")
    with pytest.raises(UsageError, match="no folder run_scripts"):
        load_source("swe_bench_pro", path=path, scripts=str(tmp_path))
    folder = tmp_path / "run_scripts" / "owner__thing-1"
    folder.mkdir(parents=True)
    (folder / "run_script.sh").write_text("echo theirs")
    (folder / "parser.py").write_text("pass\n")
    task = load_source("swe_bench_pro", path=path, scripts=str(tmp_path)).get("owner__thing-1")
    assert "echo theirs" in task.oracle.eval_script
    assert task.oracle.log_parser == "pass\n"


@pytest.mark.parametrize(
    ("repo", "instance_id", "tag"),
    [
        ("Owner/Thing", "instance_Owner__Thing-0a1-vnan", "owner.thing-Owner__Thing-0a1"),
        ("Owner/Thing", f"instance_Owner__Thing-{'0' * 120}", f"owner.thing-Owner__Thing-{'0' * 103}"),
        ("element-hq/element-web", "instance_element-hq__x-1-v2", "element-hq.element-element-hq__x-1-v2"),
        (
            "element-hq/element-web",
            swe_bench_pro.UNLIKE_THE_REST,
            f"element-hq.element-web-{swe_bench_pro.UNLIKE_THE_REST[9:]}",
        ),
    ],
)
def test_pro_rows_of_the_first_revision_name_no_image(repo: str, instance_id: str, tag: str) -> None:
    row = {**PRO, "repo": repo, "instance_id": instance_id, "dockerhub_tag": None}
    assert swe_bench_pro.task_from_row(row).image == f"jefzda/sweap-images:{tag}"
    with pytest.raises(TaskError, match="the row: repo: not owner/name"):
        swe_bench_pro.task_from_row({**row, "repo": "thing"})


def test_real_pro_rows(real) -> None:
    path = real("swe_bench_pro/rows.jsonl")
    tasks = check_real("swe_bench_pro", path, 5)
    assert not any(task.problem_statement.startswith('"') for task in tasks)
    for task, row in zip(tasks, map(json.loads, path.read_text().splitlines()), strict=True):
        assert swe_bench_pro.task_from_row({**row, "dockerhub_tag": ""}).image == task.image


# --- SWE-bench-Live -----------------------------------------------------------------------------------------


def test_live_rows_build_test_and_print() -> None:
    row = {**INSTANCE, "rebuild_cmds": ["make"], "test_cmds": ["pytest -rA > log"], "print_cmds": ["cat log"]}
    task = swebench.live_task(row)
    assert task.image == "starryzhang/sweb.eval.x86_64.owner_1776_thing-1:latest"
    assert task.oracle.log_parser == "pytest"
    script = task.oracle.eval_script
    assert "\nmake\n: '>>>>> Start Test Output'\npytest -rA > log\ncat log\n: '>>>>> End Test Output'\n" in script


def test_the_parser_of_a_live_row_runs_in_the_judging_sandbox(tmp_path: Path) -> None:
    code = "def parser(log):\n    return {line.split()[1]: line.split()[0] for line in log.splitlines()}\n"
    task = swebench.live_task({**INSTANCE, "test_cmds": ["make check"], "log_parser": code})
    (tmp_path / "out").write_text("passed a\nfail b\n")
    (tmp_path / "err").write_text("skip c\n")  # the authors read what a terminal shows
    program = [sys.executable, "-c", task.oracle.log_parser, "out", "err", "results"]
    subprocess.run(program, cwd=tmp_path, check=True, timeout=60)
    assert json.loads((tmp_path / "results").read_text()) == {
        "tests": [
            {"name": "a", "status": "PASSED"},
            {"name": "b", "status": "FAILED"},
            {"name": "c", "status": "SKIPPED"},
        ]
    }


def test_an_unfinished_row_names_the_missing_column(real) -> None:
    source = load_source("swe_bench_live", path=str(real("swe_bench_live/launch_test-dataset.jsonl")))
    with pytest.raises(TaskError, match="line 1: FAIL_TO_PASS: Field required; PASS_TO_PASS: Field required"):
        source.get("amoffat__sh-744")
    with pytest.raises(TaskError, match="the row: test_cmds: empty"):
        swebench.live_task(INSTANCE)
