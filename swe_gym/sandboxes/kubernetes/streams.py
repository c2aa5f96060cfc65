"""The runner's byte stream over a websocket of the Kubernetes API: sockets with and without TLS, frames, channels."""

import contextlib
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import websocket

from ..channel import SocketStream

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
STDIN, STDOUT, STDERR, STATUS = range(4)
LARGEST_WRITE = 256 << 10
"""Bytes of one message. Some servers cut the connection at messages of more than a mebibyte."""

KEPT_ERRORS = 16 << 10


class TlsStream(SocketStream):
    """A `ByteStream` over a TLS socket, which it owns.

    A TLS connection is one state machine for both directions, so two threads must not be in it at the same time. The
    socket does not block, and who waits, waits outside of the lock.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        self._tls = sock
        self._tls_lock = threading.Lock()

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        with self._use():
            while True:
                with self._waiting(deadline), self._tls_lock:  # first, for TLS may hold more than the socket shows
                    return self._tls.recv(1 << 16)

    def write(self, data: bytes, timeout: float) -> None:
        """See `ByteStream.write`."""
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        with self._use():
            while view:
                with self._waiting(deadline), self._tls_lock:
                    view = view[self._tls.send(view) :]

    @contextlib.contextmanager
    def _waiting(self, deadline: float) -> Iterator[None]:
        """Where TLS cannot go on, wait for what it wants."""
        try:
            yield
        except ssl.SSLWantReadError:
            self._wait(select.POLLIN, deadline - time.monotonic())
        except ssl.SSLWantWriteError:
            self._wait(select.POLLOUT, deadline - time.monotonic())

    def close(self) -> None:
        """See `ByteStream.close`."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._tls, socket.SHUT_RDWR)  # that of SSLSocket would pull TLS from under a read
        super().close()


def open_stream(sock: socket.socket) -> SocketStream:
    """The stream over a socket, with TLS or without."""
    return TlsStream(sock) if isinstance(sock, ssl.SSLSocket) else SocketStream(sock)


class FrameReader:
    """Turns received bytes, in pieces of any size, into the messages of a websocket server."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()
        self._kind = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take bytes; yield each (opcode, payload) that they complete. Parts of one message are put together."""
        self._buffer += data
        while (frame := self._next()) is not None:
            final, opcode, payload = frame
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            self._kind = opcode or self._kind
            self._message += payload
            if final:
                yield self._kind, bytes(self._message)
                self._message.clear()

    def _next(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            start += struct.calcsize(form)
            if len(buffer) < start:
                return None
            (size,) = struct.unpack_from(form, buffer, 2)
        if len(buffer) < start + size:
            return None
        head, payload = buffer[0], bytes(buffer[start : start + size])
        del buffer[: start + size]
        return bool(head & 0x80), head & 0x0F, payload


class AttachedStream:
    """A `ByteStream` over the websocket of `pods/attach`: each message is a channel's number and data.

    Attributes:
        errors: The last of what the container wrote to standard error.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._frames = FrameReader()
        self._writing = threading.Lock()
        self._ended = False
        self.errors = b""
        self._status = b""

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        output = bytearray()
        while not output and not self._ended:
            received = self._stream.read(deadline - time.monotonic())
            self._ended = not received
            for opcode, payload in self._frames.feed(received):
                self._take(opcode, payload, output)
        return bytes(output)

    def _take(self, opcode: int, payload: bytes, output: bytearray) -> None:
        """Put a message where it belongs."""
        if opcode == PING:
            with contextlib.suppress(OSError):  # whoever uses the stream next will notice
                self._send(PONG, payload, 1.0)
        if opcode == CLOSE:
            self._ended = True
        if opcode not in (TEXT, BINARY) or not payload:
            return
        channel, data = payload[0], payload[1:]
        if channel == STDOUT:
            output += data
        elif channel == STDERR:
            self.errors = (self.errors + data)[-KEPT_ERRORS:]
        elif channel == STATUS:
            self._status = data
            self._ended = True

    def write(self, data: bytes, timeout: float) -> None:
        """See `ByteStream.write`."""
        deadline = time.monotonic() + timeout
        for start in range(0, len(data), LARGEST_WRITE):
            piece = data[start : start + LARGEST_WRITE]
            self._send(BINARY, bytes([STDIN]) + piece, deadline - time.monotonic())

    def last_words(self) -> str:
        """What is known of the end: standard error, and what the server said where that is no success."""
        words = self.errors.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError):
            status = json.loads(self._status or b"{}")
            words += "\n" + status.get("message", "") if status.get("status") == "Failure" else ""
        return words.strip()

    def keep_alive(self) -> None:
        """Send something, so that no proxy on the way takes the connection for idle."""
        with contextlib.suppress(OSError):  # whoever uses the stream next will notice
            self._send(PING, b"", 0.1)

    def _send(self, opcode: int, payload: bytes, timeout: float) -> None:
        frame = websocket.ABNF.create_frame(payload, opcode).format()
        deadline = time.monotonic() + timeout
        if not self._writing.acquire(timeout=max(0.0, timeout)):
            raise TimeoutError
        try:
            self._stream.write(frame, deadline - time.monotonic())
        finally:
            self._writing.release()

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._stream.close()
