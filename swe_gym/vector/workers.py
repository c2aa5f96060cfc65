"""The workers of a vector environment: each makes and runs its share of the environments.

`Worker` is the program in a process or a Ray actor. `WorkerHandle` and `WorkerEnv` call it from this process.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from ..errors import SandboxClosed, SandboxLost, UsageError, unknown_name
from ..registry import Registry, parameters_of
from ..remote import END_TIMEOUT, HostLink, Launcher, NodeLost, ask
from ..sandboxes import WarmPool
from ..spaces import AnyEnv, Info, ResetResult, StepResult
from ..threads import SerialThread, in_thread
from ..types import JsonMapping
from .slot import CallFailed, ProxyEnv, call_env, cut_env, make_all, make_pool, prepare_next

MAX_BYTES = 64 << 20
"""Size of the largest request and the largest reply in bytes."""

LAUNCHERS = Registry[Callable[..., Launcher]](
    "executor",
    {
        "process": "swe_gym.remote.link:ProcessLauncher",
        "ray": "swe_gym.remote.ray_cluster:RayLauncher [ray]",
    },
    group="swe_gym.vector_executors",
)
"""Executor -> launcher of its workers."""


class Facts(NamedTuple):
    """The attributes of an environment in a worker that its vector environment reads."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, object]
    render_mode: str | None


class Worker:
    """The program of a worker: its environments, each with a thread of its own.

    Environments are named by their index.
    """

    def __init__(self) -> None:
        self._envs: list[AnyEnv] = []
        self._threads: list[SerialThread] = []
        self._pool: WarmPool | None = None

    def make(self, makers: bytes, warm: int) -> Future[list[Facts]]:
        """Make all environments."""

        def make() -> list[Facts]:
            self._envs = make_all(pickle.loads(makers).fn)
            self._pool = make_pool(self._envs, warm)
            self._threads = [SerialThread(f"env-{index}") for index in range(len(self._envs))]
            return [Facts(env.observation_space, env.action_space, env.metadata, env.render_mode) for env in self._envs]

        return in_thread(make, "make")

    def reset(self, env: int, seed: int | None, options: Info | None) -> Future[ResetResult[Any]]:
        """Start an episode."""

        def reset() -> ResetResult[Any]:
            first: ResetResult[Any] = self._envs[env].reset(seed=seed, options=options)
            prepare_next(self._envs[env], self._pool)
            return first

        return self._threads[env].submit(reset)

    def step(self, env: int, action: object) -> Future[StepResult[Any]]:
        """Take a step."""

        def step() -> StepResult[Any]:
            observation, reward, terminated, truncated, info = self._envs[env].step(action)
            if terminated or truncated:
                prepare_next(self._envs[env], self._pool)
            return observation, float(reward), terminated, truncated, info

        return self._threads[env].submit(step)

    def call(self, env: int, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Future[object]:
        """Call a method or read an attribute."""

        def call() -> object:
            result = call_env(self._envs[env], name, args, kwargs)
            if isinstance(result, CallFailed):
                raise result.error
            return result

        return self._threads[env].submit(call)

    def cut(self, env: int) -> Future[None]:
        """Cancel the running call, if the environment can be closed from any thread."""
        return in_thread(lambda: cut_env(self._envs[env]), "cut")

    def close(self, env: int) -> Future[None]:
        """Close an environment."""
        return self._threads[env].submit(self._envs[env].close)

    def end(self) -> None:
        """Close all environments, also those that are in a call."""
        closing = [in_thread(env.close, "close") for env in self._envs]
        if self._pool is not None:
            closing.append(in_thread(self._pool.close, "close"))
        wait(closing, END_TIMEOUT / 2)


def pack_makers(makers: Sequence[Callable[[], AnyEnv]]) -> bytes:
    """Return pickled functions, also lambdas and those of a script.

    Raises:
        UsageError: A function holds what cannot be pickled, such as a lock.
    """
    try:
        return pickle.dumps(CloudpickleWrapper(list(makers)))  # type: ignore[arg-type]  # it takes any object
    except Exception as error:
        raise UsageError(f"env_fns cannot be sent to a worker process: {error}") from error


def _ask(link: HostLink, method: str, *args: object, timeout: float | None = None) -> Any:
    """Call a method of a worker.

    Raises:
        SandboxLost: The worker has ended.
        Exception: As in `ask`.
    """
    try:
        return ask(link, method, *args, timeout=timeout, max_bytes=MAX_BYTES)
    except NodeLost as error:
        raise SandboxLost(str(error), reason="killed") from error


class WorkerHandle:
    """A worker, which is started again after its death.

    Args:
        launcher: Starts it.
        makers: Functions that make its environments.
        warm: As in `SweVectorEnv`, for this worker.

    Attributes:
        link: The link of its last start.
    """

    link: HostLink

    def __init__(self, launcher: Launcher, makers: Sequence[Callable[[], AnyEnv]], warm: int) -> None:
        self._launcher = launcher
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
            link = self.link = self._launcher.open(f"{__name__}:{Worker.__name__}")
            self._started = True
        try:
            made: Sequence[Facts] = _ask(link, "make", *self._setup, timeout=link.patience)
            return made
        except BaseException as error:
            link.close()
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"{link.name} did not start within {link.patience:g} s") from error
            raise

    def revive(self, ended: HostLink) -> None:
        """Start the worker again if that of this link was the last one and has ended. `close` does not wait for it.

        Raises:
            SandboxClosed: The vector environment is closed.
            Exception: As in `start`.
        """
        with self._starting:
            if self.link is ended and not ended.alive:
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
            self.link.close()


class WorkerEnv(ProxyEnv):
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
        self._link = worker.link

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode. If the worker has ended, it is started again."""
        try:
            self._worker.revive(self._link)
        finally:
            self._link = self._worker.link  # if it did not start, the next reset tries again
        result: ResetResult[Any] = self._ask("reset", seed, options)
        return result

    def step(self, action: object) -> StepResult[Any]:
        """Take a step.

        Raises:
            SandboxLost: The worker has ended.
        """
        result: StepResult[Any] = self._ask("step", action)
        return result

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a method of the environment or read an attribute. The result is a copy."""
        result: object = self._ask("call", name, args, kwargs)
        return result

    def cut(self) -> None:
        """Cancel the running call."""
        with contextlib.suppress(SandboxLost, TimeoutError):
            self._ask("cut", timeout=END_TIMEOUT)

    def close(self) -> None:
        """Close the environment."""
        try:
            with contextlib.suppress(SandboxLost, TimeoutError):  # `release` ends the worker
                self._ask("close", timeout=END_TIMEOUT)
        finally:
            self._worker.release()

    def _ask(self, method: str, *args: object, timeout: float | None = None) -> Any:
        return _ask(self._link, method, self._index, *args, timeout=timeout)


def start_workers(
    executor: str, makers: Sequence[Callable[[], AnyEnv]], count: int | None, warm: int, options: JsonMapping
) -> tuple[list[WorkerHandle], list[WorkerEnv]]:
    """Start workers, all at once, and return them with their environments in order.

    Args:
        executor: Name of their launcher.
        makers: Functions that make an environment each.
        count: Number of workers; None for the executor's default.
        warm: As in `SweVectorEnv`.
        options: Arguments of the launcher.

    Raises:
        UsageError: An argument is invalid, or workers cannot be started.
        Exception: The first error of a maker. No worker is left.
    """
    kind = LAUNCHERS.load(executor)
    if warm < 0 or (count is not None and count < 1):
        raise UsageError(f"processes must be at least 1, and warm at least 0: processes={count}, {warm=}")
    known = [one.name for one in parameters_of(kind)] if options else []
    for option in options:
        if option not in known:
            raise unknown_name(f"option of executor {executor!r}:", option, known)
    launcher = kind(**options)
    count = min(len(makers), count or launcher.places)
    bounds = [len(makers) * number // count for number in range(count + 1)]
    shares = [makers[start:end] for start, end in itertools.pairwise(bounds)]
    workers = [WorkerHandle(launcher, share, -(-warm * len(share) // len(makers))) for share in shares]
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
