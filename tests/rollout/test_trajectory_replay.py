"""Replays of recorded episodes."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from swe_gym.envs.swe_env import SweEnv
from swe_gym.errors import UsageError
from swe_gym.rollout.episode import play, replay_trajectory
from swe_gym.rollout.policies.baseline import ScriptedPolicy
from swe_gym.rollout.progress import RolloutBudget
from swe_gym.tasks.file import write_tasks
from swe_gym.trajectories.formats.rows import to_predictions
from swe_gym.trajectories.trajectory import CUT, MAX_PATCH, MAX_TEXT, MAX_TURNS, SHORT_TEXT, Trajectory
from swe_gym.types import Task


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.fixture
def recorded(adder: Task, tmp_path: Path) -> Trajectory:
    path = tmp_path / "tasks.jsonl"
    write_tasks([adder], path)
    env = SweEnv("file", {"path": str(path)})
    actions = [call("bash", command="cat calc.py; echo é"), "hm", call("bash", command="sed -i s/-/+/ calc.py")]
    trajectory = play(env, ScriptedPolicy([*actions, call("submit")]), seed=3)
    env.close()
    return Trajectory.from_lines([json.loads(line) for line in trajectory.to_lines()])


def changed(one: Trajectory, turn: int, **fields: Any) -> Trajectory:
    turns = list(one.turns)
    turns[turn] = turns[turn].model_copy(update=fields)
    return one.model_copy(update={"turns": tuple(turns)})


def test_a_replay_is_the_record_byte_for_byte(recorded: Trajectory) -> None:
    assert recorded.resolved
    assert replay_trajectory(recorded) is None


def test_the_first_byte_that_differs_is_named(recorded: Trajectory) -> None:
    text = recorded.turns[0].observation
    place = text.index("é") + 1
    difference = replay_trajectory(changed(recorded, 0, observation=text[:place] + "?" + text[place + 1 :]))
    assert difference is not None
    assert (difference.turn, difference.what, difference.byte) == (1, "observation", len(text[:place].encode()))
    assert difference.recorded.endswith("?" + text[place + 1 :])
    assert "turn 1: observation differs at byte" in str(difference)
    first = replay_trajectory(recorded.model_copy(update={"observation": ""}))
    assert first is not None
    assert str(first).startswith("reset: observation differs at byte 0")


def test_rewards_and_info_are_compared_too(recorded: Trajectory) -> None:
    reward = replay_trajectory(changed(recorded, 3, reward=0.0))
    assert reward is not None
    assert (reward.turn, reward.what, reward.recorded, reward.replayed) == (4, "reward", "0.0", "1.0")
    info = replay_trajectory(changed(recorded, 1, info={**recorded.turns[1].info, "invalid_actions": 0}))
    assert info is not None
    assert (info.turn, info.what) == (2, "info.invalid_actions")


def play_with(recorded: Trajectory, *actions: str) -> Trajectory:
    with contextlib.closing(SweEnv(**{**recorded.env, "max_observation": 1_000_000})) as env:
        return play(env, ScriptedPolicy([*actions, call("submit")]), seed=3)


def test_a_long_observation_is_cut_in_the_record_and_compared_whole(recorded: Trajectory) -> None:
    one = play_with(recorded, call("bash", command="seq -f é%.0f 1 100000"))
    observation = one.turns[0].observation
    assert observation.startswith("é1\n")
    assert CUT.search(observation)
    assert len(observation.encode()) < MAX_TEXT + 200
    assert replay_trajectory(one) is None
    digest = hashlib.sha256(b"another").hexdigest()
    end = CUT.sub(f"\n[... cut: the whole text has 7 bytes, SHA-256 {digest}]\n", observation)
    assert replay_trajectory(changed(one, 0, observation=end)) is not None


def test_an_action_that_was_cut_cannot_be_replayed(recorded: Trajectory) -> None:
    one = play_with(recorded, call("bash", command="true " + "x" * MAX_TEXT))
    assert sum(map(len, one.to_lines())) < 4 * MAX_TEXT
    with pytest.raises(UsageError, match="cannot be replayed: the action of turn 1"):
        replay_trajectory(one)


def test_the_texts_of_an_episode_are_bounded_together(recorded: Trajectory) -> None:
    one = play_with(recorded, *[call("bash", command="true " + "x" * 200_000)] * 30)
    assert sum(map(len, one.to_lines())) < MAX_TURNS + (1 << 20)
    assert len(one.turns[-2].action) < 2 * SHORT_TEXT


def test_a_patch_is_cut_in_the_record(recorded: Trajectory) -> None:
    one = play_with(recorded, call("bash", command="seq 250000 > big.txt"))
    assert one.patch_bytes > 1_500_000
    assert len(one.patch) < MAX_PATCH + 200
    assert CUT.search(one.patch)
    assert replay_trajectory(one) is None, "the actions are whole"
    assert [row["model_patch"] for row in to_predictions([one, recorded.model_copy(update={"task_id": "b"})])] == [
        "",
        recorded.patch,
    ]


def test_ignored_text_is_not_compared(recorded: Trajectory) -> None:
    timed = changed(recorded, 0, observation=recorded.turns[0].observation + "in 0.13s")
    assert replay_trajectory(timed) is not None
    assert replay_trajectory(timed, ignore=[r"in \d+\.\d+s"]) is None
    with pytest.raises(UsageError, match="invalid regular expression"):
        replay_trajectory(timed, ignore=["("])


def test_a_limit_of_the_episode_loop_is_replayed(recorded: Trajectory) -> None:
    env = SweEnv(**recorded.env)
    cut = play(env, ScriptedPolicy([turn.action for turn in recorded.turns[:3]]), budget=RolloutBudget(seconds=1e-6))
    env.close()
    assert (cut.reason, len(cut.turns), cut.reward_valid) == ("time", 1, True)
    assert replay_trajectory(cut) is None


def test_an_imported_trajectory_cannot_be_replayed(recorded: Trajectory) -> None:
    with pytest.raises(UsageError, match="its record has no environment"):
        replay_trajectory(recorded.model_copy(update={"env": {}}))
