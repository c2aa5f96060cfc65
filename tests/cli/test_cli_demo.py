from pathlib import Path

import pytest

from swe_gym.trajectories.trajectory import Trajectory


def test_the_demo_plays_each_task_twice_and_reports(cli, tmp_path: Path) -> None:
    result = cli("demo", "--match", "l*")
    assert (result.status, result.err) == (0, "")
    lines = [line.rstrip() for line in result.out.splitlines()]
    assert lines[0].split() == ["task", "level", "the", "issue", "look", "around", "gold", "patch", "hidden", "tests"]
    assert lines[1].startswith("larder-overwrite-evicts ")
    assert lines[1].endswith("reward 0     reward 1    17/17")
    assert "4 of 4 episodes in" in lines[3]
    assert "gold = 1 on 2 of 2 tasks, looking around = 0 on 2." in lines
    assert "Trajectories: runs/demo/trajectories.jsonl" in lines
    played = list(Trajectory.read(tmp_path / "runs/demo/trajectories.jsonl"))
    assert {(one.verdict, one.failure) for one in played} == {(None, "")}
    assert sorted((one.task_id, one.env_id, one.reward) for one in played) == [
        (task_id, "SWE/Toy-v0", reward)
        for task_id in ("larder-overwrite-evicts", "ledgerline-failed-batch")
        for reward in (0.0, 1.0)
    ]


def test_a_second_demo_replaces_the_trajectories_of_the_first(cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli("demo", "-m", "larder*", "-o", "new/folder").status == 0
    assert len(list(Trajectory.read(tmp_path / "new/folder/demo/trajectories.jsonl"))) == 2


def test_sandbox_options_are_applied(cli) -> None:
    result = cli("demo", "-m", "larder*", "--sandbox-option", 'options={"tier": "process"}')
    assert result.status == 0
    assert "isolation process, network open" in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"files": {"a": ""}, "faults": [{"at": "start", "error": "SandboxStartError"}]}', "failed: "),
        ('{"files": {"a": ""}, "faults": [{"at": "exec", "error": "SandboxLost"}]}', "infra failure"),
    ],
    ids=["start", "exec"],
)
def test_a_sandbox_failure_is_reported_once_and_gives_no_reward(cli, options: str, message: str) -> None:
    result = cli("demo", "-m", "l*", "--backend", "fake", "--sandbox-option", f"options={options}")
    assert result.status == 1
    assert message in result.out
    assert "(larder-overwrite-evicts, ledgerline-failed-batch)" in result.out
    assert "4 of 4 episodes did not get the expected reward" in result.out
    assert "reward" not in result.out.partition("failed: ")[0]
