"""The expert policy on generated tasks, with all tools and with the shell only."""

from contextlib import closing
from typing import Any

import gymnasium
import pytest

import swe_gym  # noqa: F401  the ids
from swe_gym.rollout.episode import play
from swe_gym.rollout.policies import make_policies


@pytest.mark.parametrize(
    "options", [{"difficulty": 4}, {"difficulty": 2, "tools": ["bash"], "max_turns": 1}], ids=["all tools", "one turn"]
)
def test_the_expert_resolves_its_tasks(options: dict[str, Any]) -> None:
    env = gymnasium.make("SWE/Micro-v0", disable_env_checker=True, **options)
    with closing(env), closing(make_policies("expert")) as policies:
        assert play(env, policies(env), seed=3).resolved
