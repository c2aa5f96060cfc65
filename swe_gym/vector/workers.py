"""The workers of a vector environment, seen from this process: each makes and runs its share of the environments.

A worker is a process or a Ray actor. Only its `WorkerChannel` differs; `worker.Worker` is its program.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from ..errors import SandboxClosed, SandboxLost, UsageError, unknown_name
from ..registry import Registry, parameters_of
from ..spaces import AnyEnv, Info, ResetResult
from ..types import JsonMapping

MAX_BYTES = 64 << 20
"""Size of the largest request and the largest reply in bytes."""

START_TIMEOUT = 120.0
"""Seconds in which a worker must import the environments' code and make them."""

END_TIMEOUT = 10.0
"""Seconds in which a worker must end, once it is told to."""


class WorkerChannel(Protocol):
    """A worker that has been started, and the connection to it.

    Attributes:
        name: Kind of worker, for messages.
        patience: Seconds in which it must start and make the environments.
    """

    name: str
    patience: float

    @staticmethod
    def places() -> int:
        """Return the default number of workers.

        Raises:
            UsageError: Workers cannot be started.
        """
        ...

    @property
    def alive(self) -> bool:
        """Whether the worker has not ended."""
        ...

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply.

        Raises:
            SandboxLost: The worker has ended.
            TimeoutError: There was no reply in time.
        """
        ...

    def close(self) -> None:
        """End the worker within about `END_TIMEOUT` seconds. Idempotent, from any thread."""
        ...


CHANNELS = Registry[type[WorkerChannel]](
    "executor",
    {"process": "swe_gym.vector.processes:ProcessChannel", "ray": "swe_gym.vector.ray:RayChannel [ray]"},
    group="swe_gym.vector_executors",
)
"""Executor -> channel."""


class WorkerRequest(NamedTuple):
    """A request to one environment of a worker.

    Attributes:
        env: Index in the worker.
        verb: "make" (all environments), "reset", "step", "call", "cut" or "close".
        args: Arguments.
    """

    env: int
    verb: str
    args: tuple[Any, ...] = ()


class Facts(NamedTuple):
    """The attributes of an environment in a worker that its vector environment reads."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, object]
    render_mode: str | None


def pack(value: object, what: str) -> bytes:
    """Return pickled data.

    Raises:
        UsageError: It cannot be pickled, or is too large.
    """
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise UsageError(f"{what} cannot be sent between processes: {error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what} has {len(data):,} bytes; at most {MAX_BYTES:,} can be sent between processes")
    return data


def pack_makers(makers: Sequence[Callable[[], AnyEnv]]) -> bytes:
    """Return pickled functions, also lambdas and those of a script.

    Raises:
        UsageError: A function holds what cannot be pickled, such as a lock.
    """
    try:
        return pickle.dumps(CloudpickleWrapper(list(makers)))  # type: ignore[arg-type]  # it takes any object
    except Exception as error:
        raise UsageError(f"env_fns cannot be sent to a worker process: {error}") from error


def ask(channel: WorkerChannel, request: WorkerRequest, timeout: float | None = None) -> Any:
    """Send a request to a worker and wait for the result.

    Raises:
        SandboxLost: The worker has ended.
        TimeoutError: There was no result in time.
        UsageError: The arguments cannot be sent.
        Exception: The environment's error.
    """
    data = pack(request, f"an argument of {request.verb!r}")
    value, error = pickle.loads(channel.ask(data, timeout))
    if error is not None:
        raise error
    return value


class WorkerHandle:
    """A worker, which is started again after its death.

    Args:
        open_channel: Starts it.
        makers: Functions that make its environments.
        warm: As in `SweVectorEnv`, for this worker.

    Attributes:
        channel: The channel of its last start.
    """

    channel: WorkerChannel

    def __init__(
        self, open_channel: Callable[[], WorkerChannel], makers: Sequence[Callable[[], AnyEnv]], warm: int
    ) -> None:
        self._open_channel = open_channel
        self._setup = (pack_makers(makers), warm)
        self._left = len(makers)
        self._lock = threading.RLock()
        self._starting = threading.Lock()  # held for long
        self._started = self._closed = False

    def start(self) -> Sequence[Facts]:
        """Start the worker and make the environments.

        Raises:
            SandboxLost: The worker did not start, or ended.
            SandboxClosed: The vector environment is closed.
            Exception: The error of a maker.
        """
        with self._lock:
            if self._closed:
                raise SandboxClosed("the vector environment is closed")
            channel = self.channel = self._open_channel()
            self._started = True
        try:
            made: Sequence[Facts] = ask(channel, WorkerRequest(0, "make", self._setup), channel.patience)
            return made
        except BaseException as error:
            channel.close()
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"{channel.name} did not start within {channel.patience:g} s") from error
            raise

    def revive(self, ended: WorkerChannel) -> None:
        """Start the worker again if that of this channel was the last one and has ended. `close` does not wait for it.

        Raises:
            SandboxClosed: The vector environment is closed.
            Exception: As in `start`.
        """
        with self._starting:
            if self.channel is ended and not ended.alive:
                ended.close()
                self.start()

    def release(self) -> None:
        """Note that one more environment is closed. The last one ends the worker."""
        with self._lock:
            self._left -= 1
        if self._left <= 0:
            self.close()

    def close(self) -> None:
        """End the worker. Idempotent, from any thread."""
        with self._lock:
            self._closed = True
        if self._started:
            self.channel.close()


class WorkerEnv(gymnasium.Env[Any, Any]):
    """An environment in a worker.

    Args:
        worker: Its worker.
        index: Index in the worker.
        facts: Its attributes.
    """

    def __init__(self, worker: WorkerHandle, index: int, facts: Facts) -> None:
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.metadata, self.render_mode = facts.metadata, facts.render_mode
        self._worker, self._index = worker, index
        self._channel = worker.channel

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode. If the worker has ended, it is started again."""
        try:
            self._worker.revive(self._channel)
        finally:
            self._channel = self._worker.channel  # if it did not start, the next reset tries again
        result: ResetResult[Any] = self._ask("reset", seed, options)
        return result

    def step(self, action: object) -> tuple[Any, float, bool, bool, Info]:
        """Take a step.

        Raises:
            SandboxLost: The worker has ended.
        """
        result: tuple[Any, float, bool, bool, Info] = self._ask("step", action)
        return result

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a method of the environment or read an attribute. The result is a copy."""
        result: object = self._ask("call", name, args, kwargs)
        return result

    def cut(self) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""
        with contextlib.suppress(SandboxLost, TimeoutError):
            self._ask("cut", timeout=END_TIMEOUT)

    def close(self) -> None:
        """Close the environment."""
        try:
            with contextlib.suppress(SandboxLost, TimeoutError):  # `release` ends the worker
                self._ask("close", timeout=END_TIMEOUT)
        finally:
            self._worker.release()

    def _ask(self, verb: str, *args: object, timeout: float | None = None) -> Any:
        return ask(self._channel, WorkerRequest(self._index, verb, args), timeout)


def start_workers(
    executor: str, makers: Sequence[Callable[[], AnyEnv]], count: int | None, warm: int, options: JsonMapping
) -> tuple[list[WorkerHandle], list[WorkerEnv]]:
    """Start workers, all at once, and return them with their environments in order.

    Args:
        executor: Name of their channel.
        makers: Functions that make an environment each.
        count: Number of workers; None for the executor's default.
        warm: As in `SweVectorEnv`.
        options: Arguments of the channel.

    Raises:
        UsageError: An argument is invalid, or workers cannot be started.
        Exception: The first error of a maker. No worker is left.
    """
    channel = CHANNELS.load(executor)
    if warm < 0 or (count is not None and count < 1):
        raise UsageError(f"processes must be at least 1, and warm at least 0: processes={count}, {warm=}")
    known = [one.name for one in parameters_of(channel)] if options else []
    for option in options:
        if option not in known:
            raise unknown_name(f"option of executor {executor!r}:", option, known)
    places = channel.places()
    count = min(len(makers), count or places)
    bounds = [len(makers) * number // count for number in range(count + 1)]
    shares = [makers[start:end] for start, end in itertools.pairwise(bounds)]
    open_channel = functools.partial(channel, **options)
    workers = [WorkerHandle(open_channel, share, -(-warm * len(share) // len(makers))) for share in shares]
    with ThreadPoolExecutor(count, thread_name_prefix="start") as pool:
        try:
            found = list(pool.map(WorkerHandle.start, workers))
        except BaseException:
            close_workers(workers)
            raise
    envs = [
        WorkerEnv(worker, index, facts)
        for worker, share in zip(workers, found, strict=True)
        for index, facts in enumerate(share)
    ]
    return workers, envs


def close_workers(workers: Sequence[WorkerHandle]) -> None:
    """End all workers at once."""
    threads = [threading.Thread(target=worker.close, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
