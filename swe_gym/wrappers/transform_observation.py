"""Wrappers of observations: shorter texts, the whole conversation, or vectors of a fixed size."""

from __future__ import annotations

import itertools
import re
import zlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Sequence, Text
from gymnasium.utils import RecordConstructorArgs

from ..errors import UsageError
from ..spaces import Info, ResetResult, StepResult, Unicode
from ..tools import bound


class TruncateObservation(gymnasium.ObservationWrapper[str, str, str], RecordConstructorArgs):
    """Cuts the middle out of long observations; a line in its place counts what is missing.

    It works on any environment of texts. For a `SweEnv` alone, `max_observation` does the same.

    Args:
        env: An environment whose observations are texts.
        max_length: Maximum number of characters.

    Raises:
        UsageError: `max_length` is not positive, or the observations are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], max_length: int) -> None:
        RecordConstructorArgs.__init__(self, max_length=max_length)
        gymnasium.ObservationWrapper.__init__(self, env)
        if not isinstance(env.observation_space, Text) or max_length < 1:
            raise UsageError(f"TruncateObservation needs texts and a positive max_length: {max_length=}")
        self.observation_space = Unicode(max_length)
        self._max_length = max_length

    def observation(self, observation: str) -> str:
        """Return the text, cut if it is too long."""
        return bound(observation, self._max_length)


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


Vector = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")


class HashedText(gymnasium.ObservationWrapper[Vector, Any, str], RecordConstructorArgs):
    """Observations are float32 vectors of length 1 (or 0, for an empty text) in [-1, 1].

    Every word and every pair of adjacent words adds 1 or -1 to one of `size` numbers; its CRC-32 decides the place and
    the sign. Logarithms and the unit length limit the weight of long texts. A text gives the same vector on every
    machine.

    Args:
        env: An environment whose observations are texts.
        size: Length of the vector.

    Raises:
        UsageError: `size` is not positive, or the observations are not texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, Any], size: int = 512) -> None:
        RecordConstructorArgs.__init__(self, size=size)
        gymnasium.ObservationWrapper.__init__(self, env)
        if not isinstance(env.observation_space, Text) or size < 1:
            raise UsageError(f"HashedText needs texts and a positive size: {env.observation_space}, {size=}")
        self.observation_space = Box(-1.0, 1.0, (size,), np.float32)
        self._size = size

    def observation(self, observation: str) -> Vector:
        """Return the text as a vector."""
        words = _WORD.findall(observation.lower())
        pairs = [f"{one} {other}" for one, other in itertools.pairwise(words)]
        hashes = np.array(
            [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in (*words, *pairs)], dtype=np.int64
        )
        counts = np.zeros(self._size)
        np.add.at(counts, hashes % self._size, np.where(hashes >> 31, 1.0, -1.0))
        counts = np.sign(counts) * np.log1p(np.abs(counts))
        length = np.linalg.norm(counts)
        vector: Vector = (counts / length if length else counts).astype(np.float32)
        return vector
