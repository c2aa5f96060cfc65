"""Access to the engine through the docker SDK: connecting, its errors, and a container's streams as one."""

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Any

import docker
import docker.errors
import docker.utils
import requests.exceptions

from ...errors import SandboxStartError
from ..channel import SocketStream, TlsSocket

log = logging.getLogger(__name__)

ENGINE_ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError, ValueError)
"""Everything that a call of the engine may raise. A truncated reply is a `ValueError` of its JSON."""

NO_ENGINE = (
    "Start it (`systemctl start docker`, or Docker Desktop), or select another one with DOCKER_HOST or "
    "the backend option `base_url`."
)
NOT_ALLOWED = (
    "Join the socket's group (`sudo usermod -aG docker $USER`, then log in again), or run rootless Docker or Podman "
    "and point DOCKER_HOST at its socket."
)
NO_SSH = (
    "Forward its socket (`ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST`) and set "
    "DOCKER_HOST=unix:///tmp/engine.sock."
)
NO_ADDRESS = "Invalid bind address"
UNREACHABLE = ("Connection refused", "No such file", "Name or service not known", "Failed to resolve", "No route")
NO_SPACE = ("no space left", "disk quota exceeded", "not enough space", "insufficient storage")
NO_SHELL = ("/bin/sh: no such file", "stat /bin/sh", '"/bin/sh": no such')

SOCKETS = ("/var/run/docker.sock", "{runtime}/docker.sock", "{runtime}/podman/podman.sock", "/run/podman/podman.sock")
"""Sockets of Docker, rootless Docker, rootless Podman and Podman."""


def address(base_url: str | None) -> str | None:
    """Return `base_url`, else None if DOCKER_HOST is set, else the first engine's socket that exists."""
    if base_url or os.environ.get("DOCKER_HOST"):
        return base_url
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = (path.format(runtime=runtime) for path in SOCKETS)
    return next((f"unix://{path}" for path in paths if os.path.exists(path)), None)


class EngineClient(docker.APIClient):  # type: ignore[misc]  # docker has no types here
    """A client that ignores the proxies and certificate authorities that requests reads from the environment."""

    trust_env = property(lambda _: False, lambda _, value: None)  # noqa: ARG005  requests sets it


def connect(base_url: str | None, timeout: float) -> docker.APIClient:
    """Connect to the engine at `address(base_url)`; each call fails after `timeout` seconds.

    Raises:
        SandboxStartError: The engine cannot be reached or does not answer.
    """
    settings = docker.utils.kwargs_from_env()
    if where := address(base_url):
        settings["base_url"] = where
    with engine_errors("report its version", base_url):
        _knock(settings.get("base_url") or SOCKETS[0], timeout)
        return EngineClient(version="auto", timeout=timeout, **settings)


def _knock(where: str, timeout: float) -> None:
    """Fail where no engine listens at a socket of this machine: docker-py would leave its own open."""
    path = where.removeprefix("unix://")
    if path.startswith("/"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout)
            sock.connect(path)


@contextlib.contextmanager
def engine_errors(what: str, base_url: str | None = None) -> Iterator[None]:
    """Turn errors of the engine into `SandboxStartError`; `what` completes "the engine cannot ..."."""
    try:
        yield
    except ENGINE_ERRORS as error:
        raise _start_error(what, error, base_url) from error


def _start_error(what: str, error: BaseException, base_url: str | None) -> SandboxStartError:
    error = next((cause for cause in _causes(error) if isinstance(cause, docker.errors.APIError)), error)
    text = str(getattr(error, "explanation", None) or error)
    lowered = text.lower()
    reason, retryable = "image", False
    if any(words in lowered for words in NO_SPACE):
        message = (
            f"the Docker engine cannot {what}: its disk is full. Free space: `docker system df` lists what uses it"
        )
        reason = "capacity"
    elif isinstance(error, docker.errors.ImageNotFound) or "no such image" in lowered:
        message = f"the Docker engine cannot {what}: no such image"
    elif any(words in lowered for words in NO_SHELL):
        message = "the image has no /bin/sh. A sandbox needs an image with a shell and Python 3.6 or newer"
    elif not isinstance(error, docker.errors.APIError):
        return _no_answer(what, error, base_url)
    elif error.status_code == 429:
        message = f"the Docker engine received too many requests to {what}"
        reason, retryable = "rate_limit", True
    else:
        status = error.status_code or 0
        message = f"the Docker engine refused to {what} (HTTP {status})"
        reason, retryable = "setup", status >= 500
    return SandboxStartError(message, reason=reason, retryable=retryable, detail=text)


def _no_answer(what: str, error: BaseException, base_url: str | None) -> SandboxStartError:
    where = address(base_url) or os.environ.get("DOCKER_HOST") or "/var/run/docker.sock"
    text = str(error)
    reason, retryable = "setup", False
    if where.startswith("ssh://"):
        message = f"the Docker engine at {where} cannot be used over ssh. {NO_SSH}"
    elif NO_ADDRESS in text:
        message = f"{where!r} is not an address of a Docker engine. Use unix:///var/run/docker.sock or tcp://host:2376"
    elif any(isinstance(cause, requests.exceptions.Timeout | TimeoutError) for cause in _causes(error)):
        message = f"the Docker engine at {where} did not {what} in time"
        reason, retryable = "timeout", True
    elif "permission denied" in text.lower():
        message = f"permission denied by the Docker engine at {where}. {NOT_ALLOWED}"
    elif is_unreachable(error):
        message = f"no Docker engine answers at {where}. {NO_ENGINE}"
        retryable = True
    else:
        message = f"the Docker engine at {where} closed the connection when asked to {what}"
        reason, retryable = "unknown", True
    return SandboxStartError(message, reason=reason, retryable=retryable, detail=text)


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error means that no engine listens."""
    return any(words in str(error) for words in UNREACHABLE)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def why_it_ended(engine: docker.APIClient, container: str, seconds: float) -> tuple[str, str] | None:
    """Return the reason and a description of a container's end, from the engine's log of events.

    None if the engine does not tell within `seconds`.
    """
    query = {
        "since": "1",
        "until": f"{time.time() + seconds / 2:.3f}",
        "filters": json.dumps({"container": [container], "event": ["oom", "kill", "die"]}),
    }
    seen = set()
    try:
        reply = engine.get(url(engine, "events"), params=query, stream=True, timeout=seconds)
        with contextlib.closing(reply):
            for line in reply.iter_lines():
                event = json.loads(line)
                seen.add(event["Action"])
                if event["Action"] == "die":
                    return _explain(seen, event["Actor"]["Attributes"].get("exitCode", "?"))
    except (*ENGINE_ERRORS, KeyError, TypeError) as error:
        log.debug("the engine cannot tell why container %s ended: %s", container, error)
    return None


def _explain(seen: set[str], exit_code: str) -> tuple[str, str]:
    if "oom" in seen and "kill" not in seen and exit_code == "137":
        return "oom", "it exceeded its memory limit, and the kernel killed its first process"
    what = "its container was killed" if "kill" in seen else "its container ended"
    return "killed", f"{what} (exit status {exit_code})"


def attach(engine: docker.APIClient, container: str) -> Any:
    """Connect to a container's three streams, as docker-py's `attach_socket` does, but with a deadline."""
    reply = engine.post(
        url(engine, f"containers/{container}/attach"),
        params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1},
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        stream=True,
        timeout=engine.timeout,
    )
    return engine._get_raw_response_socket(reply)


def url(engine: docker.APIClient, path: str) -> str:
    """Return the address of a call that docker-py offers only without a deadline."""
    return f"{engine.base_url}/v{engine.api_version}/{path}"


def free_megabytes(engine: docker.APIClient) -> int | None:
    """Return the free space on the engine's disk in MiB; None if that disk is on another machine."""
    if not re.match(r"http\+docker://localhost", engine.base_url):
        return None
    try:
        return shutil.disk_usage(engine.info()["DockerRootDir"]).free >> 20
    except (OSError, KeyError):
        return None


FRAME = struct.Struct(">BxxxI")
STDERR = 2
KEPT_ERRORS = 1 << 14


class DockerStream(SocketStream):
    """A `ByteStream` of a container's standard input and output.

    The engine sends frames of [stream, 0, 0, 0, 32-bit big-endian length] and data.

    Args:
        attached: The result of docker-py's `attach_socket`. It closes the connection when collected, so it is kept.

    Attributes:
        errors: The end of standard error.
    """

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        connection = getattr(attached, "_sock", attached)  # docker-py wraps it in a file, except for TLS
        if isinstance(connection, ssl.SSLSocket):
            connection = TlsSocket(connection)
        super().__init__(connection)
        self._buffer = bytearray()
        self.errors = b""

    def read(self, timeout: float) -> bytes:
        """See `ByteStream.read`.

        Raises:
            ConnectionError: The connection ended within a frame, which a container's end does not do.
        """
        deadline = time.monotonic() + timeout
        while not (data := self._unpack()):
            received = super().read(deadline - time.monotonic())
            if not received:
                if self._buffer:
                    raise ConnectionError("the engine's connection broke off in the middle of a frame")
                return b""
            self._buffer += received
        return data

    def _free_if_done(self) -> None:
        super()._free_if_done()
        if self._closed and not self._users:
            if reply := getattr(self._attached, "_response", None):  # holds a file over the connection
                reply.close()
            self._attached.close()

    def _unpack(self) -> bytes:
        """Return all complete frames of standard output."""
        output = bytearray()
        while len(self._buffer) >= FRAME.size:
            stream, length = FRAME.unpack_from(self._buffer)
            if len(self._buffer) < FRAME.size + length:
                break
            data = bytes(self._buffer[FRAME.size : FRAME.size + length])
            del self._buffer[: FRAME.size + length]
            if stream == STDERR:
                self.errors = (self.errors + data)[-KEPT_ERRORS:]
            else:
                output += data
        return bytes(output)
