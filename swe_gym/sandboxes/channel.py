"""The host's end of a runner: blocking requests over one byte stream, from any number of threads.

It sends the operations of `guests.protocol`, and refuses a reply whose fields are not those of the table.

There is no reader thread. One of the waiting callers reads for all, and passes the reading on once it has its own
reply. So an open sandbox costs no thread, and a reply no switch between threads. A forwarded port has a waiting caller
of its own, so its events are read at any time.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import SandboxClosed, SandboxLost, UsageError
from ..guests.protocol import Decoder, ProtocolError, encode, fields_of
from ..types import JsonObject

if TYPE_CHECKING:
    from ..guests.protocol import ForwardEvent, Operation, Reply, Request

LONGEST_POLL = 2**31 - 1
"""Milliseconds; the largest timeout of poll."""
LONGEST_WAIT = 1e9
"""Seconds; a lock cannot wait longer."""
ENDS = {
    "expired": "the sandbox reached its time to live",
    "oom": "the sandbox reached its memory limit, and the kernel ended it",
}
"""Last event of a sandbox, and reason of its loss -> what happened."""


class ByteStream(Protocol):
    """Both directions of a runner's standard streams, which a backend passes to `RunnerChannel`."""

    def read(self, timeout: float) -> bytes:
        """Return some bytes, `b""` at the end. Raises TimeoutError after `timeout` seconds, OSError if broken."""
        ...

    def write(self, data: bytes, timeout: float) -> None:
        """Send all of `data`. Raises TimeoutError after `timeout` seconds, OSError if broken."""
        ...

    def close(self) -> None:
        """Close both directions; a `read` in another thread returns. Idempotent."""
        ...


class SocketStream:
    """A `ByteStream` over a connected stream socket, which it owns."""

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.RLock()  # a signal handler may close what its own thread is using
        self._users = 0
        self._closed = False

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        with self._use():
            while True:
                try:
                    return self._socket.recv(1 << 20)  # before waiting: TLS may hold data that no poll shows
                except BlockingIOError:
                    self._wait(select.POLLIN, deadline - time.monotonic())

    def write(self, data: bytes, timeout: float) -> None:
        """See `ByteStream.write`."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with self._use():
            while view:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline - time.monotonic())

    def close(self) -> None:
        """See `ByteStream.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes threads that poll
            self._free_if_done()

    def _free_if_done(self) -> None:
        if self._closed and not self._users:
            self._socket.close()

    def _wait(self, events: int, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(min(max(0.0, timeout) * 1000, LONGEST_POLL)):
            raise TimeoutError

    @contextlib.contextmanager
    def _use(self) -> Iterator[None]:
        """Count the calls in progress, so that the last one closes the socket.

        A descriptor that is closed under a polling thread could be reused for another file meanwhile.
        """
        with self._lock:
            if self._closed:
                raise OSError("the stream is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._free_if_done()


@contextlib.contextmanager
def parsing() -> Iterator[None]:
    """Parse a reply. An invalid one means that a command got hold of the runner."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SandboxLost("the runner sent an invalid reply", reason="protocol", detail=repr(error)) from error


class RequestFailed(Exception):
    """The runner could not carry out a request.

    Attributes:
        name: Name of the errno, or "BadRequest".
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


TYPES: dict[str, tuple[type, ...]] = {
    **{"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)},
    **{"list": (list,), "dict": (dict,), "None": (type(None),)},
}
"""Type in the table of operations -> types of the JSON value."""


@functools.cache
def reply_types(operation: Operation[Request, Reply]) -> dict[str, tuple[type, ...]]:
    """Return the fields of an operation's reply, and the types that each may have."""
    found: dict[str, tuple[type, ...]] = {"id": (int,)}
    for name, text in fields_of(operation.reply).items():
        found[name] = sum((TYPES[one.partition("[")[0]] for one in text.split(" | ")), ())
    return found


def check_reply(operation: Operation[Request, Reply], reply: JsonObject) -> None:
    """Raise an error if a reply failed, or if its fields are not those of the operation.

    Raises:
        RequestFailed: The runner could not carry out the request.
        SandboxLost: The reply is invalid, which means that a command got hold of the runner.
    """
    types = reply_types(operation)
    if reply.keys() == types.keys() and all([type(value) in types[name] for name, value in reply.items()]):
        return
    error = reply.get("error")
    if isinstance(error, list) and len(error) == 2:
        raise RequestFailed(str(error[0]), str(error[1]))
    wrong = sorted({*types} ^ {*reply}) or [name for name, value in reply.items() if type(value) not in types[name]]
    detail = f"{operation.name}: {', '.join(wrong)}"
    raise SandboxLost("the runner sent an invalid reply", reason="protocol", detail=detail)


class RunnerChannel:
    """Sends requests and waits for their replies, each with its own deadline.

    A failure of the stream or a late reply breaks the channel for good: every waiting and every later request raises
    `SandboxLost`, or `SandboxClosed` after `close`.

    Attributes:
        on_event: Function that takes an event of a forwarded port, in the thread that reads, so it must not wait. If it
            raises `ProtocolError`, the channel breaks.
        ran: Whether the runner is known to have run: it sent something, or the connection to it broke.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.on_event: Callable[[ForwardEvent, bytes], None] | None = None
        self.ran = False
        self._stream = stream
        self._decoder = Decoder()
        self._ids = itertools.count(1)
        self._sending = threading.Lock()
        self._turn = threading.Condition()
        self._reading = False
        self._waiting: set[int] = set()
        self._replies: dict[int, tuple[JsonObject, bytes]] = {}
        self._failure: SandboxLost | SandboxClosed | None = None

    def request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        """Send one request and return its reply.

        Raises:
            RequestFailed: The runner could not carry it out.
            SandboxLost: The stream broke, or no reply came within `timeout` seconds.
            SandboxClosed: `close` was called.
            UsageError: The request is too large.
        """
        deadline = time.monotonic() + min(timeout, LONGEST_WAIT)
        number = next(self._ids)
        try:
            data = encode({"id": number, "op": operation.name, **request}, payload)  # type: ignore[dict-item]  # a TypedDict
        except ProtocolError as error:
            raise UsageError(f"the request {operation.name!r} is too large: {error}") from error
        with self._turn:
            self._raise_failure()
            self._waiting.add(number)
        try:
            self._send(data, deadline)
            reply, data = self._receive(number, deadline)
        finally:
            with self._turn:
                self._waiting.discard(number)
                self._replies.pop(number, None)
        check_reply(operation, reply)
        return reply, data  # type: ignore[return-value]  # checked

    def tell(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> None:
        """Send a request that has no reply. Raises as `request`."""
        with self._turn:
            self._raise_failure()
        data = encode({"id": next(self._ids), "op": operation.name, **request}, payload)  # type: ignore[dict-item]
        self._send(data, time.monotonic() + timeout)

    def close(self) -> None:
        """Close the stream; waiting requests raise `SandboxClosed`."""
        self._fail(SandboxClosed("the sandbox was closed"))

    def _send(self, data: bytes, deadline: float) -> None:
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._lost("the sandbox does not take requests")
        try:
            self._stream.write(data, deadline - time.monotonic())
        except TimeoutError:
            raise self._lost("the sandbox does not take requests") from None
        except OSError:
            pass  # it is gone; what it still sent tells why
        except BaseException:
            self._fail(SandboxLost("interrupted while a request was being sent", reason="protocol"))
            raise
        finally:
            self._sending.release()

    def _receive(self, number: int, deadline: float) -> tuple[JsonObject, bytes]:
        """Wait for a reply: read if no other thread does, else wait for that thread."""
        while True:
            with self._turn:
                while self._reading and number not in self._replies and self._failure is None:
                    if not self._turn.wait(deadline - time.monotonic()):
                        break
                if number in self._replies:
                    return self._replies.pop(number)
                self._raise_failure()
                if self._reading or time.monotonic() >= deadline:
                    break
                self._reading = True
            try:
                self._read_frames(deadline)
            finally:
                with self._turn:
                    self._reading = False
                    self._turn.notify_all()
        raise self._lost("the sandbox did not answer in time")

    def _lost(self, why: str) -> SandboxLost | SandboxClosed:
        """Break the channel, and return the error to raise: an earlier failure comes first."""
        self._fail(SandboxLost(why, reason="unresponsive"))
        assert self._failure is not None
        return copy.copy(self._failure)

    def _read_frames(self, deadline: float) -> None:
        try:
            data = self._stream.read(deadline - time.monotonic())
            frames = self._decoder.feed(data)
            self.ran = self.ran or bool(data)
        except TimeoutError:
            return
        except ProtocolError as error:
            self._fail(SandboxLost("the sandbox sent an invalid frame", reason="protocol", detail=str(error)))
            return
        except OSError as error:
            self.ran = self.ran or isinstance(error, ConnectionError)
            self._fail(SandboxLost(f"the sandbox is gone: {error}", reason="killed"))
            return
        if not data:
            self._fail(SandboxLost("the sandbox is gone: its runner ended", reason="killed"))
        for message, payload in frames:
            reason = str(message.get("event"))
            if reason in ENDS:
                self._fail(SandboxLost(ENDS[reason], reason=reason))
                return  # the frames that follow are ends of commands that it killed
            if reason == "forward":
                self._take_event(message, payload)
            else:
                self._take_reply(message, payload)

    def _take_reply(self, message: JsonObject, payload: bytes) -> None:
        number = message.get("id")
        with self._turn:
            if isinstance(number, int) and number in self._waiting:  # else nobody waits for it any more
                self._replies[number] = message, payload

    def _take_event(self, message: JsonObject, payload: bytes) -> None:
        try:
            if self.on_event:
                self.on_event(cast("ForwardEvent", message), payload)
        except ProtocolError as error:
            self._fail(SandboxLost("the sandbox sent an invalid event", reason="protocol", detail=str(error)))

    def _fail(self, failure: SandboxLost | SandboxClosed) -> None:
        with self._turn:
            if self._failure is None:
                self._failure = failure
            self._turn.notify_all()
        self._stream.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise copy.copy(self._failure)  # one for every thread: a traceback grows with each raise


class TlsSocket:
    """A non-blocking TLS socket that any number of threads may use.

    OpenSSL does not allow one thread to read while another one writes, so calls take turns. No call blocks.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.close = connection.close

    def recv(self, size: int) -> bytes:
        """See `socket.socket.recv`."""
        with self._take_turn():
            return self._connection.recv(size)

    def send(self, data: memoryview) -> int:
        """See `socket.socket.send`."""
        with self._take_turn():
            return self._connection.send(data)

    def shutdown(self, how: int) -> None:
        """See `socket.socket.shutdown`."""
        socket.socket.shutdown(self._connection, how)  # SSLSocket's own would drop TLS during another thread's read

    @contextlib.contextmanager
    def _take_turn(self) -> Iterator[None]:
        with self._turn:
            try:
                yield
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                raise BlockingIOError from error
