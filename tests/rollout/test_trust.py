"""Trust in rewards: records of tasks, and signs of cheating in episodes."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.validation import CheckSettings, TaskRecord, check_unchanged, digest, identify, validate
from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import GradingError
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.tasks import TaskSource, doubt, read_records
from swe_gym.types import FolderWorkspace, ImageBuild, SandboxNeeds, Task

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


def test_an_image_counts_by_its_digest_where_another_one_is_a_sign_of_change(adder: Task, tmp_path: Path) -> None:
    path = write_record(tmp_path / "record.jsonl", adder, image="sha256:1")
    records = {one.task_id: one for one in read_records(path)}
    assert doubt(adder, records) == ""
    named = adder.model_copy(update={"image": "a/b", "workspace": None})
    built = named.model_copy(update={"needs": SandboxNeeds(build=ImageBuild(context="/c"))})
    for task, backend, image, why in (
        (named, "local", "sha256:2", "its image a/b"),
        (named, "local", "sha256:1", ""),
        (named, "local", "", ""),
        (named, "docker", "sha256:2", ""),
        (built, "local", "sha256:2", ""),
        (named.in_image("swe-gym/task-a:0123456789abcdef"), "local", "sha256:2", ""),
        (adder.model_copy(update={"image": "a/b"}), "local", "sha256:2", ""),
    ):
        assert records["adder"].doubt_image(task, backend, image)[:13] == why


def test_a_record_vouches_only_for_the_code_that_ran(source: TaskSource, adder: Task, tmp_path: Path) -> None:
    before = identify(adder)
    check_unchanged(adder, before)
    (tmp_path / "adder" / "new.py").touch()
    with pytest.raises(GradingError, match="its code changed while it ran"):
        check_unchanged(adder, before)
    shutil.rmtree(tmp_path / "adder")
    (found,) = validate(source, ["adder"], times=1)
    assert (found.status, found.digest) == ("error", "")
    assert "the code of task adder cannot be identified" in found.reason


def test_a_record_without_sandbox_options_is_of_unknown_ones(source: TaskSource, adder: Task, tmp_path: Path) -> None:
    write_record(tmp_path / "record.jsonl", adder, gold=(True,), empty=(False,))
    (old,) = read_records(tmp_path / "record.jsonl")
    assert not CheckSettings(source, "local", {}, 1, "", "few").still_holds(old)
    known = old.model_copy(update={"sandbox_options": {}, "counter": "few"})
    assert CheckSettings(source, "local", {}, 1, "", "few").still_holds(known)


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
