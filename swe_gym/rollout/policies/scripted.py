"""Policies without a model: fixed actions, and random ones."""

import copy
from collections.abc import Iterable, Sequence

import gymnasium

from ...errors import UsageError
from ...spaces import Info
from .base import render, submit_call, tool_env


class ScriptedPolicy:
    """A policy that plays a list of actions, and repeats the last one after the end.

    Args:
        actions: The actions, at least one.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        if isinstance(actions, str):  # else its letters would be the actions
            raise UsageError("actions must be a list of strings, not one string")
        self._actions = tuple(actions)
        if not self._actions:
            raise UsageError("actions must not be empty")
        self._next = 0

    def reset(self, info: Info) -> None:  # noqa: ARG002  a script is the same for every task
        """Start from the first action."""
        self._next = 0

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: the first action follows the earlier turns."""

    def act(self, observation: str) -> str:  # noqa: ARG002  a script does not look
        """Return the next action."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return action


class EmptyPolicy:
    """A policy that submits at once.

    Args:
        env: The environment whose tools it calls.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        own = tool_env(env)
        self._action = render(own, submit_call(own))

    def reset(self, info: Info) -> None:
        """Do nothing: there is no state."""

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: it submits what others did."""

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Submit."""
        return self._action


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

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: its calls follow the earlier turns."""

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Return a random call, and at the end `submit`."""
        if not self._left:
            return self._submit
        self._left -= 1
        return self._space.sample()
