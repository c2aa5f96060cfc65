"""The attached streams of a container as one stream of bytes."""

import contextlib
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..channel import SocketStream

FRAME = struct.Struct(">BxxxI")
STDERR = 2
KEPT_ERRORS = 1 << 14


class DockerStream(SocketStream):
    """Standard output unpacked, and the last of standard error kept in `errors`.

    The engine sends frames of [stream, 0, 0, 0, length in 32 bits big-endian] and data.

    Args:
        attached: What docker-py's `attach_socket` returned. Its own end closes the connection, so it is kept.
    """

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        connection = getattr(attached, "_sock", attached)  # docker-py gives a file over it, except over TLS
        if isinstance(connection, ssl.SSLSocket):
            connection = TlsSocket(connection)
        super().__init__(connection)
        self._buffer = bytearray()
        self.errors = b""

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        while not (data := self._unpack()):
            try:
                received = super().read(deadline - time.monotonic())
            except BlockingIOError:  # a part of a record of TLS
                continue
            if not received:
                return b""
            self._buffer += received
        return data

    def _free_if_done(self) -> None:
        super()._free_if_done()
        if self._closed and not self._users:
            if reply := getattr(self._attached, "_response", None):  # holds a file over the connection
                reply.close()
            self._attached.close()

    def _unpack(self) -> bytes:
        """All of standard output that has come whole."""
        output = bytearray()
        while len(self._buffer) >= FRAME.size:
            stream, length = FRAME.unpack_from(self._buffer)
            if len(self._buffer) < FRAME.size + length:
                break
            data = bytes(self._buffer[FRAME.size : FRAME.size + length])
            del self._buffer[: FRAME.size + length]
            if stream == STDERR:
                self.errors = (self.errors + data)[-KEPT_ERRORS:]
            else:
                output += data
        return bytes(output)


class TlsSocket:
    """What `SocketStream` needs of a socket, over TLS: a call that must wait says so as plain sockets do.

    One thread may read while another one writes, which OpenSSL's objects do not allow: so they take turns. No turn
    is long, as nothing here blocks.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._turn = threading.Lock()
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.close = connection.close

    def recv(self, size: int) -> bytes:
        """See `socket.socket.recv`."""
        with self._asking():
            return self._connection.recv(size)

    def send(self, data: memoryview) -> int:
        """See `socket.socket.send`."""
        with self._asking():
            return self._connection.send(data)

    def shutdown(self, how: int) -> None:
        """See `socket.socket.shutdown`."""
        with self._turn:
            self._connection.shutdown(how)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        with self._turn:
            try:
                yield
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                raise BlockingIOError from error
