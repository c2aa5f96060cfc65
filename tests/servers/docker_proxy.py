"""A Docker engine that fails on command: a proxy between a client and a real engine's unix socket.

    with DockerProxy(Fault("POST", "/containers/create", "stall")) as proxy:
        open_sandbox(SandboxSpec(image=..., options={"base_url": proxy.base_url}), "docker")

A `Fault` affects the requests that it matches. `freeze` stops all traffic, like an engine under SIGSTOP, until `thaw`.
`cut` breaks all connections. A request whose reply is lost is still carried out.
"""

import contextlib
import dataclasses
import json
import os
import re
import select
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Literal, NamedTuple, Self

CHUNK = 1 << 16
GLANCE = 0.1
"""Seconds between checks of a stalled connection for the end of the proxy."""

VERSION = re.compile(r"^/v1\.[0-9]+(?=/)")


class Request(NamedTuple):
    """A request of a client. The path includes the query but not the API version."""

    method: str
    path: str


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of one request, or of all matching requests.

    Attributes:
        method: HTTP method.
        path: Regular expression that is searched in the path.
        does: "stall" (no reply), "cut" (close the connection) and "error" (reply `status` and `message`) keep the
            request from the engine. "stall_reply" and "cut_reply" forward it, and stop the reply or stream after
            `after` bytes.
        nth: Number of the matching request that fails, from 1; 0 is all.
        after: Bytes of the reply that pass.
        status: HTTP status of an "error".
        message: Message of an "error".
        headers: Headers of an "error".
    """

    method: str
    path: str
    does: Literal["stall", "cut", "error", "stall_reply", "cut_reply"]
    nth: int = 1
    after: int = 0
    status: int = 500
    message: str = "an error on command"
    headers: tuple[tuple[str, str], ...] = ()


class DockerProxy:
    """A proxy on its own address that forwards requests to the engine and applies faults.

    Args:
        faults: Failures; the first that matches a request and is due applies.
        engine: Path of the engine's socket; None uses DOCKER_HOST, else /var/run/docker.sock.
        tcp: Whether to listen on a port of 127.0.0.1 instead of a unix socket.
        tls: TLS context for clients; needs `tcp`.

    Attributes:
        base_url: Address of the proxy, in the form of DOCKER_HOST.
        requests: All received requests, in order.
    """

    def __init__(
        self, *faults: Fault, engine: str | None = None, tcp: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self._faults = list(faults)
        self._matched = dict.fromkeys(range(len(faults)), 0)
        host = os.environ.get("DOCKER_HOST", "")
        self._engine = engine or (host.removeprefix("unix://") if host.startswith("unix:") else "/var/run/docker.sock")
        self._tls = tls
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._folder = "" if tcp else tempfile.mkdtemp(prefix="docker-proxy-")
        self._listener, self.base_url = self._listen(tcp)

    def _listen(self, tcp: bool) -> tuple[socket.socket, str]:
        if tcp:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        path = os.path.join(self._folder, "docker.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(128)
        return listener, f"unix://{path}"

    # --- on command -----------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Add a fault for later requests."""
        with self._lock:
            self._matched[len(self._faults)] = 0
            self._faults.append(fault)

    def freeze(self) -> None:
        """Stop all traffic. Connections stay open and new ones are accepted."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Resume all traffic, including what was held back."""
        self._flowing.set()

    @property
    def connections(self) -> list[socket.socket]:
        """Open connections on both sides."""
        with self._lock:
            return list(self._open)

    def cut(self) -> None:
        """Break all connections on both sides."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- life -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, break all connections, and wait for all threads. Idempotent."""
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="docker-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    # --- one connection, one request ------------------------------------------------------------------------

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), self._holding(self._with_tls(client)) as client:
            head, rest = _read_head(client)
            if not head:
                return
            fault = self._due(head)
            self._flowing.wait()
            if fault and fault.does in ("stall", "cut", "error"):
                self._refuse(client, fault)
                return
            with self._holding(socket.socket(socket.AF_UNIX)) as upstream:
                upstream.connect(self._engine)
                upstream.sendall(_one_request(head) + rest)
                self._relay(client, upstream, fault)

    def _with_tls(self, client: socket.socket) -> socket.socket:
        if self._tls is None:
            return client
        try:
            return self._tls.wrap_socket(client, server_side=True)
        except OSError:
            client.close()
            raise

    @contextlib.contextmanager
    def _holding(self, connection: socket.socket) -> Iterator[socket.socket]:
        """Register a connection for `cut`, and close it at the end."""
        with self._lock:
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _due(self, head: bytes) -> Fault | None:
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        request = Request(method, VERSION.sub("", target))
        with self._lock:
            self.requests.append(request)
            due = None
            for number, fault in enumerate(self._faults):
                if fault.method == method and re.search(fault.path, request.path):
                    self._matched[number] += 1
                    if fault.nth in (0, self._matched[number]):
                        due = due or fault
            return due

    def _refuse(self, client: socket.socket, fault: Fault) -> None:
        if fault.does == "stall":
            self._stall(client)
        elif fault.does == "error":
            body = json.dumps({"message": fault.message}).encode()
            headers = (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *fault.headers)
            lines = [f"HTTP/1.1 {fault.status} On Command", "Connection: close", *map(": ".join, headers), "", ""]
            client.sendall("\r\n".join(lines).encode("latin-1") + body)

    def _stall(self, client: socket.socket) -> None:
        """Stay silent until the client disconnects or the proxy closes."""
        while not self._closed.is_set():
            if select.select([client], [], [], GLANCE)[0] and not client.recv(CHUNK):
                return

    def _relay(self, client: socket.socket, upstream: socket.socket, fault: Fault | None) -> None:
        """Copy in both directions until the engine closes the connection or a fault is due."""
        left = fault.after if fault else None
        sources = [client, upstream]
        while True:
            ready = select.select(sources, [], [])[0]
            self._flowing.wait()
            if client in ready:
                data = client.recv(CHUNK)
                if data:
                    upstream.sendall(data)
                else:
                    upstream.shutdown(socket.SHUT_WR)
                    sources.remove(client)
            if upstream in ready:
                data = upstream.recv(CHUNK)
                if not data:
                    return
                if left is not None:
                    data, left = data[:left], left - len(data)
                client.sendall(data)
                if fault and left is not None and left <= 0:
                    if fault.does == "stall_reply":
                        self._stall(client)
                    return


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Read the head of a request and the bytes behind it; empty if the client disconnects."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(CHUNK)
        if not chunk:
            return b"", b""
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _one_request(head: bytes) -> bytes:
    """Ask the engine to close the connection after the reply, so that its end marks the end of the reply."""
    if re.search(rb"(?im)^upgrade:", head):
        return head
    return re.sub(rb"(?im)^connection:.*\r\n", b"", head).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
