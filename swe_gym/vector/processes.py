"""Worker processes of a vector environment: each makes and runs its share of the environments.

A worker is a fresh interpreter, never a fork. It ends when its connection does: at `close`, and at any death of the
parent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from ..errors import SandboxClosed, SandboxLost, UsageError
from ..spaces import AnyEnv, Info, ResetResult

MAX_BYTES = 64 << 20
"""Size of the largest request and the largest reply in bytes."""

START_TIMEOUT = 120.0
"""Seconds in which a worker must import the environments' code and make them."""

END_TIMEOUT = 10.0
"""Seconds in which a worker must end once its connection is closed."""

NUMBER = 8
"""Bytes of the serial number before a request and a reply."""

CODE = "import sys; sys.path[:] = {path!r}; from swe_gym.vector.worker import main; main({socket})"


class Request(NamedTuple):
    """A request to one environment of a worker.

    Attributes:
        number: Serial number.
        env: Index in the worker.
        verb: "make" (all environments), "reset", "step", "call", "cut" or "close".
        args: Arguments.
    """

    number: int
    env: int
    verb: str
    args: tuple[Any, ...] = ()


class Facts(NamedTuple):
    """The attributes of an environment in a worker that its vector environment reads."""

    observation_space: Any
    action_space: Any
    metadata: dict[str, Any]
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


class Process:
    """A worker process and its environments.

    Args:
        makers: Functions that make its environments.
        warm: As in `SweVectorEnv`, for this worker.

    Attributes:
        generation: Number of times that it was started.
    """

    def __init__(self, makers: Sequence[Callable[[], AnyEnv]], warm: int) -> None:
        self.generation = 0
        self._setup = (pack_makers(makers), warm)
        self._left = len(makers)
        self._lock = threading.RLock()
        self._starting = threading.Lock()  # held for long
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._alive = self._closed = False

    def start(self) -> Sequence[Facts]:
        """Start the process and make the environments.

        Raises:
            SandboxLost: The process did not start, or ended.
            SandboxClosed: The vector environment is closed.
            Exception: The error of a maker.
        """
        with self._lock:
            if self._closed:
                raise SandboxClosed("the vector environment is closed")
            read = self._launch()
        try:
            made: Sequence[Facts] = self.ask(Request(next(self._numbers), 0, "make", self._setup)).result(START_TIMEOUT)
            return made
        except BaseException as error:
            self._process.kill()
            read.join(END_TIMEOUT)
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"a worker process did not start within {START_TIMEOUT:g} s") from error
            raise

    def _launch(self) -> threading.Thread:
        """Start the process, and the thread that reads its replies."""
        ours, theirs = socket.socketpair()
        code = CODE.format(path=[entry or os.getcwd() for entry in sys.path], socket=theirs.fileno())
        with theirs:
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        self.generation += 1
        self._alive = True
        read = threading.Thread(target=self._read, args=(self._connection, self._process), daemon=True)
        read.start()
        return read

    def revive(self, generation: int) -> None:
        """Start the process again if that of this generation is dead. `close` does not wait for it.

        Raises:
            SandboxClosed: The vector environment is closed.
            Exception: As in `start`.
        """
        with self._starting:
            if not self._alive and self.generation == generation:
                self.start()

    def request(self, generation: int, env: int, verb: str, *args: Any) -> Any:
        """Send a request to an environment and wait for the result.

        Raises:
            SandboxLost: The process that made the environment has ended.
            UsageError: The arguments cannot be sent.
            Exception: The environment's error.
        """
        with self._lock:
            if generation != self.generation:
                raise SandboxLost("the worker process of the environment ended", reason="killed")
            future = self.ask(Request(next(self._numbers), env, verb, args))
        return future.result()

    def ask(self, request: Request) -> Future[Any]:
        """Send a request without waiting."""
        data = pack(request, f"an argument of {request.verb!r}")
        future: Future[Any] = Future()
        with self._lock:
            if not self._alive:
                future.set_exception(SandboxLost("the worker process has ended", reason="killed"))
                return future
            self._waiting[request.number] = future
            with contextlib.suppress(OSError):  # the reader notices, and fails all futures
                self._connection.send_bytes(request.number.to_bytes(NUMBER) + data)
        return future

    def release(self) -> None:
        """Note that one more environment is closed. The last one ends the process."""
        with self._lock:
            self._left -= 1
        if self._left <= 0:
            self.close()

    def close(self) -> None:
        """End the process. Idempotent, from any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self.generation:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            _end(self._process)

    def _read(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        """Hand replies to their futures until the connection ends. Then the process is dead."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                reply = connection.recv_bytes()
                future = self._waiting.pop(int.from_bytes(reply[:NUMBER]), None)
                if future is not None:
                    _resolve(future, reply[NUMBER:])
        status = _end(process)
        with self._lock:
            self._alive = False
            connection.close()
            lost, self._waiting = self._waiting, {}
        for future in lost.values():
            future.set_exception(SandboxLost(f"the worker process ended with status {status}", reason="killed"))


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process whose connection is closed, and return its status."""
    try:
        return process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _resolve(future: Future[Any], data: bytes) -> None:
    try:
        value, error = pickle.loads(data)
    except Exception as raised:  # noqa: BLE001  the caller gets it
        value, error = None, raised
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class RemoteEnv(gymnasium.Env[Any, Any]):
    """An environment in a worker process.

    Args:
        process: Its process.
        index: Index in the process.
        facts: Its attributes.
    """

    def __init__(self, process: Process, index: int, facts: Facts) -> None:
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.metadata, self.render_mode = facts.metadata, facts.render_mode
        self._process, self._index = process, index
        self._generation = process.generation

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[Any]:
        """Start an episode. If the process has ended, it is started again."""
        try:
            self._process.revive(self._generation)
        finally:
            self._generation = self._process.generation  # if it did not start, the next reset tries again
        result: ResetResult[Any] = self._request("reset", seed, options)
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Take a step.

        Raises:
            SandboxLost: The process has ended.
        """
        result: tuple[Any, float, bool, bool, Info] = self._request("step", action)
        return result

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call a method of the environment or read an attribute. The result is a copy."""
        result: object = self._request("call", name, args, kwargs)
        return result

    def cut(self) -> None:
        """Cancel the running call, if the environment can be closed from any thread."""
        with contextlib.suppress(SandboxLost):
            self._request("cut")

    def close(self) -> None:
        """Close the environment."""
        try:
            with contextlib.suppress(SandboxLost):
                self._request("close")
        finally:
            self._process.release()

    def _request(self, verb: str, *args: Any) -> Any:
        return self._process.request(self._generation, self._index, verb, *args)


def start_workers(
    makers: Sequence[Callable[[], AnyEnv]], processes: int, warm: int
) -> tuple[list[Process], list[RemoteEnv]]:
    """Start worker processes, all at once, and return them with their environments in order.

    Raises:
        Exception: The first error of a maker. No process is left.
    """
    bounds = [len(makers) * number // processes for number in range(processes + 1)]
    shares = [makers[start:end] for start, end in itertools.pairwise(bounds)]
    workers = [Process(share, -(-warm * len(share) // len(makers))) for share in shares]
    made: list[Future[Sequence[Facts]]] = [Future() for _ in workers]
    threads = [
        threading.Thread(target=_start, args=(worker, future)) for worker, future in zip(workers, made, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        found = [future.result() for future in made]
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    envs = [
        RemoteEnv(worker, index, facts)
        for worker, share in zip(workers, found, strict=True)
        for index, facts in enumerate(share)
    ]
    return workers, envs


def _start(worker: Process, future: Future[Sequence[Facts]]) -> None:
    try:
        future.set_result(worker.start())
    except BaseException as error:  # noqa: BLE001  the caller raises it
        future.set_exception(error)
