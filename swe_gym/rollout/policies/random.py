"""A policy of random, valid actions."""

import copy

import gymnasium

from ...spaces import Info
from .calls import render, submit_call, tool_env


class RandomPolicy:
    """A policy that makes harmless, valid calls at random (`env.action_space.sample()`) and submits.

    The same seed gives the same actions in every episode.

    Args:
        env: The environment whose tools it calls.
        turns: Number of calls before it submits.
        seed: Seed of the draws; None differs from run to run.
    """

    def __init__(self, env: gymnasium.Env[str, str], turns: int = 10, seed: int | None = None) -> None:
        own = tool_env(env)
        self._space = copy.deepcopy(own.action_space)
        self._submit = render(own, submit_call(own))
        self._turns = turns
        self._seed = seed
        self._left = turns

    def reset(self, info: Info) -> None:  # noqa: ARG002  every task gets the same
        """Start over."""
        self._space.seed(self._seed)
        self._left = self._turns

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Return a random call, and at the end `submit`."""
        if not self._left:
            return self._submit
        self._left -= 1
        return self._space.sample()
