"""A cluster in this process, whose nodes fail when the test says so. Messages and events are pickled, as on a wire."""

import pickle
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from swe_gym.rollout.executors.host import Events, Host, Message
from swe_gym.rollout.executors.remote import HostNode, RemoteExecutor
from swe_gym.rollout.pool import NodeLost


class LocalNode:
    """A host in this process."""

    def __init__(self, room: int, lease: float = 60.0) -> None:
        self.room = room
        self.cut = threading.Event()
        self.closed = threading.Event()
        self.gone = threading.Event()
        self.host = Host(lease, self.closed.set)

    def send(self, messages: Sequence[Message]) -> None:
        if not self.cut.is_set():
            self.host.send(pickle.loads(pickle.dumps(messages)))

    def poll(self, seconds: float) -> Events:
        if not self.cut.is_set():
            events: Events = pickle.loads(pickle.dumps(self.host.poll(seconds / 10)))
        if self.cut.is_set():
            raise NodeLost("the cable is out", reason="Unplugged")
        return events

    def close(self) -> None:
        self.gone.set()


class LocalCluster:
    """Nodes in this process, by name."""

    def __init__(self, **rooms: int) -> None:
        self.rooms = rooms
        self.opened: dict[str, list[LocalNode]] = {name: [] for name in rooms}
        self.lease = 60.0
        self.closed = False
        self.demanded: list[int] = []
        self.refuse: Exception | None = None

    def nodes(self) -> Collection[str]:
        return list(self.rooms)

    def open(self, node: str) -> HostNode:
        if self.refuse is not None:
            raise self.refuse
        self.opened[node].append(LocalNode(self.rooms[node], self.lease))
        return self.opened[node][-1]

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
