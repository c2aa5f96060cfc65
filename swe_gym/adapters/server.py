"""The server of an environment: OpenEnv's protocol over WebSocket, one sandbox for each session.

OpenEnv's own server keeps the sandbox of a client that leaves during a step until the step ends, closes idle sessions
during a step, and has no access control.
"""

import contextlib
import ipaddress
import logging
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from ..errors import MissingDependency, UsageError
from .aio import in_thread
from .session import MAX_MESSAGE, ClientSession, Env

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket

    from .session import ClientConversation, MessageRefused, close, schemas
except ImportError as error:
    raise MissingDependency(f"the server needs more packages: pip install 'swe-gym[serve]' ({error})") from error

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 30
"""Seconds for sessions to close when the server stops."""


class EnvServer:
    """Offers an environment over OpenEnv's protocol, while it is open. Each WebSocket at `/ws` is a session.

    A session's environment is closed when its connection ends or idles. `/health` and, for clients with the token,
    `/metrics`, `/metadata`, `/schema` and `/state` answer HTTP requests.

    Args:
        make: Makes the environment of a session; nothing may start before its `reset`. Called once to check it.
        host: Address to listen on.
        port: Port. 0 takes any free port.
        token: Token that clients send as `Authorization: Bearer TOKEN`. None accepts every client.
        sessions: Maximum number of sessions.
        idle: Seconds without a message after which a session is closed.
        allowed_hosts: Host names by which clients may call the server, besides localhost and IP addresses.
        certificate: Certificate file; with it, the server speaks TLS.
        key: File of the certificate's key.

    Attributes:
        url: Address of the server.

    Raises:
        UsageError: The environment cannot be made, the token or the certificate is invalid, or the port is in use.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        sessions: int = 64,
        idle: float = 600.0,
        allowed_hosts: Sequence[str] = (),
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._make, self._access = make, AccessRules(token, allowed_hosts)
        self._limit, self._idle = sessions, idle
        self._counts: Counter[str] = Counter()
        self._active = 0
        with contextlib.closing(make()) as env:
            self._state = ClientSession(env).state()
        self._server = uvicorn.Server(_config(self._app(), certificate, key))
        self._socket = listen(host, port)
        self._thread = threading.Thread(target=self.run, name="server", daemon=True)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if certificate else ''}://{name}:{self._socket.getsockname()[1]}"

    def run(self) -> None:
        """Serve until `close`, SIGTERM or SIGINT, and close every session."""
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Close every session and stop. Idempotent; from any thread."""
        self._server.should_exit = True
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS + 10)
        self._socket.close()

    def __enter__(self) -> Self:
        """Serve in a thread. Clients can connect at once."""
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- HTTP -------------------------------------------------------------------------------------------------

    def _app(self) -> Any:
        answers: dict[str, Callable[[], Response]] = {
            UNPROTECTED: lambda: JSONResponse({"status": "healthy"}),
            "/metrics": lambda: PlainTextResponse(self.metrics()),
            "/metadata": lambda: JSONResponse({"name": self._state["env_id"], "description": "A swe_gym environment"}),
            "/schema": lambda: JSONResponse(schemas()),
            "/state": lambda: JSONResponse(self._state),
        }

        async def answer(request: Request) -> Response:
            return answers[request.scope["path"]]()

        routes = [Route(path, answer, methods=["GET"]) for path in answers]
        refusals = [Route(path, _refuse_http, methods=["POST"]) for path in ("/reset", "/step")]
        app = Starlette(routes=[*routes, *refusals, WebSocketRoute("/ws", self._serve)])

        async def guard(scope: Any, receive: Any, send: Any) -> None:
            status, reason = self._access.refusal(HTTPConnection(scope))
            self._counts["refused"] += bool(status)
            answering = PlainTextResponse(f"{reason}\n", status) if status else app
            try:
                await answering(scope, receive, send)
            except Exception:
                logger.exception("the server failed to answer")
                raise

        return guard

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        gauges = {"sessions": self._active, "sessions_limit": self._limit}
        lines = [f"# TYPE swe_gym_{name} gauge\nswe_gym_{name} {value}\n" for name, value in gauges.items()]
        for name in ("sessions", "steps", "episodes", "infra_failures", "errors", "refused"):
            lines.append(f"# TYPE swe_gym_{name}_total counter\nswe_gym_{name}_total {self._counts[name]}\n")
        return "".join(lines)

    # --- sessions ---------------------------------------------------------------------------------------------

    async def _serve(self, websocket: WebSocket) -> None:
        """Serve one session. Its place is free again once its environment is closed."""
        await websocket.accept()
        if self._active >= self._limit:
            self._counts["refused"] += 1
            await close(websocket, MessageRefused("CAPACITY_REACHED", f"all {self._limit} sessions are in use"), 1013)
            return
        self._active += 1
        self._counts["sessions"] += 1
        session = None
        try:
            session = ClientSession(await in_thread(self._make, lambda: None))
            reason, code = await ClientConversation(websocket, session, self._counts, self._idle).run()
        finally:
            if session is not None:
                await in_thread(session.close, lambda: None)
            self._active -= 1
        await close(websocket, reason, code)


async def _refuse_http(_request: Request) -> Response:
    return JSONResponse({"detail": "an HTTP request has no session: connect a WebSocket to /ws"}, 501)


def listen(host: str, port: int, advice: str = "choose another --host or --port") -> socket.socket:
    """Open the listening socket.

    Args:
        host: Address to listen on.
        port: Port; 0 picks a free one.
        advice: What to do if it cannot be opened.

    Raises:
        UsageError: The address is unknown or in use.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=512)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # for its connections: asyncio leaves it unset
        return listening
    except OSError as error:
        raise UsageError(f"cannot listen on {host}, port {port} ({error.strerror}): {advice}") from error


def _config(app: Any, certificate: Path | None, key: Path | None) -> Any:
    """Return the configuration of the web server, its certificate loaded.

    Raises:
        UsageError: The certificate or its key is invalid.
    """
    if key and not certificate:
        raise UsageError(f"the key {key} needs its certificate: pass both")
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        log_config=None,
        log_level=logging.CRITICAL,  # it reports each refused client as an error; `guard` logs what fails
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as error:
        raise UsageError(
            f"the certificate {certificate} or its key cannot be read ({error}): pass PEM files that belong together"
        ) from error
    return config


UNPROTECTED = "/health"
"""The only path that needs no token."""


class AccessRules:
    """The rules of access. Browsers are always refused.

    Args:
        token: Token that clients send as `Authorization: Bearer TOKEN`. None accepts every client.
        allowed_hosts: Host names by which clients may call the server, besides localhost and IP addresses.
        advice: What to do about another one.

    Raises:
        UsageError: The token is invalid.
    """

    def __init__(
        self, token: str | None, allowed_hosts: Sequence[str], advice: str = "start the server with --allow-host NAME"
    ) -> None:
        self._token = token and token.strip()
        if self._token is not None and not (self._token and self._token.isprintable()):
            raise UsageError("the token must be one line of text")
        self._advice = advice
        self._hosts = {"localhost", *(name.lower() for name in allowed_hosts)}

    def refusal(self, request: HTTPConnection) -> tuple[int, str]:
        """Return status and reason of a refusal; status 0 accepts the request."""
        if "origin" in request.headers:
            return 403, "web pages may not use this server"
        if not self._is_known_host(request.headers.get("host", "")):
            return 403, f"unknown Host: {self._advice}"
        given = request.headers.get("authorization", "").encode("utf-8", "replace")
        wanted = f"Bearer {self._token}".encode()
        if self._token and request.scope["path"] != UNPROTECTED and not secrets.compare_digest(given, wanted):
            return 401, "missing or wrong token: send the header 'Authorization: Bearer TOKEN'"
        return 0, ""

    def _is_known_host(self, host: str) -> bool:
        """Return whether a Host header is an IP address or a known name; others may be DNS rebinding."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        with contextlib.suppress(ValueError):
            return "%" not in name and bool(ipaddress.ip_address(name))  # an IPv6 zone may hold any character
        return name in self._hosts
