"""A base class for HTTP test servers on the loopback interface that fail on command.

Subclass `LoopbackServer` and write `answer`. It needs only the standard library.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fnmatch
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from ..types import Json


@dataclasses.dataclass
class ServerFault:
    """A failure of requests to a path.

    Attributes:
        path: Pattern (fnmatch) of the path, or of path and query: "/v1/*", "*watch=true*".
        method: "GET", "POST", "DELETE", or "*".
        times: Number of requests that fail; None is unlimited.
        skip: Number of matching requests that succeed before.
        status: HTTP status of an error reply; the request is not carried out.
        done: Whether the request is carried out before the error reply.
        headers: Headers of the error reply, such as `{"Retry-After": "1"}`.
        message: Message of the error reply, in the server's form of errors.
        body: Whole JSON of the error reply, instead of `message`.
        drop: Close the connection; the request is not carried out.
        hang: Accept the request and never reply.
        delay: Seconds before the request is carried out.
        lose_reply: Carry out the request and close the connection without a reply.
        cut_after: Number of bytes of the reply's body after which the connection is closed.
    """

    path: str
    method: str = "*"
    times: int | None = 1
    skip: int = 0
    status: int | None = None
    done: bool = False
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    message: str = "a fault of the test server"
    body: Json = None
    drop: bool = False
    hang: bool = False
    delay: float = 0.0
    lose_reply: bool = False
    cut_after: int | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """A received request.

    Attributes:
        method: HTTP method, such as "POST".
        path: Path without the query.
        query: Parameters of the query.
        key: API key from `X-API-Key` or the bearer token.
        body: Parsed JSON body; None if the body is not JSON.
        headers: Headers by lower-case name.
        raw: Bytes of the body.
    """

    method: str
    path: str
    query: Mapping[str, str]
    key: str | None
    body: Json
    headers: Mapping[str, str] = dataclasses.field(repr=False)
    raw: bytes = dataclasses.field(repr=False)


class HttpAnswer(Exception):
    """Ends a request with a status and a body: bytes, an object for JSON, or None."""

    def __init__(self, status: int, body: Json = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers or {}


class Drop(Exception):
    """Ends a request by closing the connection."""


class LoopbackServer(abc.ABC):
    """A server with a thread per request. Use it as a context manager.

    Attributes:
        requests: All received requests, in order.
        closing: Set when the server closes.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._faults: list[ServerFault] = []
        self._lock = threading.Lock()
        self._http = _HTTPServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="loopback", daemon=True)

    @abc.abstractmethod
    def answer(self, exchange: Exchange) -> None:
        """Carry out `exchange.asked`: raise `HttpAnswer` or `Drop`, or stream."""

    def error_body(self, status: int, message: str) -> Json:
        """Return the JSON of an error."""
        return {"code": status, "message": message}

    def decode(self, content_type: str, raw: bytes) -> Json:
        """Parse the JSON body of a request; None if it is not JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(raw) if "json" in content_type else None
        return None

    def refuse(self, status: int, message: str) -> HttpAnswer:
        """Return an error reply to raise."""
        return HttpAnswer(status, self.error_body(status, message))

    # --- for tests ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def paths(self) -> list[str]:
        """Return method and path of each received request, in order."""
        return [f"{request.method} {request.path}" for request in self.requests]

    def inject(self, path: str, **fault: Json) -> ServerFault:
        """Add a `ServerFault` with these fields. It ends after its `times`, or with `mend`."""
        made = ServerFault(path, **fault)
        with self._lock:
            self._faults.append(made)
        return made

    def mend(self) -> None:
        """Remove all faults; hanging requests keep hanging."""
        with self._lock:
            self._faults.clear()

    def close(self) -> None:
        """Stop the server and end hanging requests."""
        self.closing.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join(10)
        self._http.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for exchanges ---------------------------------------------------------------------------------------

    def fault_of(self, method: str, *paths: str) -> ServerFault | None:
        """Return the first fault that matches a request, given its path in several forms."""
        with self._lock:
            for fault in self._faults:
                if fault.method not in ("*", method) or not fnmatch.filter(paths, fault.path):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                return fault
        return None


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), Exchange)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class Exchange(BaseHTTPRequestHandler):
    """A connection and its current request.

    Attributes:
        asked: The current request.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HTTPServer
    asked: Request

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    # --- answers ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stream(self, content_type: str, **headers: str) -> Iterator[Callable[[bytes], None]]:
        """Reply in chunks, written with the yielded function."""
        self._head(200, {"Content-Type": content_type, "Transfer-Encoding": "chunked", **headers})
        yield lambda data: self._write(b"%x\r\n%s\r\n" % (len(data), data))
        self._write(b"0\r\n\r\n")

    def upgrade(self, headers: Mapping[str, str]) -> None:
        """Switch the connection to another protocol, carried by `rfile` and `wfile`."""
        self._head(101, headers)

    def _reply(self, answer: HttpAnswer) -> None:
        """Send a complete reply."""
        raw = isinstance(answer.body, bytes)
        data = answer.body if raw else b"" if answer.body is None else json.dumps(answer.body).encode()
        headers = {"Content-Type": "text/plain" if raw else "application/json", **answer.headers}
        if answer.status != 204:
            headers["Content-Length"] = str(len(data))
        self._head(answer.status, headers)
        self._write(data)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        if self._fault and self._fault.lose_reply:
            raise Drop
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, data: bytes) -> None:
        """Write part of the body, as far as a fault allows."""
        if self._left is not None and len(data) > self._left:
            self.wfile.write(data[: self._left])
            raise Drop
        if self._left is not None:
            self._left -= len(data)
        self.wfile.write(data)
        self.wfile.flush()

    # --- requests ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._fault: ServerFault | None = None
        self._left: int | None = None
        try:
            try:
                self._meet()
            except HttpAnswer as answer:
                self._reply(answer)
        except (Drop, OSError):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)

    do_GET = do_POST = do_DELETE = _serve

    def _meet(self) -> None:
        """Read and record the request, apply a fault, then carry it out."""
        owner = self.server.owner
        self.asked = asked = self._read()
        owner.requests.append(asked)
        fault = owner.fault_of(asked.method, asked.path, self.path)
        if fault is None:
            return owner.answer(self)
        if fault.drop:
            raise Drop
        if fault.status:
            if fault.done:
                with contextlib.suppress(HttpAnswer):
                    owner.answer(self)
            body = owner.error_body(fault.status, fault.message) if fault.body is None else fault.body
            raise HttpAnswer(fault.status, body, fault.headers)
        if fault.hang:
            owner.closing.wait()
            raise Drop
        owner.closing.wait(fault.delay)
        self._fault, self._left = fault, fault.cut_after
        return owner.answer(self)

    def _read(self) -> Request:
        address = urlsplit(self.path)
        raw = self._read_body()
        bearer = (self.headers.get("Authorization") or "").partition("Bearer ")[2]
        return Request(
            method=self.command,
            path=address.path,
            query=dict(parse_qsl(address.query)),
            key=self.headers.get("X-API-Key") or bearer or None,
            body=self.server.owner.decode(self.headers.get("Content-Type") or "", raw),
            headers={name.lower(): value for name, value in self.headers.items()},
            raw=raw,
        )

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body
