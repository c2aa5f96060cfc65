"""`TruncateObservation`: shorter observations."""

from __future__ import annotations

import gymnasium
from gymnasium.spaces import Text
from gymnasium.utils import RecordConstructorArgs

from ..errors import UsageError
from ..spaces import Unicode
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
