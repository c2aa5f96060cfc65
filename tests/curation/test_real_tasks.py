"""Collected real tasks: a small sample is valid."""

import json
import os
from pathlib import Path

import pytest
import real_tasks

from swe_gym.curation.validation import validate
from swe_gym.errors import MissingInterpreter, SandboxError
from swe_gym.index import find_sdists
from swe_gym.sandboxes.contents.pythons import find_interpreter

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def require(task_id: str) -> None:
    """Skip the test if the collection, the task's interpreter or the index is missing."""
    if not DATA.is_dir():
        pytest.skip(f"there is no folder {DATA} of collected tasks")
    lines = [text for name in real_tasks.FILES for text in (DATA / "real_tasks" / name).read_text().splitlines()]
    version = next(line["python"] for line in map(json.loads, lines) if task_id in line.values())
    try:
        find_interpreter(version, timeout=60)
        find_sdists("xmltodict", timeout=60)
    except (MissingInterpreter, SandboxError) as error:
        if isinstance(error, SandboxError) and "network" in os.environ.get("SWE_GYM_REQUIRE", ""):
            raise
        pytest.skip(str(error))


@pytest.mark.network
@pytest.mark.parametrize(
    "task_id",
    [
        "marshmallow-code__marshmallow-1359",
        pytest.param("django__django-11179", marks=pytest.mark.thorough),  # a minute each
        pytest.param("sympy__sympy-14396", marks=pytest.mark.thorough),
    ],
)
def test_a_real_task_is_valid(task_id: str) -> None:
    require(task_id)
    tasks = real_tasks.RealTasks(DATA / "real_tasks", DATA / "swebench")
    (record,) = validate(tasks, [task_id], times=1)
    assert (record.status, record.reason, record.flaky) == ("valid", "", ())
    assert len(record.test_seconds) == 2


@pytest.mark.network
def test_a_real_instance_keeps_its_published_lists() -> None:
    require("django__django-11179")
    task = real_tasks.RealTasks(DATA / "real_tasks", DATA / "swebench").get("django__django-11179")
    assert task.oracle.grader == "log"
    assert task.oracle.log_parser == "django"
    assert task.oracle.fail_to_pass == ("test_fast_delete_instance_set_pk_none (delete.tests.FastDeleteTests)",)
    assert len(task.oracle.pass_to_pass) > 30
