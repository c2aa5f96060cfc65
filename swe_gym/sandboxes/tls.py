"""TLS sockets for `SocketStream`, which expects the behaviour of plain non-blocking sockets."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator


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
