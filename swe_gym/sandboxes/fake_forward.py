"""Forwarded ports of a fake sandbox: ports of this machine's loopback interface, for clients in the test itself."""

import contextlib
import os
import socket
import threading
from typing import Any

from ..errors import FileError
from ..guests.runner.forwards import Forwards as Guest
from ..guests.runner.loop import Loop
from ..types import JsonObject
from .channel import Channel, SocketStream
from .runner_forward import OPEN_TIMEOUT, Forwards


class FakeRunner:
    """The part of the runner that forwards ports, in a thread of this process.

    Args:
        id: Identifier of the sandbox.

    Attributes:
        forwards: The forwarded ports.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        ours, theirs = socket.socketpair()
        self._channel = Channel(SocketStream(ours))
        self.forwards = Forwards(self)
        self._channel.on_event = self.forwards.on_event
        threading.Thread(target=serve, args=[theirs], name=f"fake sandbox {id}", daemon=True).start()

    def close(self) -> None:
        """Close all ports and connections."""
        self._channel.close()

    def _request(self, op: str, payload: bytes = b"", *, timeout: float, **fields: Any) -> tuple[JsonObject, bytes]:
        reply, data = self._channel.request(op, payload, timeout=timeout, **fields)
        if "error" in reply:
            raise FileError(reply["error"][1])
        return reply, data

    def _tell(self, op: str, payload: bytes = b"", **fields: Any) -> None:
        self._channel.tell(op, payload, timeout=OPEN_TIMEOUT, **fields)

    def _call(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def serve(stream: socket.socket) -> None:
    """Serve a stream to its end, and free everything."""
    sink = os.dup(stream.fileno())
    loop = Loop(stream.fileno(), sink)
    guest = Guest(loop)
    try:
        loop.run()
    finally:
        for number in list(guest.listeners):
            guest.forward_close({"forward": number}, b"")
        os.close(sink)
        stream.close()
