"""A cluster in this process, whose nodes fail when the test says so."""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium

from swe_gym.remote import Host, NodeLost
from swe_gym.rollout.executors.nodes import HostNode, JobHost, RemoteExecutor
from swe_gym.rollout.policies import GoldPolicy


class LocalLink:
    """A link to a host in this process."""

    name, patience = "a host in this process", 20.0

    def __init__(self, lease: float) -> None:
        self.cut = threading.Event()
        self.closed = threading.Event()
        self.gone = threading.Event()
        self.jobs = JobHost()
        self._host = Host(self.jobs, lease, self.closed.set)

    @property
    def alive(self) -> bool:
        return not self.cut.is_set()

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        reply: Future[bytes] = Future()
        if not self.cut.is_set():
            self._host.handle(data, reply.set_result)
            wait_for(lambda: reply.done() or self.cut.is_set())
        if self.cut.is_set():
            raise NodeLost("the cable is out", reason="Unplugged")
        return reply.result(timeout)

    def close(self) -> None:
        self.gone.set()


class LocalCluster:
    """Nodes in this process, by name."""

    def __init__(self, **rooms: int) -> None:
        self.rooms = rooms
        self.opened: dict[str, list[LocalLink]] = {name: [] for name in rooms}
        self.lease = 60.0
        self.closed = False
        self.demanded: list[int] = []
        self.refuse: Exception | None = None

    def nodes(self) -> Collection[str]:
        return list(self.rooms)

    def open(self, node: str) -> HostNode:
        if self.refuse is not None:
            raise self.refuse
        self.opened[node].append(LocalLink(self.lease))
        return HostNode(self.opened[node][-1], self.rooms[node])

    def demand(self, jobs: int) -> str:
        self.demanded.append(jobs)
        return "a job needs 2 cores"

    def close(self) -> None:
        self.closed = True


def local_executor(nodes: int = 2, room: int = 2) -> RemoteExecutor:
    """Return an executor on nodes in this process; configurations name it by its dotted path."""
    return RemoteExecutor(LocalCluster(**{f"node{number}": room for number in range(nodes)}))


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until a condition is true."""
    pause = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen")


class GatedGold(GoldPolicy):
    """The gold policy, which acts once a file exists; plans name it by its dotted path."""

    def __init__(self, env: gymnasium.Env[str, str], gate: str) -> None:
        super().__init__(env)
        self._gate = Path(gate)

    def act(self, observation: str) -> str:
        wait_for(self._gate.exists, 60)
        return super().act(observation)
