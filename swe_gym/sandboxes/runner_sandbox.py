"""The base class of backends that use the runner, which only provide a byte stream, and ports forwarded over it.

A thread for each port waits for its end. While no other call waits for a reply, that thread reads the channel.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from ..errors import (
    ConnectionEnded,
    ConnectionTimeout,
    FileError,
    MissingFile,
    NoPermission,
    NotAFile,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    SweGymError,
    Unsupported,
    UsageError,
)
from ..guests import bundle
from ..guests.protocol import (
    FORWARD_CLOSE,
    FORWARD_DATA,
    FORWARD_END,
    FORWARD_OPEN,
    FORWARD_TAKEN,
    FORWARD_WAIT,
    HELLO,
    PIECE,
    WINDOW,
    ProtocolError,
)
from .base import Sandbox
from .channel import LONGEST_WAIT, ByteStream, RequestFailed, RunnerChannel
from .types import Forward, Handler, SandboxSpec, start_handler

if TYPE_CHECKING:
    from ..guests.protocol import (
        ConnectionRequest,
        ForwardEvent,
        ForwardRequest,
        HelloRequest,
        ListenRequest,
        Operation,
        Reply,
        Request,
        TakenRequest,
    )

FRAME_TIMEOUT = 60.0
"""Seconds in which a runner must receive a frame and answer it; else the sandbox is lost."""


class SandboxForwards:
    """The forwarded ports of a sandbox.

    Args:
        channel: Channel to its runner.
        name: Name of the sandbox, for logs.
    """

    def __init__(self, channel: RunnerChannel, name: str) -> None:
        self._channel = channel
        self._name = name
        channel.on_event = self._on_event
        self._numbers = itertools.count(1)
        self._ports: dict[int, RunnerForward] = {}
        self._connections: dict[int, RunnerConnection] = {}

    def open(self, port: int, handler: Handler, limit: int) -> RunnerForward:
        """Open a port. Raises as `Sandbox.forward`."""
        number = next(self._numbers)
        forward = RunnerForward(self._channel, number, handler, limit)
        self._ports[number] = forward  # before a connection can come
        forward.open(port, lambda: self._ports.pop(number, None))
        return forward

    def _on_event(self, message: ForwardEvent, payload: bytes) -> None:
        """Take an event. An invalid one, or one that exceeds a limit, means that a command got hold of the runner."""
        try:
            number = int(message["connection"])
            if "forward" not in message:
                if connection := self._connections.get(number):  # else it is closed here
                    connection.take(message, payload)
            elif forward := self._ports.get(int(message["forward"])):
                self._connect(forward, number)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(repr(error)) from error

    def _connect(self, forward: RunnerForward, number: int) -> None:
        if number in self._connections or len(forward.connections) >= forward.limit:
            raise ProtocolError("more connections than the limit")

        def forget() -> None:
            self._connections.pop(number, None)
            forward.connections.discard(connection)

        connection = RunnerConnection(self._channel, number, forget)
        self._connections[number] = connection
        forward.connections.add(connection)
        if forward.end:  # meanwhile
            connection.fail(forward.end)
        start_handler(forward.handler, connection, f"{self._name}, port {forward.port}")


class RunnerForward:
    """A forwarded port. See `forward.Forward`.

    Attributes:
        port: Port in the sandbox.
        connections: The open connections.
        end: Why the port is closed; None while it is open.
    """

    def __init__(self, channel: RunnerChannel, number: int, handler: Handler, limit: int) -> None:
        self.handler = handler
        self.limit = limit
        self.port = 0
        self.connections: set[RunnerConnection] = set()
        self.end: SweGymError | None = None
        self._channel = channel
        self._request: ForwardRequest = {"forward": number}
        self._owner = os.getpid()
        self._forget: Callable[[], object] = lambda: None

    def open(self, port: int, forget: Callable[[], object]) -> None:
        """Listen, and watch for the end, which calls `forget`."""
        self._forget = forget
        try:
            self.port = self._listen(port)
        except BaseException:
            forget()
            raise
        threading.Thread(target=self._watch, name=f"forwarded port {self.port}", daemon=True).start()

    def _listen(self, port: int) -> int:
        request: ListenRequest = {**self._request, "port": port, "max_connections": self.limit}
        try:
            reply, _ = self._channel.request(FORWARD_OPEN, request, timeout=FRAME_TIMEOUT)
        except RequestFailed as error:
            raise SandboxError(f"port {port} cannot be opened in the sandbox: {error}") from error
        if reply["unsupported"]:
            raise Unsupported(
                f"no port can be forwarded, because the sandbox allows no sockets ({reply['unsupported']}): "
                "use another backend, or tier 'namespace' of the local one"
            )
        return reply["port"]

    def close(self) -> None:
        """See `Forward.close`."""
        if self._owner == os.getpid():  # not a fork, which has the parent's stream
            with contextlib.suppress(SandboxError):
                self._channel.request(FORWARD_CLOSE, self._request, timeout=FRAME_TIMEOUT)
        self._end(ConnectionEnded("the forwarded port was closed"))

    def _watch(self) -> None:
        """Wait until the port is closed or the sandbox is gone, and then end all connections.

        A loss is not handled here: the sandbox's next call raises it.
        """
        try:
            self._channel.request(FORWARD_WAIT, self._request, timeout=LONGEST_WAIT)
        except SandboxError as error:
            self._end(error)
        else:
            self._end(ConnectionEnded("the forwarded port was closed"))

    def _end(self, why: SweGymError) -> None:
        self.end = self.end or why
        self._forget()
        for connection in list(self.connections):
            connection.fail(why)


class RunnerConnection:
    """A connection. See `forward.Connection`.

    It holds at most `WINDOW` bytes that the handler has not received, and the runner as many that the client has not.
    """

    def __init__(self, channel: RunnerChannel, number: int, forget: Callable[[], None]) -> None:
        self._channel = channel
        self._request: ConnectionRequest = {"connection": number}
        self._forget = forget
        self._change = threading.Condition()
        self._received = bytearray()
        self._unconfirmed = 0  # bytes that the handler received, and of which the runner was not told
        self._credit = WINDOW  # bytes that the runner still takes
        self._ended = False  # the client has sent everything
        self._gone = False
        self._failure: SweGymError | None = None

    def recv(self, size: int, *, timeout: float) -> bytes:
        """See `Connection.recv`."""
        if size < 1:
            raise UsageError(f"size must be positive: {size}")
        with self._change:
            self._wait(lambda: self._received or self._ended or self._gone, timeout, "sent nothing")
            data = bytes(self._received[:size])
            if not data and self._gone:
                raise ConnectionEnded("the client of the connection is gone")
            del self._received[:size]
            self._unconfirmed += len(data)
            confirm = self._unconfirmed if self._unconfirmed >= WINDOW // 2 else 0
            self._unconfirmed -= confirm
        if confirm:
            request: TakenRequest = {**self._request, "size": confirm}
            self._channel.tell(FORWARD_TAKEN, request, timeout=FRAME_TIMEOUT)
        return data

    def send(self, data: bytes, *, timeout: float) -> None:
        """See `Connection.send`."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        while view:
            with self._change:
                self._wait(lambda: self._credit or self._gone, deadline - time.monotonic(), "did not read")
                if self._gone:
                    raise ConnectionEnded("the client of the connection is gone")
                piece = bytes(view[: min(self._credit, PIECE)])
                self._credit -= len(piece)
            self._channel.tell(FORWARD_DATA, self._request, piece, timeout=FRAME_TIMEOUT)
            view = view[len(piece) :]

    def _wait(self, condition: Callable[[], object], timeout: float, what: str) -> None:
        """Wait with the lock held. Raises as `recv` and `send`."""
        limit = max(0.0, min(timeout, LONGEST_WAIT))
        met = self._change.wait_for(lambda: self._failure or condition(), limit)
        if self._failure:
            raise copy.copy(self._failure)
        if not met:
            raise ConnectionTimeout(f"the client of the connection {what} for {timeout:g} s")

    def close(self) -> None:
        """See `Connection.close`."""
        if self.fail(ConnectionEnded("the connection is closed")):
            with contextlib.suppress(SandboxError):
                self._channel.tell(FORWARD_END, self._request, timeout=FRAME_TIMEOUT)

    def fail(self, why: SweGymError) -> bool:
        """Raise `why` in all waiting and later calls; return whether the connection was open."""
        with self._change:
            if self._failure:
                return False
            self._failure = why
            self._received.clear()
            self._change.notify_all()
        self._forget()
        return True

    def take(self, message: ForwardEvent, payload: bytes) -> None:
        """Take an event of the runner. Raises ProtocolError if it exceeds the windows."""
        with self._change:
            self._received += payload
            self._credit += int(message.get("taken", 0))
            self._ended = self._ended or "end" in message
            self._gone = self._gone or "gone" in message
            if len(self._received) + self._unconfirmed > WINDOW or not 0 <= self._credit <= WINDOW:
                raise ProtocolError("more bytes than the window")
            self._change.notify_all()


FILE_ERRORS: Mapping[str, type[FileError]] = {
    "ENOENT": MissingFile,
    "ENOTDIR": MissingFile,
    "EISDIR": NotAFile,
    "EACCES": NoPermission,
    "EPERM": NoPermission,
    "EROFS": NoPermission,
}


def runner_source() -> str:
    """Return the runner as one program for any Python >= 3.6."""
    return "\n".join([bundle("seccomp"), bundle("runner/serve"), "serve_standard_streams(protect=restrict_calls)\n"])


class RunnerSandbox(Sandbox):
    """A backend that uses the runner. Subclasses implement `_connect`, `_disconnect` and `capabilities`."""

    slack: ClassVar[float] = 10.0
    """Seconds that a reply may take beyond its own deadline before the sandbox counts as lost. Busy machines stall."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self._channel: RunnerChannel | None = None
        self._forwards: SandboxForwards | None = None
        self._unprotected = ""
        self._runner_env = b""  # the environment that the runner was started with, NUL between its variables

    # --- what a backend writes ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, deadline: float) -> ByteStream:
        """Start the sandbox with the runner in it and return the runner's streams."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Stop the sandbox and everything in it, within 10 s, without raising."""

    def _last_words(self) -> str:
        """Return the output of a sandbox that failed to start, if the backend knows it."""
        return ""

    def _limits(self) -> dict[str, int]:
        """Return the resource limits that the runner sets on itself, and so on every command."""
        return {"RLIMIT_CORE": 0}

    def _watched_memory(self) -> int:
        """Return the bytes that all processes may use together, if the runner must watch that; else 0."""
        return 0

    # --- life -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        stream = self._connect(deadline)
        self._channel = RunnerChannel(stream)
        self._forwards = SandboxForwards(self._channel, f"sandbox {self.id}")
        if self.closed:  # closed meanwhile, before there was a channel to close
            self._channel.close()
        try:
            timeout = deadline - time.monotonic() - self.slack  # which is added: a start has none
            hello: HelloRequest = {"limits": self._limits(), "memory": self._watched_memory(), "ttl": self.spec.ttl}
            reply, self._runner_env = self._request(HELLO, hello, timeout=timeout)
            self._unprotected = reply["unprotected"]
        except SandboxLost as error:
            text = f"the runner of the {self.name} sandbox did not start"
            late = error.reason == "unresponsive"
            detail = self._last_words() or str(error)
            retryable = late or self._channel.ran  # else the sandbox cannot run it
            raise SandboxStartError(
                text, reason="timeout" if late else "setup", retryable=retryable, detail=detail
            ) from error

    def _close(self) -> None:
        if self._channel:
            self._channel.close()
        self._disconnect()

    def _runner_notes(self) -> list[str]:
        """Return the entries of `capabilities.notes` about this sandbox's runner."""
        if not self._unprotected:
            return []
        return [
            "Commands can limit or slow down the runner, and so lose the sandbox, and use the host's keys and unusual "
            f"sockets: {self._unprotected}."
        ]

    def _request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        """Send a request to the runner and return its reply, with `slack` added to the deadline."""
        assert self._channel is not None
        try:
            return self._channel.request(operation, request, payload, timeout=timeout + self.slack)
        except RequestFailed as error:
            path = cast("Mapping[str, object]", request).get("path")
            kind = FILE_ERRORS.get(error.name, FileError)
            failure = kind(f"{path}: {error}" if path else str(error))
            failure.errno = getattr(errno, error.name, None)
            raise failure from error

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        assert self._forwards is not None
        return self._forwards.open(port, handler, max_connections)
