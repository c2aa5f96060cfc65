"""Executor "ray": one actor on each node of a Ray cluster plays episodes."""

import contextlib
import math
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...errors import UsageError
from ...ray_cluster import CALL_TIMEOUT, Setup, connect, losses
from ..pool import NodeLost
from .host import Events, Host, Message
from .remote import PATIENCE, Node, RemoteExecutor

START_TIMEOUT = 120.0
"""Seconds in which the actor of a node must start."""

PER_CORE = 4
"""Episodes for each core: most of the time they wait for a model or for a process."""

MEMORY_MB = 1024
"""Memory in MiB that an episode may use, if the plan sets none."""


class RayHost(Host):
    """The actor on a node.

    Args:
        lease: Seconds without a call of the driver after which the actor closes its sandboxes and ends.
    """

    def __init__(self, lease: float) -> None:
        super().__init__(lease, on_cut=lambda: os._exit(1))

    def prepare(self, setup: Setup) -> None:
        """Set the process up as the driver's.

        Raises:
            UsageError: Other code of swe_gym is installed here.
        """
        setup.apply()


def ray_executor(
    address: str = "",
    *,
    per_node: int | None = None,
    per_core: float = PER_CORE,
    memory_mb: int = MEMORY_MB,
    lease: float = 30.0,
    patience: float = PATIENCE,
    variables: Sequence[str] = (),
) -> RemoteExecutor:
    """Return an executor on a Ray cluster.

    Args:
        address: Address of the cluster. If empty, RAY_ADDRESS, else the cluster on this machine; if there is none, Ray
            starts one.
        per_node: Episodes on one node. None: as many as its cores and its memory allow; one core is left to Ray.
        per_core: Episodes for each core.
        memory_mb: Memory of an episode in MiB.
        lease: Seconds without contact after which a node is lost, and after which it closes its sandboxes itself.
        patience: Seconds without any node after which the run ends with an error.
        variables: Names of further environment variables that nodes get from this process.

    Raises:
        UsageError: An argument is invalid, or the cluster cannot be reached.
    """
    if lease <= 0 or per_core <= 0 or memory_mb < 1 or (per_node is not None and per_node < 1):
        raise UsageError(f"lease, per_core, memory_mb and per_node must be positive: {lease=:g}, {per_core=:g}")
    return RemoteExecutor(RayCluster(address, Room(per_node, per_core, memory_mb), lease, variables), patience=patience)


class Room(NamedTuple):
    """Decides how many episodes a node may run at once.

    Attributes:
        per_node: Fixed number, or None.
        per_core: Episodes for each core, except the one that is left to Ray.
        memory_mb: Memory of an episode in MiB.
    """

    per_node: int | None
    per_core: float
    memory_mb: int

    def of(self, resources: Mapping[str, float]) -> int:
        """Return the number for a node with these resources: 0 without cores, as head nodes often are."""
        cores = resources.get("CPU", 0.0)
        if cores < 1 or self.per_node:
            return self.per_node or 0 if cores else 0
        by_memory = resources.get("memory", math.inf) / (self.memory_mb << 20)
        return max(1, int(min(max(1.0, cores - 1) * self.per_core, by_memory)))


class RayCluster:
    """The nodes of a Ray cluster.

    Args:
        address: As in `ray_executor`.
        room: Decides how many episodes a node may run.
        lease: As in `ray_executor`.
        variables: As in `ray_executor`.

    Raises:
        UsageError: The cluster cannot be reached.
    """

    def __init__(self, address: str, room: Room, lease: float, variables: Sequence[str]) -> None:
        self._room, self._lease = room, lease
        self._setup = Setup.of_this_process(variables)
        self._resources: dict[str, dict[str, float]] = {}
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 4, "enable_task_events": False}
        self._kind = ray.remote(num_cpus=0, **how)(RayHost)
        self._ours = connect(address)

    def nodes(self) -> Collection[str]:
        """Return the ids of the nodes that are alive and have cores.

        Raises:
            NodeLost: Ray does not answer.
        """
        with losses(_lost):
            found = {one["NodeID"]: one["Resources"] for one in ray.nodes() if one["Alive"]}
        self._resources = {name: resources for name, resources in found.items() if self._room.of(resources)}
        return self._resources.keys()

    def open(self, node: str) -> Node:
        """Start an actor on a node.

        Raises:
            NodeLost: It did not start.
            UsageError: The node has other code of swe_gym.
        """
        with losses(_lost):
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            actor = self._kind.options(scheduling_strategy=there).remote(self._lease)
            return _RayNode(actor, self._room.of(self._resources[node]), self._setup, self._lease)

    def close(self) -> None:
        """Disconnect, unless the program had connected before."""
        if self._ours:
            ray.shutdown()


class _RayNode:
    """An actor on a node."""

    def __init__(self, actor: "ray.actor.ActorHandle", room: int, setup: Setup, lease: float) -> None:
        self.room = room
        self._actor, self._lease = actor, lease
        self._sent: list[ray.ObjectRef] = []
        self._lock = threading.Lock()
        try:
            ray.get(self._actor.prepare.remote(setup), timeout=START_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def send(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self._sent.append(self._actor.send.remote(messages))

    def poll(self, seconds: float) -> Events:
        with losses(_lost):
            events: Events = ray.get(self._actor.poll.remote(seconds), timeout=seconds + self._lease)
            with self._lock:
                sent = self._sent
                done, self._sent = ray.wait(sent, num_returns=len(sent), timeout=0) if sent else ([], [])
            ray.get(done, timeout=CALL_TIMEOUT)
            return events

    def close(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor, no_restart=True)


def _lost(message: str, kind: str) -> NodeLost:
    return NodeLost(message, reason=kind)
