"""`ChatMessages`: the whole conversation as the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Dict, Sequence, Text
from gymnasium.utils import RecordConstructorArgs

from ..errors import UsageError
from ..spaces import Info, ResetResult, StepResult, Unicode

Messages = tuple[dict[str, str], ...]


class ChatMessages(gymnasium.Wrapper[Any, str, str, str], RecordConstructorArgs):
    """Observations are the conversation so far, as the messages of a chat API.

    Each is a tuple of `{"role": ..., "content": ...}`: the system prompt if there is one, the issue text from "user",
    then every action from "assistant" followed by its observation.

    Args:
        env: An environment of texts, such as `SweEnv`.
        system: System prompt; None for none.
        role: Role of observations, such as "user" or "tool".

    Raises:
        UsageError: The environment's observations or actions are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], system: str | None = None, role: str = "user") -> None:
        RecordConstructorArgs.__init__(self, system=system, role=role)
        gymnasium.Wrapper.__init__(self, env)
        spaces = env.observation_space, env.action_space
        if not all(isinstance(space, Text) for space in spaces):
            raise UsageError(f"ChatMessages needs texts as observations and actions, not {spaces[0]} and {spaces[1]}")
        self._longest = max(len(system or ""), *(space.max_length for space in spaces if isinstance(space, Text)))
        self.observation_space = Sequence(Dict({"content": Unicode(self._longest), "role": Unicode(32)}))
        self._role = role
        self._system = [("system", system)] if system is not None else []
        self._said: list[tuple[str, str]] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Messages]:
        """Start a conversation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._said = [*self._system, ("user", observation)]
        return self._messages(), info

    def step(self, action: str) -> StepResult[Messages]:
        """Take a step and extend the conversation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._said += [("assistant", action[: self._longest]), (self._role, observation)]
        return self._messages(), float(reward), terminated, truncated, info

    def _messages(self) -> Messages:
        return tuple({"content": content, "role": role} for role, content in self._said)
