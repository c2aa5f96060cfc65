"""SWE-smith rows as tasks: the bug is applied first, and its reverse is the gold patch."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_gym.errors import TaskError
from swe_gym.grading.log_parsers import load_parser
from swe_gym.tasks import load_source
from swe_gym.tasks.swesmith import SWESmithSource, reverse_diff, task_from_row
from swe_gym.types import Task

BUG = """\
diff --git a/pkg/core.py b/pkg/core.py
index 1111111..2222222 100644
--- a/pkg/core.py
+++ b/pkg/core.py
@@ -1,2 +1,2 @@
-x = 1
+x = 2
 y = 1
"""

GOLD = """\
diff --git a/pkg/core.py b/pkg/core.py
index 2222222..1111111 100644
--- a/pkg/core.py
+++ b/pkg/core.py
@@ -1,2 +1,2 @@
-x = 2
+x = 1
 y = 1
"""


def row(**columns: Any) -> dict[str, Any]:
    return {
        "instance_id": "pallets__flask.bc098406.lm_rewrite__abc",
        "repo": "swesmith/pallets__flask.bc098406",
        "patch": BUG,
        "FAIL_TO_PASS": ["tests/test_b.py::test_x"],
        "PASS_TO_PASS": ["tests/test_a.py::TestA::test_y", "tests/test_b.py::test_z"],
        "image_name": "swesmith.x86_64.pallets__flask.bc098406",
        "base_commit": "main",
        "problem_statement": "x is wrong.",
        **columns,
    }


def test_the_bug_is_the_start_patch_and_its_reverse_the_gold_patch() -> None:
    oracle = task_from_row(row()).oracle
    assert oracle.start_patch == BUG
    assert oracle.gold_patch == GOLD


def test_nothing_is_fetched_and_failing_tests_are_hidden() -> None:
    task = task_from_row(row())
    assert "git" not in task.oracle.eval_script
    assert task.oracle.hidden_paths == ("tests/test_b.py",)
    assert task.oracle.test_paths == ("tests/test_a.py", "tests/test_b.py")
    assert "--verbose tests/test_a.py tests/test_b.py\n" in task.oracle.eval_script
    assert task.repo == "pallets/flask"


def test_test_files_named_from_another_root_are_found() -> None:
    mido = row(
        repo="swesmith/mido__mido.a0158ff9",
        FAIL_TO_PASS=["../dev/tests/test_syx.py::test_read"],
        PASS_TO_PASS=["tests/test_ports.py::test_base"],
    )
    oracle = task_from_row(mido).oracle
    assert oracle.fail_to_pass == ("tests/test_syx.py::test_read",)
    assert oracle.hidden_paths == ("tests/test_syx.py",)
    assert " --rootdir=. tests/test_ports.py tests/test_syx.py\n" in oracle.eval_script


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("swesmith.x86_64.pallets__Flask.bc098406", "swebench/swesmith.x86_64.pallets_1776_flask.bc098406:latest"),
        ("jyangballin/swesmith.x86_64.a_1776_b.c:latest", "jyangballin/swesmith.x86_64.a_1776_b.c:latest"),
    ],
)
def test_images_have_their_published_names(name: str, image: str) -> None:
    assert task_from_row(row(image_name=name)).image == image


def test_other_languages_need_a_command(write_rows) -> None:
    go = row(FAIL_TO_PASS=["TestContext"], PASS_TO_PASS=[])
    with pytest.raises(
        TaskError, match=r"the row: repo: pallets__flask.bc098406 is not tested by pytest: pass test_cmd"
    ):
        task_from_row(go)
    path = str(write_rows("rows.jsonl", [go]))
    source = load_source("swesmith", path=path, test_cmd="go test -v ./...", log_parser="gotest")
    oracle = source.get(source.ids()[0]).oracle
    assert oracle.log_parser == "gotest"
    assert "\ngo test -v ./...\n" in oracle.eval_script


def test_a_bug_without_an_issue_is_rejected() -> None:
    with pytest.raises(TaskError, match="the row: problem_statement: empty"):
        task_from_row(row(problem_statement=None))


def test_a_policy_reads_only_the_issue() -> None:
    seen = task_from_row(row()).model_dump_json(exclude={"oracle"})
    for secret in ("x = 2", "core.py", "test_b"):
        assert secret not in seen


def test_real_rows_load_and_survive_json(real) -> None:
    source = SWESmithSource(str(real("swesmith/rows.jsonl")))
    assert len(source.ids()) == 40
    for task_id in source.ids():
        task = source.get(task_id)
        assert Task.model_validate_json(task.model_dump_json()) == task
        assert load_parser(task.oracle.log_parser)
        assert reverse_diff(task.oracle.gold_patch) == task.oracle.start_patch


def test_a_pandas_row_as_swe_smith_evaluated_it(real) -> None:
    columns = json.loads(real("swesmith/test_logs/pandas-dev__pandas.95280573.pr_53652.json").read_text())
    task = task_from_row({"image_name": "swesmith.x86_64.x", "problem_statement": "An issue.", **columns})
    command = "pytest --disable-warnings --color=no --tb=no --verbose pandas/tests/indexing/test_datetime.py"
    assert command in task.oracle.eval_script.splitlines()


# --- reversing ----------------------------------------------------------------------------------------------


def diff(old: Path, new: Path) -> str:
    """Return git's diff of two folders."""
    command = ["git", "-C", str(old.parent), "diff", "--no-index", "--no-renames", old.name, new.name]
    output = subprocess.run(command, capture_output=True, timeout=60).stdout.decode()
    for side in (old.name, new.name):
        output = output.replace(f"a/{side}/", "a/").replace(f"b/{side}/", "b/")
    return output


lines = st.lists(st.sampled_from(["a", "b", "c", "", "--- x", "+++ y", "@@ -1 +1 @@ z", "\\ q"]), max_size=12)
texts = st.none() | st.tuples(lines, st.booleans()).map(lambda pair: "\n".join(pair[0]) + ("\n" if pair[1] else ""))


@given(
    old=st.dictionaries(st.sampled_from(["f", "g h"]), texts), new=st.dictionaries(st.sampled_from(["f", "g h"]), texts)
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_reversed_diff_reverts_the_original(tmp_path_factory, old: dict[str, Any], new: dict[str, Any]) -> None:
    root = tmp_path_factory.mktemp("trees")
    for name, files in (("old", old), ("new", new)):
        (root / name).mkdir()
        for path, text in files.items():
            if text is not None:
                (root / name / path).write_text(text)
    patch = reverse_diff(diff(root / "old", root / "new"))
    if patch:
        subprocess.run(["git", "apply", "-"], cwd=root / "new", input=patch, text=True, check=True, timeout=60)
    left = {path.name: path.read_text() for path in (root / "new").iterdir()}
    assert left == {path: text for path, text in old.items() if text is not None}


def test_modes_and_renames_are_reversed() -> None:
    head = "diff --git a/x b/y\nold mode 100644\nnew mode 100755\nsimilarity index 100%\nrename from x\nrename to y\n"
    other = "diff --git a/x b/y\nold mode 100755\nnew mode 100644\nsimilarity index 100%\nrename from y\nrename to x\n"
    assert reverse_diff(head) == other


def test_binary_files_are_rejected() -> None:
    with pytest.raises(TaskError, match="binary"):
        reverse_diff("diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nA\n")
