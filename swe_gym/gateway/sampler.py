"""`Sampler`: the protocol of what answers the calls of agents."""

from __future__ import annotations

from typing import Protocol

from ..trajectories.trajectory import PolicyInfo
from .calls import Answer, Call
from .history import CallPlace


class Sampler(Protocol):
    """Answers calls. Called from many threads at once.

    Attributes:
        model: Name of the model.
        settings: Names of the settings of calls that have an effect.
        info: Description for the records.
    """

    model: str
    settings: frozenset[str]
    info: PolicyInfo

    def sample(self, call: Call, place: CallPlace, *, seed: int | None) -> Answer:
        """Answer a call.

        Args:
            call: The call.
            place: What it continues.
            seed: Sampling seed.

        Raises:
            Refusal: The agent asks for something that is not supported.
            PolicyError: The model did not answer; its reason is "context" if the conversation is too long.
        """
        ...

    def count(self, call: Call) -> int:
        """Return the tokens of the prompt, perhaps estimated."""
        ...
