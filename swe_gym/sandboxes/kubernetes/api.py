"""The few calls of the Kubernetes API that sandboxes need, with the official SDK's configuration.

The SDK handles kubeconfigs, service accounts, token plugins, certificates and proxies, and makes the connection pool.
Its generated methods are not used: `stream()` patches the given client, which breaks calls of other threads, and the
models take longer than the calls.
"""

import contextlib
import email.utils
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3
import websocket
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject

from ...errors import UsageError
from ...types import JsonObject
from ..channel import SocketStream, TlsSocket

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Websocket protocols for standard streams, most wanted first."""

CONNECT_SECONDS = 10.0

Object = JsonObject
"""A Kubernetes object as parsed JSON."""


class ApiError(Exception):
    """A request that the API server refused or did not answer.

    Attributes:
        status: HTTP status; 0 without a reply, in which case the request may have been carried out.
        reason: Machine-readable reason, such as "AlreadyExists".
        message: Message of the server or the network.
        retry_after: Seconds that the server asks to wait, if it does.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status or 'no reply'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 429) or self.status >= 500


class Watching:
    """An open watch. Iterate over its events; `close` it from any thread."""

    def __init__(self, response: "urllib3.BaseHTTPResponse") -> None:
        self._response = response
        self._lock = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[Object]:
        """Yield events until the server ends the watch.

        Raises:
            ApiError: The connection broke, or was silent for longer than the read timeout.
        """
        pending = b""
        try:
            for piece in self._response.stream(amt=None, decode_content=False):
                *lines, pending = (pending + piece).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise ApiError(0, "WatchBroke", str(error)) from error
        finally:
            with self._lock:
                self._closed = True
                self._response.close()

    def close(self) -> None:
        """End the iteration, even in another thread."""
        with self._lock:
            connection = None if self._closed else getattr(self._response, "connection", None)
            sock = getattr(connection, "sock", None)
            if sock is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket's own would drop TLS during a read


class Api:
    """A client of one cluster, shared by any number of threads.

    Args:
        kubeconfig: Path of a kubeconfig; None uses `kubectl`'s, else the pod that this process runs in.
        context: Context of the kubeconfig; None is the current one.
        connections: Size of the connection pool.

    Attributes:
        answered: Whether the server has ever replied.

    Raises:
        UsageError: The configuration or the context does not exist.
    """

    def __init__(self, *, kubeconfig: str | None, context: str | None, connections: int = 64) -> None:
        self._configuration, self.namespace = _configure(kubeconfig, context)
        self._configuration.connection_pool_maxsize = connections
        self._pool = RESTClientObject(self._configuration).pool_manager
        self._auth_lock = threading.Lock()  # the SDK's token refresh is not thread-safe
        self._skew = 0.0
        self.answered = False

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host)

    def now(self) -> float:
        """Return seconds since the epoch by the API server's clock, as estimated from its replies."""
        return time.time() + self._skew

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Object:
        """Send one request and return the object of the reply.

        Raises:
            ApiError: The server refused, or did not reply within `timeout` seconds.
        """
        response = self._send(method, path, body, query, timeout, timeout)
        try:
            data = response.data
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, "NoReply", str(error)) from error
        reply = _parse(data)
        if response.status >= 300:
            raise _refusal(response.status, response.headers, reply, data)
        self._learn_time(response.headers.get("Date"))
        return reply

    def watch(self, path: str, *, query: Mapping[str, str], seconds: int) -> Watching:
        """Watch a collection for `seconds`. A connection that is silent for 5 s longer counts as broken.

        Raises:
            ApiError: The server refused (410: the resource version is too old) or did not reply.
        """
        query = {**query, "watch": "true", "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true"}
        response = self._send("GET", path, None, query, CONNECT_SECONDS, seconds + 5.0)
        if response.status >= 300:
            data = response.data
            raise _refusal(response.status, response.headers, _parse(data), data)
        return Watching(response)

    def connect(self, path: str, *, query: Mapping[str, str], timeout: float) -> socket.socket:
        """Open a websocket and return its socket after the handshake.

        Raises:
            ApiError: The server refused, or did not reply within `timeout` seconds.
        """
        url = f"{self.host.replace('http', 'ws', 1)}{path}?{urlencode(query)}"
        headers = [f"authorization: {value}" for value in self._authorization().values()]
        try:
            opened = websocket.create_connection(
                url,
                timeout=max(0.1, timeout),
                header=headers,
                subprotocols=PROTOCOLS,
                sslopt=self._tls(),
                **self._proxy(),
            )
        except websocket.WebSocketBadStatusException as error:
            data = error.resp_body or b""
            headers_received = {str(name).title(): str(value) for name, value in (error.resp_headers or {}).items()}
            raise _refusal(error.status_code, headers_received, _parse(data), data) from error
        except (OSError, websocket.WebSocketException) as error:
            raise ApiError(0, "NoConnection", str(error)) from error
        sock: socket.socket = opened.sock
        return sock

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    # --- inside -----------------------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        connect_timeout: float,
        read_timeout: float,
    ) -> "urllib3.BaseHTTPResponse":
        headers = {**self._authorization(), "Accept": "application/json", "Content-Type": "application/json"}
        try:
            response = self._pool.request(
                method,
                f"{self.host}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=json.dumps(body) if body is not None else None,
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=max(0.1, min(connect_timeout, CONNECT_SECONDS)), read=max(0.1, read_timeout)
                ),
                retries=False,  # only the caller knows what may be sent twice
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, "NoReply", str(error)) from error
        self.answered = True
        return response

    def _authorization(self) -> dict[str, str]:
        with self._auth_lock:
            token = self._configuration.auth_settings().get("BearerToken")
        return {"authorization": str(token["value"])} if token and token["value"] else {}

    def _tls(self) -> JsonObject:
        configuration = self._configuration
        options: JsonObject = {"cert_reqs": ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE}
        given = {
            "ca_certs": configuration.ssl_ca_cert if configuration.verify_ssl else None,
            "certfile": configuration.cert_file,
            "keyfile": configuration.key_file,
            "server_hostname": getattr(configuration, "tls_server_name", None),
            "check_hostname": configuration.assert_hostname if configuration.verify_ssl else False,
        }
        return options | {name: value for name, value in given.items() if value is not None}

    def _proxy(self) -> JsonObject:
        """Return the SDK's proxy; by default, `websocket` would read one from the environment."""
        proxy = self._configuration.proxy
        if not proxy:
            return {"http_no_proxy": ["*"]}
        parts = urlsplit(proxy)
        skipped = [name.strip() for name in (self._configuration.no_proxy or "").split(",") if name.strip()]
        return {
            "http_proxy_host": parts.hostname,
            "http_proxy_port": parts.port,
            "proxy_type": parts.scheme or "http",
            "http_no_proxy": skipped,
            **({"http_proxy_auth": (parts.username, parts.password)} if parts.username else {}),
        }

    def _learn_time(self, date: str | None) -> None:
        with contextlib.suppress(TypeError, ValueError):
            self._skew = email.utils.parsedate_to_datetime(date or "").timestamp() - time.time()


def pods_path(namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the path of a namespace's pods, of one pod, or of its subresource."""
    parts = ["/api/v1/namespaces", quote(namespace, safe=""), "pods", quote(name, safe=""), subresource]
    return "/".join(part for part in parts if part)


def _configure(kubeconfig: str | None, context: str | None) -> tuple[client.Configuration, str]:
    """Return the SDK's client configuration and the namespace of its context."""
    load: Any = config  # not annotated
    configuration = client.Configuration()
    try:
        if kubeconfig or context or _has_kubeconfig() or "KUBERNETES_SERVICE_HOST" not in os.environ:
            path = os.path.expanduser(kubeconfig) if kubeconfig else None
            load.load_kube_config(path, context, client_configuration=configuration)
            contexts, current = load.list_kube_config_contexts(path)
            chosen = next((found for found in contexts if found["name"] == context), current)
            return configuration, chosen["context"].get("namespace") or "default"
        load.load_incluster_config(client_configuration=configuration)
        return configuration, (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except (config.ConfigException, OSError) as error:
        raise UsageError(
            f"no Kubernetes cluster is configured: {str(error).rstrip('.')}. Set KUBECONFIG or the backend "
            "options `kubeconfig` and `context`, or run in a pod with a service account."
        ) from error


def _has_kubeconfig() -> bool:
    return bool(os.environ.get("KUBECONFIG")) or Path("~/.kube/config").expanduser().exists()


def _parse(data: bytes) -> Object:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _refusal(status: int, headers: Mapping[str, str], reply: Object, data: bytes) -> ApiError:
    """Build the error from a `Status` object, or from the reply of a proxy before the API server."""
    message = reply.get("message") or data.decode("utf-8", "replace").strip()[:500]
    asked = headers.get("Retry-After") or (reply.get("details") or {}).get("retryAfterSeconds")
    try:
        retry_after = float(asked) if asked else None
    except ValueError:
        retry_after = None
    return ApiError(status, reply.get("reason") or "", message, retry_after)


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
STDIN, STDOUT, STDERR, STATUS = range(4)
LARGEST_WRITE = 256 << 10
"""Bytes of one message. Some servers close the connection at messages above 1 MiB."""

KEPT_ERRORS = 16 << 10


def open_stream(sock: socket.socket) -> SocketStream:
    """Return a stream over a socket with or without TLS."""
    return SocketStream(TlsSocket(sock) if isinstance(sock, ssl.SSLSocket) else sock)


class FrameReader:
    """Parses the messages of a websocket server from received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()
        self._kind = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take bytes; yield each complete message as (opcode, payload), fragments joined."""
        self._buffer += data
        while (frame := self._next()) is not None:
            final, opcode, payload = frame
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            self._kind = opcode or self._kind
            self._message += payload
            if final:
                yield self._kind, bytes(self._message)
                self._message.clear()

    def _next(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            start += struct.calcsize(form)
            if len(buffer) < start:
                return None
            (size,) = struct.unpack_from(form, buffer, 2)
        if len(buffer) < start + size:
            return None
        head, payload = buffer[0], bytes(buffer[start : start + size])
        del buffer[: start + size]
        return bool(head & 0x80), head & 0x0F, payload


class AttachedStream:
    """A `ByteStream` over the websocket of `pods/attach`. A message is a channel's number and data.

    Attributes:
        errors: The end of the container's standard error.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._frames = FrameReader()
        self._writing = threading.Lock()
        self._ended = False
        self.errors = b""
        self._status = b""

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`."""
        deadline = time.monotonic() + timeout
        output = bytearray()
        while not output and not self._ended:
            received = self._stream.read(deadline - time.monotonic())
            self._ended = not received
            for opcode, payload in self._frames.feed(received):
                self._take(opcode, payload, output)
        return bytes(output)

    def _take(self, opcode: int, payload: bytes, output: bytearray) -> None:
        """Handle one message."""
        if opcode == PING:
            with contextlib.suppress(OSError):  # the next read or write fails
                self._send(PONG, payload, 1.0)
        if opcode == CLOSE:
            self._ended = True
        if opcode not in (TEXT, BINARY) or not payload:
            return
        channel, data = payload[0], payload[1:]
        if channel == STDOUT:
            output += data
        elif channel == STDERR:
            self.errors = (self.errors + data)[-KEPT_ERRORS:]
        elif channel == STATUS:
            self._status = data
            self._ended = True

    def write(self, data: bytes, timeout: float) -> None:
        """See `ByteStream.write`."""
        deadline = time.monotonic() + timeout
        for start in range(0, len(data), LARGEST_WRITE):
            piece = data[start : start + LARGEST_WRITE]
            self._send(BINARY, bytes([STDIN]) + piece, deadline - time.monotonic())

    def last_words(self) -> str:
        """Return the end of standard error, and the server's message if it reported a failure."""
        words = self.errors.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError):
            status = json.loads(self._status or b"{}")
            words += "\n" + status.get("message", "") if status.get("status") == "Failure" else ""
        return words.strip()

    def keep_alive(self) -> None:
        """Send a ping, so that no proxy closes the connection as idle."""
        with contextlib.suppress(OSError):  # the next read or write fails
            self._send(PING, b"", 0.1)

    def _send(self, opcode: int, payload: bytes, timeout: float) -> None:
        frame = websocket.ABNF.create_frame(payload, opcode).format()
        deadline = time.monotonic() + timeout
        if not self._writing.acquire(timeout=max(0.0, timeout)):
            raise TimeoutError
        try:
            self._stream.write(frame, deadline - time.monotonic())
        finally:
            self._writing.release()

    def close(self) -> None:
        """See `ByteStream.close`."""
        self._stream.close()
