"""Who plays: the protocol that the loop talks to. The policies that ship stand in `policies`."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import gymnasium

from ..trajectories.trajectory import PolicyInfo, Segment, Usage


class Policy(Protocol):
    """Something that turns observations into actions.

    `play` calls `reset` once and then `act` with every observation, the one of `reset` first. A policy that needs
    more than the text (the tools, say) takes it in its constructor.

    Where `act` raises `PolicyError`, no action came and nobody is to blame but the policy's server: the episode has
    no reward. A policy that keeps account of what it used is a `ReportingPolicy` too.
    """

    def reset(self, info: dict[str, Any]) -> None:
        """An episode begins: forget the last one. `info` is that of the environment's `reset`."""
        ...

    def act(self, observation: str) -> str:
        """The next action."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What a policy tells of itself after an action.

    Attributes:
        policy: Who it is.
        usage: What the last `act` used, requests that were tried again included as far as the server told.
        messages: The conversation as it stands, the last answer included, in the form of OpenAI's chat API.
        segments: The tokens of the episode, where the policy keeps them.
    """

    policy: PolicyInfo = dataclasses.field(default_factory=PolicyInfo)
    usage: Usage = dataclasses.field(default_factory=Usage)
    messages: tuple[dict[str, Any], ...] = ()
    segments: tuple[Segment, ...] = ()


@runtime_checkable
class ReportingPolicy(Protocol):
    """A policy that can say what it used. The loop asks after each `act`, also after one that raised."""

    def report(self) -> PolicyReport:
        """What it used for the last action, and the conversation so far."""
        ...


class PolicyFactory(Protocol):
    """Makes the policy of one episode, from any thread: cheap, as what is expensive is shared.

    `make_policies` gives one by name.
    """

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> Policy:
        """A policy for one episode of `env`.

        Args:
            env: Whose tools it uses.
            seed: Of its randomness, so that attempts at one task differ and each can be played again.
        """
        ...

    def close(self) -> None:
        """Give back what is shared. Policies that wait for it raise `PolicyError` within a second."""
        ...
