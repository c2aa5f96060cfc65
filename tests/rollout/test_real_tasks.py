"""Collected real tasks: published names become full test ids, and a small fixed part is valid for real."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swe_gym.errors import MissingInterpreter, SandboxError, TaskError
from swe_gym.index import find_sdists
from swe_gym.rollout.validate import validate
from swe_gym.sandboxes.pythons import find_interpreter
from swe_gym.tasks.file import FileSource
from swe_gym.types import TestStatus

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT.parent / "shared" / "data"
PASSED, FAILED = TestStatus.PASSED, TestStatus.FAILED


def load_converter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_tasks", ROOT / "benchmarks" / "real_tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


real_tasks = load_converter()


@pytest.mark.parametrize(
    ("test", "convention", "name"),
    [
        ("t.py::test_a", "pytest", "t.py::test_a"),
        ("t.py::test_a[x y]", "pytest", "t.py::test_a[x"),
        ("t.py::test_a[/etc/ssl/cert.pem]", "pytest", "t.py::test_a[/etc/ssl/cert.pem]"),
        ("t.py::test_a[/etc/ssl/cert.pem]", "pytest_options", "t.py::test_a[/cert.pem]"),
        ("t.py::test_a[//server/x]", "pytest_options", "t.py::test_a[//server/x]"),
        ("t.py::test_a[/a/*]", "pytest_options", "t.py::test_a[/a/*]"),
        ("t.py::test_a[r\\n]", "pytest_v2", "t.py::test_a[r\\n]"),
    ],
)
def test_published_names_are_those_of_the_log_parsers(test: str, convention: str, name: str) -> None:
    assert real_tasks.published_name(test, convention) == name


def published(**lists: list[str]) -> dict[str, Any]:
    return {"log_convention": "pytest", "FAIL_TO_PASS": [], "PASS_TO_PASS": [], **lists}


def test_a_name_stands_for_all_ids_that_end_as_published() -> None:
    before = [{"t[a b]": FAILED, "t[a c]": PASSED, "t[a d]": FAILED, "k": PASSED}]
    after = [{"t[a b]": PASSED, "t[a c]": PASSED, "t[a d]": FAILED, "k": PASSED, "new": PASSED}]
    lists, unknown = real_tasks.match_names(
        published(FAIL_TO_PASS=["t[a"], PASS_TO_PASS=["k", "[100%]"]), before, after
    )
    assert lists.fail_to_pass == ("t[a b]",)
    assert lists.pass_to_pass == ("t[a c]", "k")
    assert unknown == ["[100%]"]


def test_a_name_that_must_start_passing_and_does_not_makes_the_line_unusable() -> None:
    for after in ({"t": FAILED}, {}):
        with pytest.raises(TaskError, match="nothing that is called 't'"):
            real_tasks.match_names(published(FAIL_TO_PASS=["t"]), [{"t": FAILED}], [after])


def test_the_files_of_a_diff_are_patterns_of_themselves() -> None:
    files = (("a/tests/[x].py", "b/tests/[x].py"), ("/dev/null", "b/new.py"), ("a/gone.py", "/dev/null"))
    diff = "".join(f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n" for old, new in files)
    assert real_tasks.changed_files(diff) == ("tests/[[]x].py", "new.py", "gone.py")


@pytest.mark.network
@pytest.mark.parametrize(
    ("file", "task_id"),
    [
        ("release_pairs.jsonl", "pypi__xmltodict-1.0.3"),
        ("release_pairs.jsonl", "pypi__cachetools-7.3.2"),
        ("swebench_on_pypi.jsonl", "marshmallow-code__marshmallow-1359"),
        ("swebench_on_pypi.jsonl", "pytest-dev__pytest-10356"),
    ],
)
def test_a_real_task_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, task_id: str) -> None:
    if not DATA.is_dir():
        pytest.skip(f"there is no folder {DATA} of collected tasks")
    rows = map(json.loads, (DATA / "real_tasks" / file).read_text().splitlines())
    version = next(row["python"] for row in rows if task_id in row.values())
    try:
        find_interpreter(version, timeout=60)
        find_sdists("xmltodict", timeout=60)
    except (MissingInterpreter, SandboxError) as error:
        if isinstance(error, SandboxError) and "network" in os.environ.get("SWE_GYM_REQUIRE", ""):
            raise
        pytest.skip(str(error))
    arguments = [DATA / "real_tasks" / file, tmp_path / "tasks.jsonl", "--rows", DATA / "swebench", "--only", task_id]
    monkeypatch.setattr(sys, "argv", ["real_tasks", *map(str, arguments)])
    assert real_tasks.main() == 0
    (record,) = validate(FileSource(str(tmp_path / "tasks.jsonl")), times=1)
    assert (record.status, record.reason) == ("valid", "")
