"""Actors of a vector environment on a Ray cluster. They end with the driver."""

import asyncio
import contextlib
from collections.abc import Sequence

import ray

from ..errors import SandboxLost
from ..ray_cluster import Setup, check_cpus, connect, losses
from .worker import Worker
from .workers import END_TIMEOUT

NUM_CPUS = 1.0
"""CPUs of an actor."""

PATIENCE = 300.0
"""Seconds in which an actor must start. Nodes of a cloud take minutes to start."""

MOST_CALLS = 10_000
"""Calls of an actor that wait at once."""


class Actor:
    """A worker as a Ray actor. Its calls are tasks of one event loop."""

    def __init__(self) -> None:
        self._worker = Worker()
        self._never = asyncio.Event()  # held here: the loop alone would not keep the call that waits for it

    async def prepare(self, setup: Setup) -> None:
        """Set the process up as the driver's.

        Raises:
            UsageError: Other code of swe_gym is installed here.
        """
        setup.apply()

    async def ask(self, data: bytes) -> bytes:
        """Handle a request."""
        return await asyncio.wrap_future(self._worker.handle(data))

    async def live(self) -> None:
        """Return never: the call fails when the actor ends."""
        await self._never.wait()

    async def end(self) -> None:
        """Close every environment and end the process."""
        self._worker.end()


class RayChannel:
    """An actor on the node with the fewest. An autoscaler of the cluster sees what waiting actors need.

    Args:
        num_cpus: CPUs of an actor, for all of its environments.
        patience: Seconds in which an actor must start. A node that an autoscaler starts must join within them.
        variables: Names of further environment variables that actors get from this process.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self, *, num_cpus: float = NUM_CPUS, patience: float = PATIENCE, variables: Sequence[str] = ()
    ) -> None:
        check_cpus(num_cpus)
        self.name, self.patience = f"a Ray actor that needs {num_cpus:g} free CPUs on one node", patience
        how = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": MOST_CALLS, "enable_task_events": False}
        self._actor = ray.remote(num_cpus=num_cpus, scheduling_strategy="SPREAD", **how)(Actor).remote()
        self._prepared = self._actor.prepare.remote(Setup.of_this_process(variables))
        self._life = self._actor.live.remote()
        self._lost = False

    @staticmethod
    def places() -> int:
        """Connect to the cluster, and return the number of its nodes that have cores."""
        connect()
        return max(1, sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1))

    @property
    def alive(self) -> bool:
        """Whether the actor has not ended."""
        return not (self._lost or _is_done(self._life))

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply."""
        try:
            with losses(_loss), contextlib.suppress(ray.exceptions.GetTimeoutError):
                ray.get(self._prepared, timeout=timeout)  # calls of an actor with an event loop may overtake each other
                reply: bytes = ray.get(self._actor.ask.remote(data), timeout=timeout)
                return reply
        except SandboxLost:
            self._lost = True
            raise
        raise TimeoutError

    def close(self) -> None:
        """End the actor. A program that has disconnected from Ray has ended it."""
        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                if _is_done(self._prepared):
                    ray.get(self._actor.end.remote(), timeout=END_TIMEOUT)
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self._actor, no_restart=True)


def _is_done(call: object) -> bool:
    return bool(ray.wait([call], timeout=0)[0])


def _loss(message: str, _kind: str) -> SandboxLost:
    return SandboxLost(f"a Ray actor has ended: {message}", reason="killed")
