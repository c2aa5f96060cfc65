"""The families of datasets: ids, arguments, and an episode on rows of a dataset's form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from env_parts import SUBMIT, call
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from swe_gym.errors import Unsupported, UsageError
from swe_gym.tasks import CATALOG

Make = Callable[..., gym.Env[str, str]]

TEST_PATCH = """\
diff --git a/test_adder.py b/test_adder.py
new file mode 100644
--- /dev/null
+++ b/test_adder.py
@@ -0,0 +1,6 @@
+import unittest
+from adder import add
+
+class T(unittest.TestCase):
+    def test_two(self):
+        self.assertEqual(add(2, 2), 4)
"""

SCRIPT = f"""\
#!/bin/bash
cd {{workdir}}
git apply -v - <<'EOF_114329324912'
{TEST_PATCH}
EOF_114329324912
: '>>>>> Start Test Output'
python -m unittest -v test_adder
: '>>>>> End Test Output'
"""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """SWE-bench rows of harness v5."""
    row = {
        "instance_id": "me__adder-1",
        "repo": "me/adder",
        "base_commit": "HEAD",
        "patch": "diff --git a/adder.py b/adder.py\n",
        "test_patch": TEST_PATCH,
        "problem_statement": "add(2, 2) is 5.",
        "FAIL_TO_PASS": ["test_two (test_adder.T.test_two)"],
        "PASS_TO_PASS": [],
        "image": "example/adder:1",
        "eval_script": SCRIPT,
        "log_parser": "parse_log_django",
        "eval_type": "pass_and_fail",
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "instance_id": "me__adder-2"}) + "\n")
    return str(path)


@pytest.fixture
def local(tmp_path: Path) -> dict[str, Any]:
    """Settings that replace the image by a local folder."""
    folder = tmp_path / "adder"
    folder.mkdir()
    (folder / "adder.py").write_text("def add(a, b):\n    return a + b + 1\n")
    return {"backend": "local", "sandbox_options": {"workspace": {"kind": "folder", "path": str(folder)}}}


@pytest.mark.parametrize("env_id", [f"SWE/{one.family}-v0" for one in CATALOG.values() if one.about])
def test_every_dataset_has_an_id_that_survives_json(env_id: str) -> None:
    spec = gym.spec(env_id)
    assert EnvSpec.from_json(spec.to_json()) == spec
    assert isinstance(spec.entry_point, str)
    with pytest.raises(UsageError, match=r"/nowhere/rows\.jsonl"):
        gym.make(env_id, path="/nowhere/rows.jsonl")


def test_the_checker_finds_nothing(make_env: Make, rows: str, local: dict[str, Any]) -> None:
    check_env(make_env("SWE/SWEBench-v0", path=rows, **local).unwrapped, skip_render_check=True)


def test_docker_is_the_default_backend(make_env: Make, rows: str) -> None:
    config = make_env("SWE/SWEBench-v0", path=rows, image="r/{image}", source_options={"hints": True}).unwrapped.config  # type: ignore[attr-defined]  # an Env to the checker
    assert config["backend"] == "docker"
    assert config["source_options"] == {"path": rows, "image": "r/{image}", "hints": True}


def test_an_image_with_too_little_isolation_is_refused(make_env: Make, rows: str) -> None:
    env = make_env("SWE/SWEBench-v0", path=rows, backend="local", sandbox_options={"min_isolation": "vm"})
    with pytest.raises(Unsupported, match="offers isolation 'namespace' here, less than min_isolation='vm'"):
        env.reset(seed=0)


def test_an_episode_reveals_nothing_of_its_tests(make_env: Make, rows: str, local: dict[str, Any]) -> None:
    env = make_env("SWE/SWEBench-v0", path=rows, task_id="me__adder-2", **local)
    observation, info = env.reset(seed=0)
    assert observation.startswith("add(2, 2) is 5.\n")
    assert info["task_id"] == "me__adder-2"
    listing = env.step(call("bash", command="ls; git log --oneline | wc -l"))[0]
    assert "adder.py" in listing
    assert "test_adder" not in listing + repr(info)


@pytest.mark.parametrize(("number", "reward"), [("0", 1.0), ("1", 0.0)])
def test_the_rows_own_script_judges(
    make_env: Make, rows: str, local: dict[str, Any], number: str, reward: float
) -> None:
    env = make_env("SWE/SWEBench-v0", path=rows, **local)
    env.reset(seed=0)
    env.step(call("bash", command=f"sed -i 's/+ 1/+ {number}/' adder.py"))
    _, found, terminated, _, info = env.step(SUBMIT)
    assert (found, terminated, info["reward_valid"]) == (reward, True, True)


# --- starting states ------------------------------------------------------------------------------------------

RUN_TESTS = """\
echo '=========== short test summary info ==========='
for test in two three; do
  python r2e_tests/test_1.py $test && echo "PASSED r2e_tests/test_1.py::T::test_$test" \\
    || echo "FAILED r2e_tests/test_1.py::T::test_$test - AssertionError"
done
"""

R2E_TESTS = """\
import sys
sys.path.insert(0, ".")
from adder import add
assert {"two": add(2, 2) == 4, "three": add(3, 3) == 7}[sys.argv[1]]
"""


def write_jsonl(path: Path, row: dict[str, Any]) -> str:
    path.write_text(json.dumps(row) + "\n")
    return str(path)


@pytest.mark.parametrize(("number", "reward"), [("0", 1.0), ("1", 0.0)])
def test_an_r2e_task_hides_test_files_and_is_judged_by_them(
    make_env: Make, local: dict[str, Any], tmp_path: Path, number: str, reward: float
) -> None:
    folder = Path(local["sandbox_options"]["workspace"]["path"])
    (folder / "run_tests.sh").write_text(RUN_TESTS)
    (folder / "r2e_tests").mkdir()
    (folder / "r2e_tests/test_1.py").write_text(R2E_TESTS)
    (folder / "parsed_commit.json").write_text("the solution")
    row = {
        "repo_name": "adder",
        "commit_hash": "c0ffee",
        "docker_image": "example/adder_final:c0ffee",
        "problem_statement": "[ISSUE] add(2, 2) is 5. [/ISSUE]",
        "expected_output_json": '{"T.test_two": "PASSED", "T.test_three": "FAILED"}',
    }
    env = make_env("SWE/R2E-v0", path=write_jsonl(tmp_path / "r2e.jsonl", row), **local)
    env.reset(seed=0)
    listing = env.step(call("bash", command="ls -a; git status --short; git log -p | grep -c solution"))[0]
    assert "adder.py" in listing
    for secret in ("run_tests", "r2e_tests", "parsed_commit"):
        assert secret not in listing
    env.step(call("bash", command=f"sed -i 's/+ 1/+ {number}/' adder.py; mkdir r2e_tests; echo > r2e_tests/test_1.py"))
    _, found, _, _, info = env.step(SUBMIT)
    assert (found, info["reward_valid"]) == (reward, True)


@pytest.mark.parametrize(("number", "reward"), [("0", 1.0), ("1", 0.0)])
def test_a_swe_smith_task_starts_with_its_bug_and_without_failing_tests(
    make_env: Make, local: dict[str, Any], tmp_path: Path, number: str, reward: float
) -> None:
    folder = Path(local["sandbox_options"]["workspace"]["path"])
    (folder / "adder.py").write_text("def add(a, b):\n    return a + b + 0\n")
    (folder / "test_adder.py").write_text(TEST_PATCH.partition("@@\n")[2].replace("+", ""))
    lines = [" def add(a, b):", "-    return a + b + 0", "+    return a + b + 1", ""]
    bug = "\n".join(["--- a/adder.py", "+++ b/adder.py", "@@ -1,2 +1,2 @@", *lines])
    row = {
        "instance_id": "me__adder.c0ffee00.lm_rewrite__x",
        "repo": "swesmith/me__adder.c0ffee00",
        "patch": f"diff --git a/adder.py b/adder.py\n{bug}",
        "FAIL_TO_PASS": ["test_adder.py::T::test_two"],
        "PASS_TO_PASS": [],
        "image_name": "swesmith.x86_64.me__adder.c0ffee00",
        "problem_statement": "add(2, 2) is 5.",
    }
    path = write_jsonl(tmp_path / "smith.jsonl", row)
    options = {"test_cmd": RUNNER, "log_parser": "swesmith_pytest"}
    env = make_env("SWE/SWESmith-v0", path=path, source_options=options, **local)
    env.reset(seed=0)
    seen = env.step(call("bash", command="cat adder.py; ls; git status --short; git log --oneline | wc -l"))[0]
    assert "a + b + 1" in seen
    assert "test_adder" not in seen
    env.step(call("bash", command=f"sed -i 's/+ 1/+ {number}/' adder.py"))
    _, found, _, _, info = env.step(SUBMIT)
    assert (found, info["reward_valid"]) == (reward, True)


RUNNER = """\
test() { python -m unittest -q test_adder && echo "$1 PASSED [100%]" || { echo "$1 FAILED [100%]"; return 1; }; }
test test_adder.py::T::test_two"""
"""Stands in for pytest, which this machine may lack."""
