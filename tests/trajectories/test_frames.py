"""Data frames of runs."""

from pathlib import Path

import pytest
from runs_on_disk import failed, trajectory, write_run

from swe_gym.errors import UsageError
from swe_gym.trajectories import frame
from swe_gym.trajectories.trajectory import Usage

pytest.importorskip("pandas")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    unpriced = trajectory("b-2", turns=3, usage=Usage(prompt_tokens=5, calls=1), started="")
    return write_run(tmp_path / "run", trajectory(resolved=True), unpriced, failed("c-3"))


def test_a_row_per_episode(run: Path) -> None:
    episodes = frame(run)
    assert list(episodes.columns[:5]) == ["run", "task_id", "attempt", "reward_valid", "reward"]
    assert episodes[["run", "task_id", "turns", "total_seconds"]].values.tolist() == [
        ["run", "a-1", 2, 7.0],
        ["run", "b-2", 3, 8.5],
    ]
    assert episodes.resolved.mean() == 0.5
    assert episodes.cost.isna().tolist() == [False, True]
    assert str(episodes.started.dtype).endswith("UTC]")
    assert episodes.started.isna().tolist() == [False, True]
    assert frame(run, failed=True).reward_valid.tolist() == [True, True, False]
    assert frame(run / "trajectories.jsonl").drop(columns="run").equals(episodes.drop(columns="run"))


def test_a_row_per_turn(run: Path) -> None:
    turns = frame(run, per="turn")
    assert turns[["task_id", "turn", "tool", "observation", "policy_seconds"]].values.tolist()[1:3] == [
        ["a-1", 2, "bash", "observation 2", 1.0],
        ["b-2", 1, "bash", "observation 1", 1.0],
    ]
    assert turns.parent.tolist()[1:4] == [1, 0, 1]
    assert turns.groupby("task_id").cost.sum().to_dict() == {"a-1": 0.02, "b-2": 0.03}
    assert len(frame(run, "turn", failed=True)) == len(turns) + 2


def test_a_frame_of_nothing(tmp_path: Path) -> None:
    empty = frame(write_run(tmp_path / "run"))
    assert (len(empty), "resolved" in empty, "run" in empty) == (0, True, True)
    assert len(frame(tmp_path / "run", "turn")) == 0
    with pytest.raises(UsageError, match="neither a run folder nor"):
        frame(tmp_path / "run" / "nothing")
    with pytest.raises(UsageError, match="must be 'episode' or 'turn'"):
        frame(tmp_path / "run", "step")
