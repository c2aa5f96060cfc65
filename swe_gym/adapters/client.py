"""A client of `swe-gym serve`: messages over a WebSocket, which is one session on the server."""

import contextlib
import json
import os
import socket
import struct
import threading
from urllib.parse import urlsplit

from ..errors import MissingDependency, SandboxClosed, SandboxError, SandboxLost, SandboxStartError, UsageError
from ..types import JsonObject

try:
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingDependency(f"RemoteEnv needs websockets: pip install 'swe-gym[remote]' ({error})") from error

MAX_ANSWER = 64 << 20
"""Maximum bytes of an answer of the server."""

CLOSE_SECONDS = 5.0
"""Seconds to wait until the server has closed the sandbox."""


class EnvClient:
    """A session on a server. A message with `reconnect` opens it, `close` ends it. One message at a time.

    Args:
        url: Address of the server.
        token: Token of the server. None reads the variable SWE_GYM_TOKEN.
        timeout: Seconds that an answer may take.
        connect_timeout: Seconds to connect.

    Raises:
        UsageError: The address or the token is invalid.
    """

    def __init__(self, url: str, *, token: str | None, timeout: float, connect_timeout: float) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"{url!r} is not the address of a server: write for example http://127.0.0.1:8000")
        self._url, self._timeout, self._connect_timeout = url.rstrip("/"), timeout, connect_timeout
        self._token = (token or os.environ.get("SWE_GYM_TOKEN", "")).strip()  # a file's last line ends with "\n"
        if not self._token.isprintable():
            raise UsageError("the token has characters that no HTTP header may have, such as a line break")
        self._connection: ClientConnection | None = None
        self._lock = threading.Lock()  # held during a call
        self._closed = False  # since the last call began

    def close(self) -> None:
        """Close the session. Idempotent, from any thread; a running call ends within seconds."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._lock.acquire(blocking=False):  # the server answers once the sandbox is closed
            try:
                with contextlib.suppress(WebSocketException, OSError):
                    connection.send(json.dumps({"type": "close"}))
                    connection.recv(CLOSE_SECONDS)
            finally:
                self._lock.release()
        connection.close()

    def ask(self, kind: str, data: JsonObject | None = None, *, reconnect: bool = False) -> JsonObject:
        """Send a message and return the data of the answer.

        Args:
            kind: Type of the message.
            data: Its data.
            reconnect: Whether to open a session if there is none.

        Raises:
            UsageError: The server refused it.
            SandboxStartError: The server cannot be reached, or is full.
            SandboxLost: The connection was lost, or the server did not answer in time.
            SandboxClosed: The environment was closed meanwhile.
        """
        message = json.dumps({"type": kind} if data is None else {"type": kind, "data": data})
        with self._lock:
            self._closed = False
            if reconnect and not self._is_open():
                self._connection = opened = self._connect()
                if self._closed:  # while it connected
                    self._connection = None
                    opened.close()
            connection = self._connection
            if connection is None:
                raise SandboxClosed("the environment was closed")
            try:
                return self._exchange(connection, message)
            except SandboxError as error:
                closed, self._connection = self._connection is None, None
                connection.close()
                if closed:
                    raise SandboxClosed("the environment was closed during the call") from error
                raise

    def _exchange(self, connection: ClientConnection, message: str) -> JsonObject:
        try:
            with contextlib.suppress(ConnectionClosed):  # perhaps an error was sent before: read it
                connection.send(message)
            return _data(json.loads(connection.recv(self._timeout)))
        except UsageError:
            raise
        except TimeoutError as error:
            raise SandboxLost(f"the server did not answer within {self._timeout:g} s", reason="server") from error
        except (WebSocketException, OSError) as error:
            raise SandboxLost(f"the connection to the server was lost: {error}", reason="server") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxLost(f"the server sent an invalid answer: {error}", reason="server") from error

    def _is_open(self) -> bool:
        """Return whether the session is there; the server may have closed it while it was idle."""
        if self._connection is not None:
            with contextlib.suppress(WebSocketException, OSError):
                self._connection.ping()
                return self._connection.close_code is None
        return False

    def _connect(self) -> ClientConnection:
        local = urlsplit(self._url).hostname in ("127.0.0.1", "localhost", "::1")
        try:
            connection = connect(
                f"ws{self._url.removeprefix('http')}/ws",
                additional_headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                open_timeout=self._connect_timeout,
                close_timeout=1.0,
                max_size=MAX_ANSWER,
                compression=None,
                proxy=None if local else True,
            ).__enter__()  # what all versions of the library have in common; `close` ends it
        except InvalidStatus as error:
            said = (error.response.body or b"").decode("utf-8", "replace").strip()
            if error.response.status_code == 401:
                said = "missing or wrong token: pass token=..., or set SWE_GYM_TOKEN"
            raise UsageError(f"{self._url} refused the connection ({error.response.status_code}): {said}") from error
        except (WebSocketException, OSError) as error:
            raise SandboxStartError(f"cannot connect to {self._url}: {error}", retryable=True) from error
        wait = struct.pack("ll", int(self._connect_timeout) + 1, 0)
        with contextlib.suppress(OSError):  # the server closed it: the first message tells why
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)  # `send` has no deadline
        return connection


def _data(answer: JsonObject) -> JsonObject:
    """Return the data of an answer.

    Raises:
        UsageError: It is an error of the caller.
        SandboxStartError: The server is full.
        SandboxLost: The server closed the session.
    """
    data: JsonObject = answer["data"]
    if answer["type"] != "error":
        return data
    code, message = data["code"], data["message"]
    if code == "CAPACITY_REACHED":
        raise SandboxStartError(f"the server is full: {message}", reason="capacity", retryable=True)
    if code == "SESSION_ERROR":
        raise SandboxLost(f"the server closed the session: {message}", reason="expired")
    raise UsageError(str(message))
