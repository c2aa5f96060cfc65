"""The runner's byte stream over a websocket of the Kubernetes API."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import websocket

from ..channel import SocketStream, TlsSocket

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
STDIN, STDOUT, STDERR, STATUS = range(4)
LARGEST_WRITE = 256 << 10
"""Bytes of one message. Some servers close the connection at messages above 1 MiB."""

KEPT_ERRORS = 16 << 10


def open_stream(sock: socket.socket) -> SocketStream:
    """Return a stream over a socket with or without TLS."""
    return SocketStream(TlsSocket(sock) if isinstance(sock, ssl.SSLSocket) else sock)


class FrameReader:
    """Parses the messages of a websocket server from received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()
        self._kind = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take bytes; yield each complete message as (opcode, payload), fragments joined."""
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
    """A `ByteStream` over the websocket of `pods/attach`. A message is a channel's number and data.

    Attributes:
        errors: The end of the container's standard error.
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
        """Handle one message."""
        if opcode == PING:
            with contextlib.suppress(OSError):  # the next read or write fails
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
        """Return the end of standard error, and the server's message if it reported a failure."""
        words = self.errors.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError):
            status = json.loads(self._status or b"{}")
            words += "\n" + status.get("message", "") if status.get("status") == "Failure" else ""
        return words.strip()

    def keep_alive(self) -> None:
        """Send a ping, so that no proxy closes the connection as idle."""
        with contextlib.suppress(OSError):  # the next read or write fails
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
