"""Forwarded ports: types of `Sandbox.forward`, and what every implementation does with a connection."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ..errors import ConnectionEnded, SandboxClosed, SandboxLost

log = logging.getLogger(__name__)


class Connection(Protocol):
    """A connection that a process in the sandbox made to a forwarded port. Any thread may use it."""

    def recv(self, size: int, *, timeout: float) -> bytes:
        """Return at least one and at most `size` bytes, or `b""` once the client has sent everything.

        Raises:
            ConnectionTimeout: No byte came within `timeout` seconds.
            ConnectionEnded: The connection is closed, or its client is gone.
            SandboxLost, SandboxClosed: The sandbox is gone.
        """
        ...

    def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of `data`; wait while the client does not read and the buffers are full.

        Raises:
            ConnectionTimeout: The client did not read within `timeout` seconds. A part of `data` may be sent.
            ConnectionEnded: The connection is closed, or its client is gone.
            SandboxLost, SandboxClosed: The sandbox is gone.
        """
        ...

    def close(self) -> None:
        """Close the connection. Idempotent, from any thread.

        What was sent still reaches the client, unless it does not read for 60 s. What it sends is discarded.
        """
        ...


class Forward(Protocol):
    """A forwarded port, as `Sandbox.forward` returns it."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 in the sandbox."""
        ...

    def close(self) -> None:
        """Stop listening and end all connections of the port. Idempotent, from any thread, without raising."""
        ...


Handler = Callable[[Connection], None]
"""Serves a connection in a thread of its own. When it returns or raises, the connection is closed."""


def start_handler(handler: Handler, connection: Connection, name: str) -> None:
    """Run a handler in a thread, and close the connection after it."""

    def serve() -> None:
        try:
            handler(connection)
        except (ConnectionEnded, SandboxClosed, SandboxLost) as error:
            log.info("%s: a connection ended early: %s", name, error)
        except Exception:
            log.exception("%s: the handler of a connection failed", name)
        finally:
            connection.close()

    try:
        threading.Thread(target=serve, name=name, daemon=True).start()
    except RuntimeError:
        log.exception("%s: no thread for a connection", name)
        connection.close()
