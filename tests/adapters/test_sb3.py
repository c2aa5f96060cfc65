"""Stable-Baselines3 on real sandboxes: the VecEnv interface, and learning."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from swe_gym.adapters.sb3 import SB3VecEnv
from swe_gym.errors import SandboxStartError, SweGymError, UsageError
from swe_gym.vector import SweVectorEnv
from swe_gym.wrappers import HashedText, ToolMenu

MENU = [
    {"name": "bash", "arguments": {"command": "true"}},
    {"name": "submit", "arguments": {}, "once": True},
]


def make_env() -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("SWE/Micro-v0", difficulty=1, max_turns=3, disable_env_checker=True)
    return HashedText(ToolMenu(env, MENU), size=32)


@pytest.fixture
def envs() -> Iterator[SB3VecEnv]:
    made = SB3VecEnv(SweVectorEnv([make_env] * 2, autoreset_mode="SameStep"))
    yield made
    made.close()


def test_an_ended_episode_has_a_terminal_observation_and_a_reset(envs: SB3VecEnv) -> None:
    envs.seed(3)
    first = envs.reset()
    assert first.shape == (2, 32)
    observations, rewards, dones, infos = envs.step(np.array([0, 1]))
    assert dones.tolist() == [False, True]
    assert rewards.tolist() == [0.0, 0.0]
    assert "terminal_observation" not in infos[0]
    assert infos[1]["terminal_observation"].shape == (32,)
    assert infos[1]["outcome"] == "submitted"
    assert infos[1]["TimeLimit.truncated"] is False
    assert not np.array_equal(observations[1], infos[1]["terminal_observation"])


def test_a_graded_budget_is_not_a_truncation(envs: SB3VecEnv) -> None:
    envs.reset()
    for _ in range(3):
        *_, dones, infos = envs.step(np.array([0, 0]))
    assert dones.all()
    assert [info["limit"] for info in infos] == ["turns", "turns"]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False]


def test_an_external_limit_is_a_truncation() -> None:
    def cut() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(make_env(), 1)

    envs = SB3VecEnv(SweVectorEnv([cut], autoreset_mode="SameStep"))
    try:
        envs.reset()
        *_, dones, infos = envs.step(np.array([0]))
        assert dones.tolist() == [True]
        assert infos[0]["TimeLimit.truncated"] is True
    finally:
        envs.close()


class Unlucky(gymnasium.Env[Any, Any]):
    """An environment whose resets fail at times and whose episodes have one step."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, failing: set[int]) -> None:
        self.resets, self.failing = 0, failing

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets in self.failing:
            raise SandboxStartError("no room", reason="capacity", retryable=True)
        return np.array([self.resets], np.float32), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([9], np.float32), 1.0, True, False, {"reward_valid": True}


def unlucky(*failing: set[int]) -> SB3VecEnv:
    made = [partial(Unlucky, which) for which in failing]
    return SB3VecEnv(SweVectorEnv(made, autoreset_mode="SameStep"))


def test_a_failed_reset_is_retried() -> None:
    envs = unlucky({1, 3, 4}, set())
    try:
        assert envs.reset().tolist() == [[2], [1]]
        observations, rewards, dones, infos = envs.step(np.array([0, 0]))
        assert observations.tolist() == [[5], [2]]
        assert rewards.tolist() == [1, 1]
        assert dones.tolist() == [True, True]
        assert [info["terminal_observation"].tolist() for info in infos] == [[9], [9]]
        assert [info["TimeLimit.truncated"] for info in infos] == [False, False]
        assert envs.step(np.array([0, 0]))[1].tolist() == [1, 1]
    finally:
        envs.close()


def test_three_failed_resets_are_an_error() -> None:
    envs = unlucky(set(), {2, 3, 4})
    try:
        envs.reset()
        with pytest.raises(SweGymError, match=r"3 times in a row.*SandboxStartError \(capacity\)"):
            envs.step(np.array([0, 0]))
    finally:
        envs.close()


def test_methods_and_attributes_reach_the_slots(envs: SB3VecEnv) -> None:
    envs.reset()
    envs.step(np.array([0, 0]))
    masks = envs.env_method("action_masks")
    assert [mask.tolist() for mask in masks] == [[True, True], [True, True]]
    assert len(envs.env_method("action_masks", indices=[1])) == 1
    assert envs.env_is_wrapped(ToolMenu) == [True, True]
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=0) == [False]
    assert len(envs.get_attr("action_space")) == 2


def test_a_method_is_called_on_the_given_slots_only() -> None:
    envs = unlucky(set(), set(), set())
    try:
        envs.reset()
        envs.env_method("reset", indices=[1, 2])
        envs.env_method("reset", indices=2)
        assert envs.get_attr("resets") == [1, 2, 3]
    finally:
        envs.close()


def test_unsupported_spaces_and_modes_are_refused() -> None:
    with SweVectorEnv([make_env]) as next_step, pytest.raises(UsageError, match="SameStep"):
        SB3VecEnv(next_step)
    texts = [lambda: gymnasium.make("SWE/Micro-v0")]
    with SweVectorEnv(texts, autoreset_mode="SameStep") as text, pytest.raises(UsageError, match="HashedText"):
        SB3VecEnv(text)
