"""Policies that ignore observations: a script, and one that only submits."""

from collections.abc import Iterable

import gymnasium

from ...errors import UsageError
from ...spaces import Info
from .calls import render, submit_call, tool_env


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

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Submit."""
        return self._action
