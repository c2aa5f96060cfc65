"""`HashedText`: texts as vectors of a fixed size, for algorithms that cannot read text."""

from __future__ import annotations

import itertools
import re
import zlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Text
from gymnasium.utils import RecordConstructorArgs

from ..errors import UsageError

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
