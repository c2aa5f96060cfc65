"""A container's attached streams as one byte stream."""

import ssl
import struct
import time
from typing import Any

from ..channel import SocketStream
from ..tls import TlsSocket

FRAME = struct.Struct(">BxxxI")
STDERR = 2
KEPT_ERRORS = 1 << 14


class DockerStream(SocketStream):
    """A `ByteStream` of a container's standard input and output.

    The engine sends frames of [stream, 0, 0, 0, 32-bit big-endian length] and data.

    Args:
        attached: The result of docker-py's `attach_socket`. It closes the connection when collected, so it is kept.

    Attributes:
        errors: The end of standard error.
    """

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        connection = getattr(attached, "_sock", attached)  # docker-py wraps it in a file, except for TLS
        if isinstance(connection, ssl.SSLSocket):
            connection = TlsSocket(connection)
        super().__init__(connection)
        self._buffer = bytearray()
        self.errors = b""

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        while not (data := self._unpack()):
            received = super().read(deadline - time.monotonic())
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
        """Return all complete frames of standard output."""
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
