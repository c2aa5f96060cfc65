"""Executor "ray": one actor on each node of a Ray cluster plays episodes."""

import contextlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import ray
from ray._private.state import available_resources_per_node  # Ray has no public name for it
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...errors import UsageError
from ...remote import START_TIMEOUT, NodeLost, RayLink, Setup, check_cpus, connect, losses
from .nodes import LEASE, PATIENCE, PROGRAM, HostNode, RemoteExecutor

NUM_CPUS = 0.25
"""CPUs of an episode: most of the time it waits for a model or for a process."""

MEMORY_MB = 1024
"""Memory in MiB that an episode may use, if the plan sets none."""

MOST_ASKED = 1000
"""Episodes that a cluster is asked to grow for at once."""

ROUNDING = 1e-6
"""CPUs that a sum of fractions may lack."""


def ray_executor(
    address: str = "",
    *,
    num_cpus: float = NUM_CPUS,
    memory_mb: int = MEMORY_MB,
    per_node: int | None = None,
    lease: float = LEASE,
    patience: float = PATIENCE,
    variables: Sequence[str] = (),
) -> RemoteExecutor:
    """Return an executor on a Ray cluster. An autoscaler of the cluster sees what waiting episodes need.

    Args:
        address: Address of the cluster. If empty, RAY_ADDRESS, else the cluster on this machine; if there is none, Ray
            starts one.
        num_cpus: CPUs of an episode: its share of a node, and what an autoscaler is asked for.
        memory_mb: Memory of an episode in MiB: its share of a node. An autoscaler is not asked for it, because many
            configurations do not say how much memory a node will have.
        per_node: Episodes on one node. None: as many as its free CPUs and memory allow; one CPU is left to Ray.
        lease: Seconds without contact after which a node is lost, and after which it closes its sandboxes itself.
        patience: Seconds without any node after which the run ends with an error, and without a change of the nodes
            after which an autoscaler is asked for no more. A node that it starts must join within them.
        variables: Names of further environment variables that nodes get from this process.

    Raises:
        UsageError: An argument is invalid, or the cluster cannot be reached.
    """
    if lease <= 0 or num_cpus <= 0 or memory_mb < 1 or (per_node is not None and per_node < 1):
        raise UsageError(f"lease, num_cpus, memory_mb and per_node must be positive: {lease=:g}, {num_cpus=:g}")
    check_cpus(num_cpus)
    room = Room(per_node, num_cpus, memory_mb)
    return RemoteExecutor(RayCluster(address, room, lease, patience, variables), patience=patience, lease=lease)


class Room(NamedTuple):
    """Decides how many episodes a node may run at once.

    Attributes:
        per_node: Fixed number, or None.
        num_cpus: CPUs of an episode.
        memory_mb: Memory of an episode in MiB.
    """

    per_node: int | None
    num_cpus: float
    memory_mb: int

    def __str__(self) -> str:
        return f"{self.num_cpus:g} CPUs and {self.memory_mb:,} MiB"

    def of(self, free: Mapping[str, float]) -> int:
        """Return the number for a node with these free resources: 0 without CPUs, as head nodes often are."""
        cpus = free.get("CPU", 0.0) + ROUNDING
        if self.per_node and cpus > ROUNDING:
            return self.per_node
        by_memory = free.get("memory", math.inf) / (self.memory_mb << 20)
        whole, first = (cpus - 1) / self.num_cpus, max(1, int(1 / self.num_cpus))  # all but one CPU, one CPU's worth
        return int(min(max(whole, min(cpus / self.num_cpus, first)), by_memory))

    def held(self, free: Mapping[str, float]) -> dict[str, float]:
        """Return what the actor of a node with these free resources asks Ray for: what its episodes need.

        Without `per_node` that is every free CPU, so that Ray never counts the one that is left to it as room.
        """
        cpus, memory = free.get("CPU", 0.0), int(free.get("memory", 0.0))
        if self.per_node:
            cpus = min(cpus, self.per_node * self.num_cpus)
        cpus = math.floor(cpus) if cpus > 1 else math.floor(cpus * 10_000) / 10_000  # Ray takes no others
        return {"num_cpus": cpus, "memory": min(memory, self.of(free) * self.memory_mb << 20)}


class RayCluster:
    """The nodes of a Ray cluster.

    Args:
        address: As in `ray_executor`.
        room: Decides how many episodes a node may run.
        lease: As in `ray_executor`.
        patience: As in `ray_executor`.
        variables: As in `ray_executor`.

    Raises:
        UsageError: The cluster cannot be reached.
    """

    def __init__(self, address: str, room: Room, lease: float, patience: float, variables: Sequence[str]) -> None:
        self._room, self._lease, self._patience = room, lease, patience
        self._alive: frozenset[str] = frozenset()
        self._offered: set[str] = set()
        self._coming = 0  # room of nodes that were offered and have no actor yet
        self._settling = False  # tasks that asked for a new node hold a part of it
        self._changed = time.monotonic()  # the nodes that are alive
        self._setup = Setup.of_this_process(variables)
        self._served: dict[str, RayLink] = {}
        self._asked: list[ray.ObjectRef] = []
        self._ask = ray.remote(num_cpus=room.num_cpus, max_retries=0)(_do_nothing)
        self._ours = connect(address)

    def nodes(self) -> Collection[str]:
        """Return the ids of the nodes that are served, and of those that have room.

        A new node is returned once the tasks that asked for it have ended: until then they hold a part of it.

        Raises:
            NodeLost: Ray does not answer.
        """
        free = _read_free()
        if self._alive != free.keys():
            self._alive, self._changed = frozenset(free), time.monotonic()
        served = {name for name, link in self._served.copy().items() if not link.closed and name in free}
        fresh = {name for name in free.keys() - served if self._room.of(free[name])}
        self._settling = bool(fresh and self._asks())
        self._offered = served if self._settling else served | fresh
        self._coming = sum(self._room.of(free[name]) for name in self._offered - served)
        return self._offered

    def open(self, node: str) -> HostNode:
        """Start an actor on a node.

        Raises:
            NodeLost: It did not start.
        """
        free = _read_free().get(node, {})
        if not (room := self._room.of(free)):
            raise NodeLost("its CPUs or its memory are in use", reason="NoRoom")
        with losses():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            resources = {"scheduling_strategy": there, **self._room.held(free)}
            name = f"the Ray actor on node {node}"
            link = RayLink(PROGRAM, self._setup, resources, name=name, patience=START_TIMEOUT, lease=self._lease)
        self._served[node] = link
        return HostNode(link, room)

    def demand(self, jobs: int) -> str:
        """Ask for CPUs with tasks that do nothing. As long as they wait, an autoscaler sees what they need.

        They do not run on nodes that `nodes` returned. A cluster that has not changed for `patience` seconds has its
        full size: it is not asked until it changes.
        """
        if self._settling or time.monotonic() > self._changed + self._patience:
            jobs = 0
        jobs = max(0, jobs - self._coming)
        with losses():
            asked = self._asks()
            self._withdraw(asked[jobs:])
            others = f"!in({','.join(self._offered)})"
            how = {"label_selector": {"ray.io/node-id": others}} if self._offered else {}
            count = min(jobs, MOST_ASKED) - len(asked)
            self._asked = asked[:jobs] + [self._ask.options(**how).remote() for _ in range(count)]
        return self._lack()

    def _asks(self) -> list["ray.ObjectRef"]:
        """Return the tasks that wait."""
        return ray.wait(self._asked, num_returns=len(self._asked), timeout=0)[1] if self._asked else []

    def _withdraw(self, tasks: Sequence["ray.ObjectRef"]) -> None:
        for task in tasks:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(task)

    def _lack(self) -> str:
        """Return what an episode needs, and what the node with the most free CPUs has."""
        free = _read_free()
        name = max(free, key=lambda one: free[one].get("CPU", 0.0), default="")
        has = free.get(name, {})
        return (
            f"an episode needs {self._room}, and of {len(free)} nodes none has more free than "
            f"{has.get('CPU', 0.0):g} CPUs, with {int(has.get('memory', 0.0)) >> 20:,} MiB: add nodes, let an "
            "autoscaler add them, or lower num_cpus and memory_mb"
        )

    def close(self) -> None:
        """Ask for nothing more, and disconnect, unless the program had connected before."""
        if ray.is_initialized():
            self._withdraw(self._asked)
        if self._ours:
            ray.shutdown()


def _do_nothing() -> None:
    """Take room, and leave it at once."""


def _read_free() -> dict[str, dict[str, float]]:
    """Return the free resources of each node that is alive."""
    with losses():
        known = available_resources_per_node()
        return {one["NodeID"]: known.get(one["NodeID"], {}) for one in ray.nodes() if one["Alive"]}
