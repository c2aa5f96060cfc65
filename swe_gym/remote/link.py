"""Both ends of a link: `ask` sends a request to a program elsewhere, `Host` answers it there.

A program is an object. A request names a method, and the reply is what the method returned or raised.
"""

import contextlib
import importlib
import math
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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
    """The connection to a program that has been started.

    Attributes:
        name: Kind of process, for messages.
        patience: Seconds in which the first request must be answered.
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
        """How many programs use all cores or all nodes."""
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
        verb: Name of the method.
        args: Arguments.
        max_bytes: Size of the largest reply in bytes.
    """

    verb: str
    args: tuple[object, ...]
    max_bytes: float


def ask(link: HostLink, verb: str, *args: object, timeout: float | None = None, max_bytes: float = math.inf) -> Any:
    """Call a method of a program, and return its result.

    Args:
        link: The link to the program.
        verb: Name of the method.
        *args: Its arguments.
        timeout: Seconds to wait. None: until the program ends.
        max_bytes: Size of the largest request and the largest reply in bytes.

    Raises:
        NodeLost: The program has ended.
        TimeoutError: There was no result in time.
        UsageError: The arguments or the result cannot be sent.
        Exception: The error of the method.
    """
    data = _pack(MethodCall(verb, args, max_bytes), f"an argument of {verb!r}", max_bytes)
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
    """What a host runs. Its other methods are called by requests, one after the other, and return at once.

    A method that takes time returns a future. The reply is then the future's result.
    """

    def end(self) -> None:
        """Free all resources, within `END_TIMEOUT` seconds. Called once, before the process ends."""
        ...


def load_program(name: str) -> Program:
    """Make the program "module:Class"."""
    module, _, kind = name.partition(":")
    program: Program = getattr(importlib.import_module(module), kind)()
    return program


class Host:
    """Runs a program for a driver elsewhere. A driver that is gone ends it.

    Args:
        program: The program.
        lease: Seconds without a request after which the driver is gone. None: it may be silent for any time.
        leave: Called once the program has ended. By default it ends the process.
    """

    def __init__(
        self, program: Program, lease: float | None = None, leave: Callable[[], object] = lambda: os._exit(0)
    ) -> None:
        self._program, self._leave = program, leave
        self._heard = time.monotonic()
        if lease is not None:
            self.end_when(lambda: time.monotonic() > self._heard + lease, lease / 20)

    def handle(self, data: bytes, reply: Callable[[bytes], object]) -> None:
        """Start on a request. `reply` is called once, from any thread."""
        self._heard = time.monotonic()
        try:
            request: MethodCall = pickle.loads(data)
            result = getattr(self._program, request.verb)(*request.args)
        except BaseException as error:  # noqa: BLE001  the driver raises it
            reply(pickle.dumps((None, portable(error))))
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda done: reply(_pack_result(request, done.result)))
        else:
            reply(_pack_result(request, lambda: result))

    def end_when(self, is_gone: Callable[[], bool], every: float) -> None:
        """Ask every so many seconds whether the driver is gone, and then end."""

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


def _pack_result(request: MethodCall, result: Callable[[], object]) -> bytes:
    try:
        return _pack((result(), None), f"the result of {request.verb!r}", request.max_bytes)
    except BaseException as error:  # noqa: BLE001  the driver raises it
        return pickle.dumps((None, portable(error)))
