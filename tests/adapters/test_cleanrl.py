"""The single-file PPO: termination, truncation and bootstrapping."""

import runpy
from pathlib import Path

import gymnasium
import pytest

torch = pytest.importorskip("torch")

import swe_gym  # noqa: E402, F401  registers the environments; torch is an extra
from swe_gym.vector import SweVectorEnv  # noqa: E402

PPO = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "classic_rl" / "cleanrl_ppo.py"))
LOOK = '{"name": "bash", "arguments": {"command": "true"}}'
SUBMIT = '{"name": "submit", "arguments": {}}'


def test_a_graded_budget_terminates_and_a_time_limit_truncates() -> None:
    def submits() -> gymnasium.Env:
        return gymnasium.make("SWE/Toy-v0")

    def judged() -> gymnasium.Env:
        return gymnasium.make("SWE/Toy-v0", max_turns=1)

    def cut() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(gymnasium.make("SWE/Toy-v0"), 1)

    with SweVectorEnv([submits, judged, cut, submits], observation_mode="different") as envs:
        envs.reset(seed=0)
        _, _, terminated, truncated, infos = envs.step((SUBMIT, LOOK, LOOK, LOOK))
    assert (terminated | truncated).tolist() == [True, True, True, False]
    assert PPO["is_final"](terminated, truncated, infos).tolist() == [True, True, False, False]
    assert PPO["is_final"](terminated, truncated, {}).tolist() == [True, False, False, False]


def test_only_truncated_states_are_bootstrapped() -> None:
    rewards, values = torch.ones(1, 2), torch.zeros(1, 2)
    following, final, ended = torch.full((1, 2), 5.0), torch.tensor([[True, False]]), torch.ones(1, 2, dtype=torch.bool)
    found = PPO["advantages_of"](rewards, values, following, final, ended, 1.0)
    assert found.tolist() == [[1.0, 6.0]]
