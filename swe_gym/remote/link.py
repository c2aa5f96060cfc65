"""Both ends of a link: `ask` calls a method of a program elsewhere, and a `Host` there runs the program.

A worker process is a fresh interpreter, never a fork. It ends when its link is closed, and when the parent dies,
however it dies.
"""

import contextlib
import functools
import importlib
import itertools
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from ..errors import SweGymError, UsageError, portable

START_TIMEOUT = 120.0
"""Seconds in which a program must start: its process imports the package."""

END_TIMEOUT = 10.0
"""Seconds in which a program must end, once it is told to."""


class NodeLost(SweGymError):
    """The process or the node of a program is gone, or did not answer in time. Its work may run again elsewhere.

    Attributes:
        reason: Name of the cause, such as "ActorDiedError".
        blamed: Whether the job may be the cause. Otherwise the try does not use up one of its retries.
    """

    def __init__(self, message: str, *, reason: str, blamed: bool = False) -> None:
        super().__init__(message)
        self.reason, self.blamed = reason, blamed


class HostLink(Protocol):
    """The connection to a program in another process.

    Attributes:
        name: Name of the process, for messages.
        patience: Seconds that the first reply may take: the process starts meanwhile.
    """

    name: str
    patience: float

    @property
    def alive(self) -> bool:
        """Whether the program has not ended."""
        ...

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply; from any thread, also during other requests.

        Raises:
            NodeLost: The program has ended.
            TimeoutError: There was no reply in time.
        """
        ...

    def close(self) -> None:
        """End the program within about `END_TIMEOUT` seconds. Idempotent, from any thread."""
        ...


class Launcher(Protocol):
    """Starts programs."""

    @property
    def places(self) -> int:
        """The number of programs that use every core, or every node."""
        ...

    def open(self, program: str) -> HostLink:
        """Start a program.

        Args:
            program: "module:Class". The class takes no arguments.
        """
        ...


class MethodCall(NamedTuple):
    """A call of a method.

    Attributes:
        method: Name of the method.
        args: Arguments.
        max_bytes: Size of the largest reply in bytes.
    """

    method: str
    args: tuple[object, ...]
    max_bytes: float


def ask(link: HostLink, method: str, *args: object, timeout: float | None = None, max_bytes: float = math.inf) -> Any:
    """Call a method of a program, and return its result.

    Args:
        link: The link to the program.
        method: Name of the method.
        *args: Its arguments.
        timeout: Seconds to wait. None: until the program ends.
        max_bytes: Size of the largest request and the largest reply in bytes.

    Raises:
        NodeLost: The program has ended.
        TimeoutError: There was no result in time.
        UsageError: The arguments or the result cannot be sent.
        Exception: The error of the method.
    """
    data = _pack(MethodCall(method, args, max_bytes), f"an argument of {method!r}", max_bytes)
    value, error = pickle.loads(link.ask(data, timeout))
    if error is not None:
        raise error
    return value


def _pack(value: object, what: str, max_bytes: float) -> bytes:
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise UsageError(f"{what} cannot be sent between processes: {error}") from error
    if len(data) > max_bytes:
        raise UsageError(f"{what} has {len(data):,} bytes; at most {max_bytes:,} can be sent between processes")
    return data


class Program(Protocol):
    """An object whose other methods are called over a link, one after the other.

    A method that takes time returns a future: its result is the reply, and the next call need not wait for it.
    """

    def end(self) -> None:
        """Free all resources, within `END_TIMEOUT` seconds. The process ends next."""
        ...


def load_program(name: str) -> Program:
    """Make the program "module:Class"."""
    module, _, kind = name.partition(":")
    program: Program = getattr(importlib.import_module(module), kind)()
    return program


class Host:
    """Runs a program for a driver elsewhere, and ends it once the driver is gone.

    Args:
        program: The program.
        lease: Seconds without a request after which the driver counts as gone. None: it may be silent for any time.
        leave: Called when the program has ended. By default it ends the process.
    """

    def __init__(
        self, program: Program, lease: float | None = None, leave: Callable[[], object] = lambda: os._exit(0)
    ) -> None:
        self._program, self._leave = program, leave
        self._heard = time.monotonic()
        if lease is not None:
            self.end_when(lambda: time.monotonic() > self._heard + lease, lease / 20)

    def handle(self, data: bytes, reply: Callable[[bytes], object]) -> None:
        """Call the method that a request names. `reply` is called once, from any thread."""
        self._heard = time.monotonic()
        try:
            call: MethodCall = pickle.loads(data)
            result = getattr(self._program, call.method)(*call.args)
        except BaseException as error:  # noqa: BLE001  the driver raises it
            reply(pickle.dumps((None, portable(error))))
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda done: reply(_pack_result(call, done.result)))
        else:
            reply(_pack_result(call, lambda: result))

    def end_when(self, is_gone: Callable[[], bool], every: float) -> None:
        """End once `is_gone` returns True. It is called every so many seconds."""

        def watch() -> None:
            pause = threading.Event()
            while not is_gone():
                pause.wait(every)
            self.end()

        threading.Thread(target=watch, name="driver", daemon=True).start()

    def end(self) -> None:
        """End the program and the process."""
        with contextlib.suppress(Exception):
            self._program.end()
        self._leave()


def _pack_result(call: MethodCall, result: Callable[[], object]) -> bytes:
    try:
        return _pack((result(), None), f"the result of {call.method!r}", call.max_bytes)
    except BaseException as error:  # noqa: BLE001  the driver raises it
        return pickle.dumps((None, portable(error)))


SEND_TIMEOUT = 30
"""Seconds in which a process must read a request. One that does not has stopped, and is killed."""

PARENT_EVERY = 1.0
"""Seconds between two looks whether the parent is alive: a fork of it may hold the connection open."""

NUMBER = 8
"""Bytes of the serial number before a request and its reply."""

CODE = "import sys; sys.path[:] = {path!r}; from swe_gym.remote.link import main; main({socket}, {parent}, {program!r})"


class ProcessLauncher:
    """Starts programs in processes of this machine."""

    @property
    def places(self) -> int:
        """The number of cores."""
        return len(os.sched_getaffinity(0))

    def open(self, program: str) -> "ProcessLink":
        """Start a program."""
        return ProcessLink(program)


class ProcessLink:
    """A link to a process.

    Args:
        program: As in `Launcher.open`.
    """

    patience = START_TIMEOUT

    def __init__(self, program: str) -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT, 0))
        path = [entry or os.getcwd() for entry in sys.path]
        code = CODE.format(path=path, socket=theirs.fileno(), parent=os.getpid(), program=program)
        with theirs:
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.name = f"worker process {self._process.pid}"
        self.alive = True
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # held for as long as the process does not read
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply."""
        future: Future[bytes] = Future()
        with self._lock:
            if not self.alive:
                raise NodeLost(f"{self.name} has ended", reason="killed")
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            with self._sending:
                self._connection.send_bytes(number.to_bytes(NUMBER) + data)
        except OSError:  # it has ended, or does not read
            self._process.kill()
        try:
            return future.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.name} did not answer within {timeout:g} s") from None

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._end()

    def _end(self) -> int | None:
        """Wait for the end of the process, whose connection is closed, and return its status."""
        for _ in range(2):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(END_TIMEOUT)
            self._process.kill()
        return None

    def _read(self) -> None:
        """Hand replies to those who wait until the connection ends. Then the process is dead."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                reply = self._connection.recv_bytes()
                self._waiting.pop(int.from_bytes(reply[:NUMBER])).set_result(reply[NUMBER:])
        status = self._end()
        with self._lock:
            self.alive = False
        with self._sending:
            self._connection.close()
        self._socket.close()
        for future in self._waiting.values():
            future.set_exception(NodeLost(f"{self.name} ended with status {status}", reason="killed"))


def main(descriptor: int, parent: int, program: str) -> None:
    """Run a program until the parent's end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    connection, host, sending = Connection(descriptor), Host(load_program(program)), threading.Lock()
    host.end_when(lambda: os.getppid() != parent, PARENT_EVERY)

    def send(number: bytes, reply: bytes) -> None:
        with sending, contextlib.suppress(OSError):
            connection.send_bytes(number + reply)

    with contextlib.suppress(EOFError, OSError):
        while True:
            data = connection.recv_bytes()
            host.handle(data[NUMBER:], functools.partial(send, data[:NUMBER]))
    host.end()
