"""The server's side of HTTP/1.1 over any byte stream, with limits on size and time."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator

from ..errors import MissingDependency, SandboxError
from ..sandboxes import Connection
from ..types import JsonObject

try:
    import h11
except ImportError as error:
    raise MissingDependency("the gateway needs h11: pip install 'swe-gym[agents]'") from error

BLOCK = 1 << 16
"""Bytes to receive at once."""

HEADERS = 64 << 10
"""Bytes of the request line and headers."""

AHEAD = 1 << 20
"""Bytes that a client may send before it has the last answer."""


GONE = (OSError, SandboxError)
"""Errors of a connection: the client is gone or too slow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits on one connection.

    Attributes:
        body: Bytes of a request's body.
        receive: Seconds in which the first request must begin, and in which a whole request must arrive after its first
            byte.
        send: Seconds in which the client must take a part of an answer.
        idle: Seconds between an answer and the next request.
        wait: Seconds after which a stream without an answer starts, and between its signs of life.
    """

    body: int = 16 << 20
    receive: float = 60.0
    send: float = 60.0
    idle: float = 3600.0
    wait: float = 10.0


class HttpRequest:
    """A request.

    Args:
        method: Method in capitals.
        path: Path without the query.
        headers: Headers, names in lower case.
        body: Body.
        alive: Returns whether the client still waits.

    Attributes:
        size: Bytes of the body.
    """

    def __init__(
        self, method: str, path: str, headers: dict[str, str], body: bytes, alive: Callable[[], bool] = lambda: True
    ) -> None:
        self.method, self.path, self.headers, self.alive = method, path, headers, alive
        self.size = len(body)
        self._body = body

    def take_body(self) -> bytes:
        """Return the body and forget it: its answer may take an hour."""
        body, self._body = self._body, b""
        return body


@dataclasses.dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response.

    Attributes:
        status: Status code.
        body: JSON, or the pieces of a stream of events.
        headers: Further headers.
        sent: Called once, with whether the client took the whole response.
    """

    status: int
    body: JsonObject | Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()
    sent: Callable[[bool], None] = lambda _: None


Respond = Callable[[HttpRequest], HttpResponse]


def serve(
    connection: Connection, respond: Respond, limits: HttpLimits, on_idle: Callable[[bool], None] = lambda _: None
) -> None:
    """Answer requests until the client ends the connection or breaks the protocol. Closes the connection.

    Args:
        connection: Connection to the client.
        respond: Answers a request. It must not raise.
        limits: Limits on size and time.
        on_idle: Called with True when the connection waits for another request, and with False when one begins.
    """
    wire = _Wire(connection, limits, on_idle)
    with contextlib.closing(connection), contextlib.suppress(*GONE):
        while wire.exchange(respond):
            pass


class _BadRequest(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Wire:
    def __init__(self, connection: Connection, limits: HttpLimits, on_idle: Callable[[bool], None]) -> None:
        self._connection, self._limits, self._on_idle = connection, limits, on_idle
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS)
        self._ahead = 0
        self._fresh = True

    def exchange(self, respond: Respond) -> bool:
        """Answer a request; return whether another one may follow."""
        try:
            request = self._request()
        except _BadRequest as error:
            self._refuse(error.status, str(error))
            return False
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, f"not an HTTP/1.1 request: {error}")
            return False
        if request is None:
            return False
        self._fresh = False
        self._respond(respond(request), request.method)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    # --- receiving ------------------------------------------------------------------------------------------

    def _request(self) -> HttpRequest | None:
        """Return the next request; None if the client ended the connection.

        Raises:
            _BadRequest: It is too large or in an unsupported form.
            h11.RemoteProtocolError: It is not HTTP.
        """
        if not self._http.trailing_data[0] and not self._wait_next():
            return None
        deadline = time.monotonic() + self._limits.receive
        head = self._event(deadline)
        if not isinstance(head, h11.Request):
            return None
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        if headers.get("content-encoding", "identity") != "identity":
            raise _BadRequest(415, "compressed bodies are not supported")
        if int(headers.get("content-length", 0)) > self._limits.body:
            raise _BadRequest(413, f"the body is larger than {self._limits.body} bytes")
        path = head.target.decode("latin-1").partition("?")[0]
        return HttpRequest(head.method.decode(), path, headers, self._body(deadline), self._is_alive)

    def _wait_next(self) -> bool:
        """Wait for a request; return whether there is one."""
        if self._fresh:  # the client connected to send one
            return self._receive(min(self._limits.idle, self._limits.receive))
        self._on_idle(True)
        found = self._receive(self._limits.idle)
        self._on_idle(False)
        return found

    def _body(self, deadline: float) -> bytes:
        body = bytearray()
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(piece := self._event(deadline), h11.Data):
            body += piece.data
            if len(body) > self._limits.body:
                raise _BadRequest(413, f"the body is larger than {self._limits.body} bytes")
        if not isinstance(piece, h11.EndOfMessage):
            raise ConnectionError("the client ended the connection within a request")
        return bytes(body)

    def _event(self, deadline: float) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _BadRequest(408, f"the request did not arrive within {self._limits.receive:g} s")
            with contextlib.suppress(TimeoutError):
                self._receive(left)
        return event

    def _receive(self, timeout: float) -> bool:
        """Receive some bytes; return whether there were any."""
        data = self._connection.recv(BLOCK, timeout=timeout)
        self._http.receive_data(data)
        return bool(data)

    def _is_alive(self) -> bool:
        """Return whether the client still waits for the answer."""
        try:
            if self._ahead > AHEAD or not self._receive(0.0):
                return False
        except TimeoutError:
            return True
        except GONE:
            return False
        self._ahead = len(self._http.trailing_data[0])
        return True

    # --- sending --------------------------------------------------------------------------------------------

    def _respond(self, response: HttpResponse, method: str) -> None:
        whole = False
        try:
            if isinstance(response.body, Iterator):
                self._stream(response, response.body)
            else:
                self._send_whole(response, json.dumps(response.body).encode(), bare=method == "HEAD")
            whole = True
        finally:
            response.sent(whole)

    def _send_whole(self, response: HttpResponse, body: bytes, *, bare: bool = False) -> None:
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *response.headers]
        parts: list[h11.Event] = [h11.Response(status_code=response.status, headers=headers)]
        self._send(*parts, *([] if bare else [h11.Data(data=body)]), h11.EndOfMessage())

    def _stream(self, response: HttpResponse, pieces: Iterator[bytes]) -> None:
        headers = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), *response.headers]
        first: list[h11.Event] = [h11.Response(status_code=response.status, headers=headers)]
        for piece in pieces:
            self._send(*first, h11.Data(data=piece))
            first = []
        self._send(*first, h11.EndOfMessage())

    def _send(self, *events: h11.Event) -> None:
        """Send events in one piece: small pieces would each wait for the client's acknowledgement."""
        data = b"".join(self._http.send(event) or b"" for event in events)
        self._connection.send(data, timeout=self._limits.send)

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that could not be read, and tell the client that the connection ends."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
        self._send_whole(HttpResponse(status, body, (("Connection", "close"),)), json.dumps(body).encode())
