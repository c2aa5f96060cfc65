"""The agents of a rollout: players that ask a model on a server, and a start of the agent before the run."""

from __future__ import annotations

import contextlib
import threading
import time

import gymnasium

from ..envs import SweEnv
from ..errors import SandboxError, UsageError
from ..rollout.policies import LLMPolicies, PolicyFactory
from ..sandboxes import Connection
from ..trajectories import ModelServer, Prices
from ..types import JsonMapping
from .agents import make_agent
from .agents.base import Assignment
from .kits import PLACE
from .model_server import ServerSampler
from .play import HOME, SHOWN, STOP_SECONDS, AgentPlayer, how_it_ended, mounts_of, start_agent


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


START_SECONDS = 60.0
"""Seconds in which an agent must end if it cannot start. A slower one is taken to work."""


def rehearse(env: SweEnv, name: str, options: JsonMapping, task_id: str) -> None:
    """Start an agent on a task until it connects to its model.

    Args:
        env: A new environment. The caller closes it.
        name: Name of the agent.
        options: Options of the agent.
        task_id: The task.

    Raises:
        UsageError: It ended before.
        SandboxError: The sandbox did not start, or was lost.
    """
    agent = make_agent(name, options)
    env.use_mounts(mounts_of(agent))
    issue, _ = env.reset(options={"task_id": task_id})
    sandbox, connected = env.sandbox, threading.Event()

    def serve(connection: Connection) -> None:
        connected.set()
        connection.close()
        with contextlib.suppress(SandboxError):  # the agent's own command reports it
            sandbox.end_processes(commands=True, timeout=STOP_SECONDS)

    forward = sandbox.forward(0, serve)
    try:
        url = f"http://127.0.0.1:{forward.port}"
        launch = agent.launch(Assignment(issue, "model", url, PLACE, HOME))
        result = start_agent(sandbox, launch, time.monotonic() + START_SECONDS)
    finally:
        forward.close()
    if not connected.is_set() and not result.timed_out:
        text = f"the agent {name!r} {how_it_ended(result)} before it asked its model. Correct its options"
        said = result.text[-SHOWN:].strip()
        raise UsageError(f"{text}: agent.NAME=VALUE. Its output:\n{said}" if said else f"{text}: agent.NAME=VALUE")
