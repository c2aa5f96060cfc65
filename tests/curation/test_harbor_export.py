"""Tasks exported to Harbor's form: what is refused, and that they are judged there as here."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.harbor import export_harbor
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.grading.in_place import run_solution
from swe_gym.guests.stand_alone import is_passed
from swe_gym.sandboxes.local import problem
from swe_gym.tasks import load_source
from swe_gym.tasks.harbor import HarborSource
from swe_gym.types import ExitCode, FilesWorkspace, Oracle, SandboxNeeds, TarWorkspace, Task

HIDDEN = """\
import pytest
from calc import add

@pytest.mark.parametrize("n", [1, 2])
def test_add(n):
    assert add(n, n) == 2 * n
"""

GOLD = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


class UnpackedSource(HarborSource):
    """Exported tasks without their images: the workdir holds the code that the image would."""

    def build(self, task_id: str, item: Path) -> Task:
        task = super().build(task_id, item)
        code = TarWorkspace(path=str(item / "environment/repository.tar.gz"), strip=0)
        needs = task.needs.model_copy(update={"build": None})
        return task.model_copy(update={"image": None, "needs": needs, "workspace": code})


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Any]:
    """Export tasks and return a function that plays one of them: command -> reward; None runs the solution."""
    if why := problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {why}")
    made: list[SweEnv] = []

    def export(*tasks: Task) -> Any:
        export_harbor(tasks, tmp_path / "out")
        env = SweEnv(
            "test_harbor_export:UnpackedSource",
            {"path": str(tmp_path / "out")},
            tools=["bash", "submit"],
            sandbox_options={"options": {"python_prefix": sys.prefix}},  # it has pytest
        )
        made.append(env)

        def play(task_id: str, command: str | None = "true") -> float:
            env.reset(options={"task_id": task_id})
            if command is None:
                run_solution(env.task, env.sandbox)
            else:
                env.sandbox.exec(command)
            _, reward, _, _, info = env.submit()
            assert info["reward_valid"], env.stats["failure"]
            return reward

        return play

    yield export
    for env in made:
        env.close()


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("name", ["toy", "micro"])
def test_solutions_earn_1_and_no_work_0(exported: Any, name: str) -> None:
    source = load_source(name)
    tasks = [source.get(task_id) for task_id in list(source.ids())[:4]]
    play = exported(*tasks)
    assert {task.task_id: (play(task.task_id, None), play(task.task_id)) for task in tasks} == {
        task.task_id: (1.0, 0.0) for task in tasks
    }


def pytest_task(**changes: Any) -> Task:
    files = {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "tests/test_calc.py": "from calc import add\n\ndef test_zero():\n    assert add(2, 0) == 2\n",
    }
    oracle: dict[str, Any] = {
        "gold_patch": GOLD,
        "test_files": {"tests/test_add.py": HIDDEN},
        "test_paths": ("tests/*",),
        "test_cmd": "PYTHONPATH=. python -m pytest -q tests",
        "fail_to_pass": ("tests/test_add.py::test_add[1]", "tests/test_add.py::test_add[2]"),
        "pass_to_pass": ("tests/test_calc.py::test_zero",),
    }
    fields = {"task_id": "adder", "problem_statement": "Sums are wrong.", "workspace": FilesWorkspace(files=files)}
    return Task(**{**fields, **changes, "oracle": Oracle(**{**oracle, **changes.get("oracle", {})})})


WORK = {
    "sed -i s/-/+/ calc.py": 1.0,
    "true": 0.0,
    "sed -i s/-/+/ calc.py; echo 'def test_more(): assert 0' > tests/test_more.py": 1.0,
    "sed -i s/-/+/ calc.py; rm -r tests; mkdir -p tests/test_add.py": 1.0,
    "echo 'def test_zero(): pass' > tests/test_calc.py; echo 'def test_add(): pass' > tests/test_add.py": 0.0,
    "echo 'raise SystemExit(0)' > calc.py": 0.0,
    "printf 'import os\\nos._exit(0)\\n' > calc.py": 0.0,
    "printf 'import pytest\\npytest.skip(allow_module_level=True)\\n' > calc.py": 0.0,
}


@pytest.mark.slow
def test_tests_of_the_policy_do_not_count(exported: Any) -> None:
    play = exported(pytest_task())
    assert {work: play("adder", work) for work in WORK} == WORK


def test_unittest_results_are_those_of_each_test(exported: Any) -> None:
    hidden = (
        "import unittest\nfrom calc import add\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_each(self):\n        for n in (1, 2):\n            with self.subTest(n=n):\n"
        "                self.assertEqual(add(n, 0), n)\n                self.assertEqual(add(0, n), n)\n"
    )
    oracle = {
        "test_files": {"tests/test_add.py": hidden, "tests/__init__.py": ""},
        "test_cmd": "python -m unittest discover -s tests -t .",
        "fail_to_pass": ("tests.test_add.AddTest.test_add", "tests.test_add.AddTest.test_each"),
        "pass_to_pass": (),
    }
    play = exported(pytest_task(oracle=oracle))
    assert play("adder", None) == 1.0
    assert play("adder", "printf 'def add(a, b):\\n    return a + b if b == 3 else a\\n' > calc.py") == 0.0


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ("t.py::test_a[x y]", True),
        ("t.py::test_a[x  y]", True),
        ("t.py::test_a[x", True),
        ("t.py::test_b[x", False),
        ("t.py::test_c", False),
        ("works", False),
    ],
)
def test_ids_that_are_cut_at_a_blank_mean_the_tests_that_they_begin(test: str, passes: bool) -> None:
    results = {"t.py::test_a[x y]": True, "t.py::test_b[x y]": True, "t.py::test_b[x z]": False, "works twice": True}
    assert is_passed(test, results) is passes


def test_the_exit_code_decides_where_it_did(exported: Any) -> None:
    oracle = {
        "evaluation": ExitCode(test_cmd="cd {workdir} && python -c 'import calc; assert calc.add(2, 3) == 5'"),
        "test_files": {},
    }
    task = pytest_task()
    task = task.model_copy(update={"oracle": task.oracle.model_copy(update={"own_grader": "", **oracle})})
    play = exported(task)
    assert (play("adder", None), play("adder")) == (1.0, 0.0)


def test_files_of_an_export(tmp_path: Path) -> None:
    task = pytest_task(
        python={"version": "3.9", "requirements": ("six==1.16", "a>=1")},
        env={"HERE": "{workdir}/x", "QUOTED": 'a"b\\'},
        tags=("t",),
        difficulty="easy",
        time_limit=60,
    )
    export_harbor([task], tmp_path / "out")
    folder = tmp_path / "out/adder"
    assert (folder / "environment/Dockerfile").read_text() == (
        "FROM python:3.9\nRUN python3 -m pip install --no-cache-dir --no-deps six==1.16 'a>=1'\n"
        'WORKDIR /testbed\nADD ["repository.tar.gz", "/testbed/"]\n'
    )
    export_harbor([task], tmp_path / "based", base="debian:12")
    assert (tmp_path / "based/adder/environment/Dockerfile").read_text().splitlines()[:2] == [
        "FROM debian:12",
        'RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python',
    ]
    read = load_source("harbor", path=str(tmp_path / "out")).get("adder")
    assert (read.env, read.workdir) == ({"HERE": "/testbed/x", "QUOTED": 'a"b\\'}, "/testbed")
    assert (read.tags, read.difficulty, read.time_limit, read.oracle.timeout) == (("t",), "easy", 60, 300)
    assert (read.oracle.gold_patch, read.needs.network) == (task.oracle.gold_patch, "none")
    assert os.access(folder / "tests/test.sh", os.X_OK)
    (tmp_path / "again").mkdir()
    export_harbor([task], tmp_path / "again")
    for file in folder.rglob("*"):
        if file.is_file():
            assert (tmp_path / "again/adder" / file.relative_to(folder)).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    "needs",
    [
        SandboxNeeds(network="none"),
        SandboxNeeds(network="egress", cpus=1.5),
        SandboxNeeds(network=("pypi.org", "*.debian.org"), memory_mb=8192, disk_mb=20000),
    ],
)
def test_network_and_limits_are_exported(tmp_path: Path, needs: SandboxNeeds) -> None:
    export_harbor([pytest_task(needs=needs)], tmp_path / "out")
    read = load_source("harbor", path=str(tmp_path / "out")).get("adder").needs
    assert read.model_copy(update={"activate": None, "build": None}) == needs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workspace": None, "image": "i"}, "workspace: missing"),
        ({"oracle": {"test_cmd": "make test"}}, "test_cmd: it must call pytest or unittest exactly once"),
        ({"oracle": {"fail_to_pass": (), "pass_to_pass": ()}}, "fail_to_pass: it names no test"),
        ({"oracle": {"setup_cmd": "make"}}, "setup_cmd: Harbor has nothing like it"),
        ({"oracle": {"hidden_paths": ("x",)}}, "hidden_paths: Harbor has nothing like it"),
        ({"oracle": {"grader": "my:grader"}}, "grader: only the graders"),
        ({"env": {"KEY": "${SECRET}"}}, r"env\.KEY: Harbor would replace it"),
        ({"needs": {"user": "nobody"}}, r"needs\.user: it is not exported"),
        ({"needs": {"activate": True}}, r"needs\.activate: it is not exported"),
        ({"oracle": {"test_files": {"../x": ""}}}, r"test_files: \.\./x is outside the code"),
    ],
)
def test_what_harbor_cannot_express_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"task adder cannot be exported to Harbor: {message}"):
        export_harbor([pytest_task(**changes)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is not an empty folder"):
        export_harbor([pytest_task()], tmp_path)
