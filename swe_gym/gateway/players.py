"""The players of a rollout: agents that ask a model on a server."""

from __future__ import annotations

import gymnasium

from ..errors import UsageError
from ..rollout.policies import LLMPolicies
from ..rollout.policy import PolicyFactory
from ..trajectories.trajectory import ModelServer, Prices
from ..types import JsonMapping
from .agents import make_agent
from .passthrough import ServerSampler
from .play import AgentPlayer, mounts_of


class AgentPlayers:
    """The factory of players whose agent asks a model on a server.

    Args:
        name: Name of the agent.
        options: Options of the agent.
        policies: The policy `llm`, which has the server, the model, sampling settings and prices.

    Raises:
        UsageError: The agent or an option is invalid, or the policy is another one.
        SandboxStartError: The kit cannot be built.
    """

    def __init__(self, name: str, options: JsonMapping, policies: PolicyFactory) -> None:
        if not isinstance(policies, LLMPolicies):
            raise UsageError("an agent asks a model: use the policy 'llm' with it, and set its model")
        self._name, self._agent = name, make_agent(name, options)
        self.mounts = mounts_of(self._agent)
        self._policies, self._sampler = policies, ServerSampler(policies)

    def __call__(self, env: gymnasium.Env[str, str], *, seed: int | None = None) -> AgentPlayer:  # noqa: ARG002
        """Return the player of one episode."""
        own = self._policies.seed
        seed = None if own is None or seed is None else (own + seed) % (1 << 31)
        return AgentPlayer(self._name, self._agent, self._sampler, seed=seed)

    @property
    def price(self) -> Prices | None:
        """Prices that the cost is counted with."""
        return self._policies.price

    def ask_server(self) -> ModelServer:
        """Return the model's server."""
        return self._policies.ask_server()

    def close(self) -> None:
        """Close the connection: running agents lose their model, and their episodes end without a reward."""
        self._sampler.close()
        self._policies.close()
