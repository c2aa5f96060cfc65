"""An HTTP proxy that knows only some hosts: the network of a sandbox whose `SandboxSpec.network` names them.

The sandbox has no network, and so neither names nor addresses. Its programs find the proxy in `http_proxy` and
`https_proxy`, on a forwarded port. It runs in this process, resolves the names, and connects to public addresses only.
It takes plain HTTP to port 80, one request a connection, and CONNECT to port 443 for TLS that asks for the same name.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ..errors import SandboxError
from ..types import HOST_NAME
from .types import Connection

log = logging.getLogger(__name__)

HTTP_PORT, HTTPS_PORT = 80, 443

HEAD_BYTES = 64 << 10
"""Bytes of a request line with its headers, and of a TLS greeting."""

HEAD_SECONDS = 60.0
DIAL_SECONDS = 20.0

IDLE_SECONDS = 600.0
"""Seconds without a byte either way after which a connection ends."""

LAST_SECONDS = 60.0
"""Seconds without a byte of the host after which a tunnel ends whose client has sent everything."""

LONGEST = 24 * 3600.0

BLOCK = 1 << 16

REQUEST_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]+) HTTP/1\.[01]")
HEADER = re.compile(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)"
)  # blanks are left in: removing them costs n^3
URL = re.compile(r"http://([^/?#@]*)([/?][^#]*)?", re.IGNORECASE)

OWN_HEADERS = frozenset(
    {"host", "connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade"}
)
"""Headers that the proxy sets itself or leaves out."""

HANDSHAKE, CLIENT_HELLO, SERVER_NAME, HOST_TYPE = 22, 1, 0, 0
"""Numbers of TLS: a record, its message, the extension, and the kind of name."""

INTERNET = ipaddress.ip_network("2000::/3")
"""Addresses of IPv6 that are assigned for the internet. Others are local, or stand for one of IPv4."""

METADATA = {ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("192.0.0.192")}
"""Public addresses at which clouds (Azure, Oracle) serve metadata."""

GONE = (OSError, SandboxError)
"""Errors of a connection: one of its ends is gone or too slow."""


class Refused(Exception):
    """A request that is not passed on.

    Attributes:
        status: Status code of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ProxyRequest(NamedTuple):
    """A request to the proxy.

    Attributes:
        host: Host, which the proxy knows.
        head: What is sent to the host; empty if a tunnel is asked for.
        size: Bytes of the body.
    """

    host: str
    head: bytes = b""
    size: int = 0


Dial = Callable[[str, int], socket.socket]
"""Connects to a port of a host. Raises `Refused`."""


class HostProxy:
    """Serves the connections of a forwarded port.

    Args:
        hosts: Entries as `check_network` returns them.
        name: Name of the sandbox, for logs.
        dial: Connects to a host.
    """

    def __init__(self, hosts: Collection[str], name: str = "", dial: Dial | None = None) -> None:
        self._names = {host for host in hosts if not host.startswith("*.")}
        self._endings = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._name = name
        self._dial = dial or dial_public

    def serve(self, connection: Connection) -> None:
        """Serve one request, or one tunnel."""
        with contextlib.closing(connection), contextlib.suppress(*GONE):
            try:
                self._serve(Reader(connection), connection)
            except Refused as error:
                log.info("sandbox %s: the proxy refused: %s", self._name, error)
                body = f"The sandbox's proxy refused this: {error}\n".encode()
                head = f"HTTP/1.1 {error.status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.send(head.encode() + body, timeout=HEAD_SECONDS)

    def knows(self, host: str) -> bool:
        """Return whether a host is on the list."""
        name = host.lower().removesuffix(".")
        return bool(HOST_NAME.fullmatch(name)) and (name in self._names or name.endswith(self._endings))

    def _serve(self, client: Reader, connection: Connection) -> None:
        request = self._read(client.until(b"\r\n\r\n", HEAD_BYTES))
        with self._dial(request.host, HTTP_PORT if request.head else HTTPS_PORT) as upstream:
            if request.head:
                upstream.sendall(request.head)
                HostRelay(client, connection, upstream, request.size).run()
                return
            connection.send(b"HTTP/1.1 200 Connection established\r\n\r\n", timeout=HEAD_SECONDS)
            greeting = _read_greeting(client)
            asked = read_server_name(greeting)
            if (asked or "").lower() != request.host:
                log.info("sandbox %s: a tunnel to %s asked for %r: closed", self._name, request.host, asked)
                return
            upstream.sendall(greeting)
            HostRelay(client, connection, upstream).run()

    def _read(self, head: bytes) -> ProxyRequest:
        """Read the head of a request.

        Raises:
            Refused: It is malformed, or its host or port is not allowed.
        """
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        match = REQUEST_LINE.fullmatch(first)
        headers = [HEADER.fullmatch(line) for line in lines]
        if match is None or None in headers:
            raise Refused(400, "the request is malformed")
        method, target = match.groups()
        if method == "CONNECT":
            return ProxyRequest(self._check(target, HTTPS_PORT, "a tunnel"))
        if (url := URL.fullmatch(target)) is None:
            raise Refused(400, "the target is not the URL of a host, http://HOST/PATH")
        place, path = url.groups()
        host = self._check(place if ":" in place else f"{place}:{HTTP_PORT}", HTTP_PORT, "plain HTTP")
        pairs = [(found[1], found[2].strip(" \t")) for found in headers if found is not None]
        path = path if (path or "").startswith("/") else f"/{path or ''}"
        kept = "".join(f"{name}: {value}\r\n" for name, value in pairs if name.lower() not in OWN_HEADERS)
        sent = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{kept}\r\n"
        return ProxyRequest(host, sent.encode("latin-1"), _read_size(pairs))

    def _check(self, place: str, port: int, what: str) -> str:
        """Return the host of `HOST:PORT`, or refuse it."""
        host, _, given = place.rpartition(":")
        if not self.knows(host):
            raise Refused(403, f"host {host!r} is not among the allowed ones")
        if given != str(port):
            raise Refused(403, f"{what} reaches port {port} only, not {given}")
        return host.lower().removesuffix(".")


def proxy_variables(port: int) -> Mapping[str, str]:
    """Return the variables by which programs find a proxy on a port of their own loopback, which they reach directly.

    Sandboxes have the host name `sandbox`.
    """
    proxy, local = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1,0.0.0.0,sandbox"
    named = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": local}
    return {**named, **{name.upper(): value for name, value in named.items()}, "NODE_USE_ENV_PROXY": "1"}


# --- reading what a client sends --------------------------------------------------------------------------------


class Reader:
    """Reads a connection with limits on size and time. What was read too far stays for the next call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ahead = b""

    def take(self, most: int, timeout: float) -> bytes:
        """Return up to `most` bytes; none once the client has sent everything."""
        data = self._ahead or self._connection.recv(BLOCK, timeout=timeout)
        self._ahead = data[most:]
        return data[:most]

    def until(self, mark: bytes, most: int) -> bytes:
        """Return everything up to and including a mark.

        Raises:
            Refused: It does not come within `most` bytes and `HEAD_SECONDS`.
        """
        found, end = b"", time.monotonic() + HEAD_SECONDS
        while mark not in found:
            data = self.take(BLOCK, max(0.0, end - time.monotonic()))
            found += data
            if not data or len(found) > most:
                raise Refused(400, f"no request of at most {most} bytes")
        head, _, rest = found.partition(mark)
        self._ahead = rest + self._ahead
        return head + mark

    def exactly(self, size: int, end: float) -> bytes:
        """Return `size` bytes, fewer if the client has sent everything."""
        found = b""
        while len(found) < size and (data := self.take(size - len(found), max(0.0, end - time.monotonic()))):
            found += data
        return found


def _read_size(headers: Collection[tuple[str, str]]) -> int:
    """Return the bytes of a request's body.

    Raises:
        Refused: The headers do not tell it without doubt.
    """
    found = {name.lower(): value for name, value in headers if name.lower() in ("content-length", "transfer-encoding")}
    sizes = [value for name, value in headers if name.lower() == "content-length"]
    if "transfer-encoding" in found:
        raise Refused(411, "a body needs a Content-Length")
    if len(sizes) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes):
        raise Refused(400, "the Content-Length is invalid")
    return int(sizes[0]) if sizes else 0


def _read_greeting(client: Reader) -> bytes:
    """Return the TLS records that hold a client's greeting, or what came instead."""
    records, message, end = b"", b"", time.monotonic() + HEAD_SECONDS
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        header = client.exactly(5, end)
        size = int.from_bytes(header[3:5], "big")
        content = client.exactly(size, end) if header[:1] == bytes([HANDSHAKE]) else b""
        records, message = records + header + content, message + content
        if not content or len(content) < size or len(records) > HEAD_BYTES:
            break
    return records


def read_server_name(records: bytes) -> str | None:
    """Return the name for which the TLS records of a client's greeting ask; None if they name none."""
    message = b""
    while len(records) >= 5:
        size = int.from_bytes(records[3:5], "big")
        message += records[5 : 5 + size] if records[0] == HANDSHAKE else b""
        records = records[5 + size :]
    if message[:1] != bytes([CLIENT_HELLO]):
        return None
    body = Fields(message[4 : 4 + int.from_bytes(message[1:4], "big")])
    try:
        body.skip(2 + 32)
        for width in (1, 2, 1):  # session, ciphers, compression
            body.field(width)
        extensions = Fields(body.field(2))
        while extensions.left:
            kind, content = extensions.number(2), extensions.field(2)
            if kind == SERVER_NAME:
                names = Fields(Fields(content).field(2))
                return names.field(2).decode("ascii") if names.number(1) == HOST_TYPE else None
    except (IndexError, UnicodeDecodeError):
        return None
    return None


class Fields:
    """The fields of a binary message, read in order. A missing byte is an IndexError."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    def skip(self, size: int) -> bytes:
        """Return the next bytes."""
        if len(self.left) < size:
            raise IndexError("the message is cut")
        found, self.left = self.left[:size], self.left[size:]
        return found

    def number(self, width: int) -> int:
        """Return a number."""
        return int.from_bytes(self.skip(width), "big")

    def field(self, width: int) -> bytes:
        """Return a field that starts with its length."""
        return self.skip(self.number(width))


# --- the other side ---------------------------------------------------------------------------------------------


def dial_public(host: str, port: int) -> socket.socket:
    """Connect to a host, at a public address.

    Raises:
        Refused: It has none, or does not answer.
    """
    try:
        found = socket.getaddrinfo(f"{host}.", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused(502, f"host {host} has no address: {error}") from error
    addresses = [str(address[0]) for *_, address in found if is_public(str(address[0]))]
    if not addresses:
        raise Refused(403, f"host {host} has no public address")
    failure: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=DIAL_SECONDS)
        except OSError as error:
            failure = error
    raise Refused(502, f"host {host} does not answer: {failure}")


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet, and neither this machine's nor its network's."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found in METADATA or (found.version == 6 and found not in INTERNET):
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None:
            return False  # it stands for another address
    return found.is_global and not found.is_multicast


class HostRelay:
    """Carries bytes both ways until the host has sent everything: from the client `size` bytes, or all.

    A client that is gone, or a sandbox that ends, ends it. A tunnel's client may have sent everything and still read.
    """

    def __init__(
        self, client: Reader, connection: Connection, upstream: socket.socket, size: int | None = None
    ) -> None:
        self._client, self._connection, self._upstream, self._size = client, connection, upstream, size
        self._moved = time.monotonic()  # when bytes last went either way
        self._ended = threading.Event()

    def run(self) -> None:
        """Carry everything, and end the host's connection."""
        self._upstream.settimeout(IDLE_SECONDS)
        sender = threading.Thread(target=self._send, name="proxy to a host", daemon=True)
        sender.start()
        try:
            while data := self._receive():
                self._connection.send(data, timeout=IDLE_SECONDS)
                self._moved = time.monotonic()
        finally:
            self._ended.set()
            self._shut(socket.SHUT_RDWR)
            self._connection.close()
            sender.join()

    def _receive(self) -> bytes:
        """Return bytes of the host; none once it has sent everything."""
        while True:
            try:
                return self._upstream.recv(BLOCK)
            except TimeoutError:
                if time.monotonic() - self._moved >= IDLE_SECONDS:
                    raise

    def _send(self) -> None:
        """Carry the client's bytes to the host."""
        left = self._size
        try:
            while left != 0 and (data := self._client.take(BLOCK if left is None else min(BLOCK, left), LONGEST)):
                self._upstream.sendall(data)
                self._moved = time.monotonic()
                left = None if left is None else left - len(data)
            if left is None:
                self._shut(socket.SHUT_WR)
                self._await_rest()
            while left == 0 and self._client.take(BLOCK, LONGEST):
                pass  # nothing after the body is passed on
        except GONE:
            pass
        self._shut(socket.SHUT_RDWR)

    def _await_rest(self) -> None:
        """Wait until the host has sent everything, or nothing for a while: it may be that nobody reads any more."""
        while not self._ended.wait(LAST_SECONDS) and time.monotonic() - self._moved < LAST_SECONDS:
            pass

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._upstream.shutdown(how)
