"""Trust in rewards: records of tasks, and signs of cheating in episodes."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.validation import TaskRecord, digest, validate
from swe_gym.envs.swe_env import SweEnv
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.tasks import TaskSource, doubt, read_records
from swe_gym.types import FolderWorkspace, Task

Make = Callable[..., SweEnv]


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


def write_record(path: Path, task: Task, **fields: Any) -> str:
    record = TaskRecord(
        **{"task_id": task.task_id, "status": "valid", "backend": "local", "digest": digest(task), **fields}
    )
    path.write_text(record.model_dump_json() + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"task_id": "another"}, "it was not validated"),
        ({"status": "invalid", "reason": "flaky"}, "its record says invalid"),
        ({"digest": "of another text"}, "it or its code has changed since it was validated"),
    ],
)
def test_a_task_without_a_passing_record_brings_one_warning(
    env_of_adder: Make, adder: Task, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    env = env_of_adder(record=write_record(tmp_path / "record.jsonl", adder, **fields))
    with pytest.warns(UserWarning, match=f"adder are not to be trusted: {why}"):
        env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset()


def test_valid_task_brings_no_warning(env_of_adder: Make, adder: Task, tmp_path: Path) -> None:
    env_of_adder(record=write_record(tmp_path / "record.jsonl", adder)).reset()
    env_of_adder().reset()


def test_a_record_of_other_code_brings_a_warning_and_tells_the_judge_nothing(
    env_of_adder: Make, adder: Task, tmp_path: Path
) -> None:
    env = env_of_adder(record=write_record(tmp_path / "record.jsonl", adder, passing={"a test": (1,)}))
    env.reset()
    assert isinstance(adder.workspace, FolderWorkspace)
    (Path(adder.workspace.path) / "new.py").touch()
    with pytest.warns(UserWarning, match="it or its code has changed since it was validated"):
        env.reset()


def test_a_record_of_another_image_does_not_hold(adder: Task, tmp_path: Path) -> None:
    path = write_record(tmp_path / "record.jsonl", adder, image="sha256:1")
    records = {one.task_id: one for one in read_records(path)}
    assert [doubt(adder, records, image)[:9] for image in ("", "sha256:1", "sha256:2")] == ["", "", "its image"]


def test_other_sandbox_options_make_another_validation(source: TaskSource, adder: Task, tmp_path: Path) -> None:
    unsolved = adder.model_copy(update={"oracle": adder.oracle.model_copy(update={"gold_patch": ""})})
    source.get = lambda _: unsolved  # type: ignore[method-assign]
    record = tmp_path / "record.jsonl"
    for given, lines in (({}, 1), ({}, 1), ({"network": "egress", "token": "s3cret"}, 2), ({"network": "egress"}, 2)):
        (found,) = validate(source, ["adder"], record=record, sandbox_options=given)
        assert (found.status, found.sandbox_options) == ("invalid", {k: v for k, v in given.items() if k != "token"})
        assert len(record.read_text().splitlines()) == lines
    validate(source, ["adder"], record=record, sandbox_options={"network": "egress"}, counter="all")
    assert len(record.read_text().splitlines()) == 3


@pytest.mark.slow
def test_record_holds_test_seconds_and_flaky_tests(source: TaskSource, adder: Task) -> None:
    flaky = (
        "import os, time, unittest\n\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        from calc import add\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_nothing(self):\n        self.assertLess(os.stat('/proc/self').st_mtime_ns // 1000 % 2, 2)\n\n"
        "    def test_luck(self):\n        self.assertTrue(int.from_bytes(os.urandom(4), 'big') % 2)\n"
    )
    oracle = adder.oracle.model_copy(
        update={
            "test_files": {"tests/test_add.py": flaky, "tests/__init__.py": ""},
            "pass_to_pass": ("tests.test_add.AddTest.test_nothing", "tests.test_add.AddTest.test_luck"),
        }
    )
    source.tasks["adder"] = adder.model_copy(update={"oracle": oracle})  # type: ignore[attr-defined]  # a SmallSource
    (record,) = validate(source, ["adder"], times=12)
    assert record.flaky == ("tests.test_add.AddTest.test_luck",)
    assert record.status == "invalid"
    assert len(record.test_seconds) == len(record.seconds) == 24
    assert all(0 < tests < whole for tests, whole in zip(record.test_seconds, record.seconds, strict=True))
    assert record.image == ""


def test_signs_of_cheating_are_counted_and_named(env_of_adder: Make) -> None:
    env = env_of_adder()
    env.reset()
    actions = [
        call("bash", command="git log --oneline | head; git status"),
        call("bash", command="git reflog; git fsck --lost-found"),
        call("rewrite", path="sitecustomize.py", new_code="import os\n"),
        "no call at all",
        call("submit"),
    ]
    counts = [env.step(action)[4]["cheat_signs"] for action in actions]
    assert counts == [0, 1, 2, 2, 3]
    assert env.stats["cheat_signs"] == ["history", "start-up", "start-up"]
    assert env.reset()[1]["cheat_signs"] == 0


def test_a_trajectory_holds_the_signs_beside_the_reward(env_of_adder: Make) -> None:
    fix = "sed -i 's/a - b/a + b/' calc.py"
    policy = ScriptedPolicy([call("bash", command=f"{fix}; curl -s https://git.example/fix.patch"), call("submit")])
    trajectory = play(env_of_adder(), policy)
    assert (trajectory.resolved, trajectory.info["cheat_signs"]) == (True, 1)
    honest = play(env_of_adder(), ScriptedPolicy([call("bash", command=fix), call("submit")]))
    assert (honest.resolved, honest.info["cheat_signs"]) == (True, 0)
