"""Forwarded ports: connections to a port of the sandbox's loopback, relayed to the host in frames.

Either end may send `WINDOW` bytes of a connection before the other end has passed them on. So a connection that nobody
reads holds a bounded number of bytes on each side, and delays nothing else.
"""

import errno
import functools
import itertools
import select
import socket
import time

from ..protocol import (
    FORWARD_CLOSE,
    FORWARD_DATA,
    FORWARD_END,
    FORWARD_OPEN,
    FORWARD_TAKEN,
    FORWARD_WAIT,
    PIECE,
    WINDOW,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol import (
        ConnectionRequest,
        ForwardEvent,
        ForwardRequest,
        ListenReply,
        ListenRequest,
        Nothing,
        TakenRequest,
    )
    from .loop import Answer, Loop

BACKLOG = 128  # connections that wait to be accepted
CROWDED = 1 << 20  # bytes that wait for the host; above it, no connection is read
STALLED = (
    60.0  # seconds after which a client that does not read loses the rest of a connection that the host has closed
)
LINGER = 5.0  # seconds that a client then has to close it too
PAUSE = 0.1  # seconds between attempts to accept if no descriptor is left


class Listener:
    """A forwarded port.

    Attributes:
        tunnels: The connections, at most `limit`.
        waiting: The request to answer once the port is closed.
        resume: The time at which to accept again, or None.
    """

    def __init__(self, number: int, sock: "socket.socket", limit: int) -> None:
        self.number = number
        self.sock = sock
        self.limit = limit
        self.tunnels: set[Tunnel] = set()
        self.waiting: ForwardRequest | None = None
        self.resume: float | None = None


class Tunnel:
    """A connection.

    Attributes:
        credit: Bytes that the host still takes.
        pending: The host's bytes that the client has not taken yet.
        taken: Bytes that the client took, and of which the host was not told.
        ended: Whether the client has sent everything.
        gone: Whether the client is gone. The connection counts until the host closes it.
        last: The time at which a connection that the host has closed is given up, or None.
        shut: Whether the client was told of the end.
    """

    def __init__(self, number: int, listener: Listener, sock: "socket.socket") -> None:
        self.number = number
        self.listener = listener
        self.sock = sock
        self.credit = WINDOW
        self.pending = bytearray()
        self.taken = 0
        self.ended = False
        self.gone = False
        self.last: float | None = None
        self.shut = False
        self.events = 0


class Forwards:
    """The forwarded ports, by the number that the host gave each, and all of their connections."""

    def __init__(self, loop: "Loop") -> None:
        self.loop = loop
        self.listeners: dict[int, Listener] = {}
        self.tunnels: dict[int, Tunnel] = {}
        self.leaving: set[Tunnel] = set()  # closed by the host
        self.crowded = False  # some connections are not read
        self.numbers = itertools.count(1)
        loop.timed.append(self)
        loop.offer(FORWARD_OPEN, self.forward_open)
        loop.offer(FORWARD_WAIT, self.forward_wait)
        loop.offer(FORWARD_CLOSE, self.forward_close)
        loop.offer(FORWARD_DATA, self.forward_data)
        loop.offer(FORWARD_TAKEN, self.forward_taken)
        loop.offer(FORWARD_END, self.forward_end)

    def deadlines(self) -> "list[float]":
        resume = [listener.resume for listener in self.listeners.values() if listener.resume]
        return resume + [tunnel.last for tunnel in self.leaving if tunnel.last]

    def check(self, now: float) -> None:
        for tunnel in [tunnel for tunnel in self.leaving if tunnel.last and now >= tunnel.last]:
            self.remove(tunnel)
        for listener in self.listeners.values():
            if listener.resume and now >= listener.resume:
                listener.resume = None
                self.watch_listener(listener)
        if self.crowded and len(self.loop.outgoing) < CROWDED // 2:
            self.crowded = False
            for tunnel in self.tunnels.values():
                self.watch(tunnel)

    # --- operations -------------------------------------------------------------------------------------

    def forward_open(self, request: "ListenRequest", _: bytes) -> "Answer[ListenReply]":
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            return {"port": 0, "unsupported": error.strerror or str(error)}, b""
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", request["port"]))
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        listener = Listener(request["forward"], sock, request["max_connections"])
        self.listeners[listener.number] = listener
        self.watch_listener(listener)
        return {"port": sock.getsockname()[1], "unsupported": ""}, b""

    def forward_wait(self, request: "ForwardRequest", _: bytes) -> "Answer[Nothing] | None":
        listener = self.listeners.get(request["forward"])
        if listener is None:
            return {}, b""
        listener.waiting = request
        return None

    def forward_close(self, request: "ForwardRequest", _: bytes) -> "Answer[Nothing]":
        listener = self.listeners.pop(request["forward"], None)
        if listener:
            self.loop.unwatch(listener.sock.fileno())
            listener.sock.close()
            for tunnel in list(listener.tunnels):
                self.remove(tunnel)
            if listener.waiting:
                self.loop.reply(listener.waiting, {})
        return {}, b""

    def forward_data(self, request: "ConnectionRequest", data: bytes) -> None:
        tunnel = self.tunnels.get(request["connection"])
        if tunnel and not tunnel.gone:
            tunnel.pending += data
            self.write(tunnel)
            self.watch(tunnel)

    def forward_taken(self, request: "TakenRequest", _: bytes) -> None:
        tunnel = self.tunnels.get(request["connection"])
        if tunnel:
            tunnel.credit += request["size"]
            self.watch(tunnel)

    def forward_end(self, request: "ConnectionRequest", _: bytes) -> None:
        """Close a connection once the client has the rest; what it still sends is discarded."""
        tunnel = self.tunnels.get(request["connection"])
        if tunnel is None or tunnel.gone:
            self.remove(tunnel)
            return
        tunnel.last = time.monotonic() + STALLED
        self.leaving.add(tunnel)
        self.hang_up(tunnel)
        self.watch(tunnel)

    # --- connections --------------------------------------------------------------------------------------

    def watch_listener(self, listener: Listener) -> None:
        if len(listener.tunnels) < listener.limit and not listener.resume:
            self.loop.watch(listener.sock.fileno(), select.POLLIN, lambda _: self.on_client(listener))
        else:
            self.loop.unwatch(listener.sock.fileno())

    def on_client(self, listener: Listener) -> None:
        try:
            sock, _ = listener.sock.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED):
                listener.resume = time.monotonic() + PAUSE  # no descriptor is left
                self.watch_listener(listener)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tunnel = Tunnel(next(self.numbers), listener, sock)
        self.tunnels[tunnel.number] = tunnel
        listener.tunnels.add(tunnel)
        self.watch_listener(listener)
        self.tell(tunnel, {"forward": listener.number})
        self.watch(tunnel)

    def tell(self, tunnel: Tunnel, event: "ForwardEvent", data: bytes = b"") -> None:
        self.loop.send(dict(event, event="forward", connection=tunnel.number), data)

    def watch(self, tunnel: Tunnel) -> None:
        """Wait for what the connection can do next. A connection that can do nothing is not polled."""
        if tunnel.gone:
            return
        events = select.POLLOUT if tunnel.pending else 0
        if not tunnel.ended and (tunnel.credit or tunnel.last):
            if len(self.loop.outgoing) < CROWDED:
                events |= select.POLLIN
            else:
                self.crowded = True
        if events != tunnel.events:
            tunnel.events = events
            if events:
                self.loop.watch(tunnel.sock.fileno(), events, functools.partial(self.on_ready, tunnel))
            else:
                self.loop.unwatch(tunnel.sock.fileno())

    def on_ready(self, tunnel: Tunnel, _: int) -> None:
        reads = tunnel.events & select.POLLIN
        if tunnel.pending:
            self.write(tunnel)
        if reads and not tunnel.gone and len(self.loop.outgoing) < CROWDED:
            self.read(tunnel)
        self.watch(tunnel)

    def read(self, tunnel: Tunnel) -> None:
        try:
            data = tunnel.sock.recv(PIECE if tunnel.last else min(tunnel.credit, PIECE))
        except BlockingIOError:
            return
        except OSError:
            self.lose(tunnel)
            return
        if not data:
            tunnel.ended = True
        if tunnel.last:
            self.hang_up(tunnel)
        elif data:
            tunnel.credit -= len(data)
            self.tell(tunnel, {}, data)
        else:
            self.tell(tunnel, {"end": True})

    def write(self, tunnel: Tunnel) -> None:
        try:
            while tunnel.pending:
                sent = tunnel.sock.send(tunnel.pending[:PIECE])
                del tunnel.pending[:sent]
                tunnel.taken += sent
        except BlockingIOError:
            pass
        except OSError:
            self.lose(tunnel)
            return
        if tunnel.last:
            tunnel.last = time.monotonic() + STALLED
            self.hang_up(tunnel)
        elif tunnel.taken >= WINDOW // 2:
            self.tell(tunnel, {"taken": tunnel.taken})
            tunnel.taken = 0

    def hang_up(self, tunnel: Tunnel) -> None:
        """End a connection that the host has closed, as far as the client lets us."""
        if tunnel.pending:
            return
        if tunnel.ended:
            self.remove(tunnel)
        elif not tunnel.shut:
            tunnel.shut = True
            tunnel.last = time.monotonic() + LINGER
            try:
                tunnel.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.remove(tunnel)

    def lose(self, tunnel: Tunnel) -> None:
        """Give up a connection whose client is gone."""
        if tunnel.last:
            self.remove(tunnel)
            return
        self.release(tunnel)
        self.tell(tunnel, {"gone": True})

    def remove(self, tunnel: "Tunnel | None") -> None:
        """Forget a connection, so that another may take its place."""
        if tunnel is None:
            return
        self.release(tunnel)
        self.tunnels.pop(tunnel.number, None)
        self.leaving.discard(tunnel)
        tunnel.listener.tunnels.discard(tunnel)
        if tunnel.listener.number in self.listeners:
            self.watch_listener(tunnel.listener)

    def release(self, tunnel: Tunnel) -> None:
        if not tunnel.gone:
            tunnel.gone = True
            tunnel.pending.clear()
            self.loop.unwatch(tunnel.sock.fileno())
            tunnel.sock.close()
