"""What the tests of the gateway share: connections over sockets, samplers, and a tokenizer of bytes."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from swe_gym.gateway.session import Session


class SocketConnection:
    """A connection over a socket, as a sandbox forwards one."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def recv(self, size: int, *, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(size)
        except BlockingIOError as error:
            raise TimeoutError from error

    def send(self, data: bytes, *, timeout: float) -> None:
        self.socket.settimeout(timeout)
        self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@contextlib.contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve a session on a port of this machine; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=session.handle, args=(SocketConnection(sock),), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        session.close()
