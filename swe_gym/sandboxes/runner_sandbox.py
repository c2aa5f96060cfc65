"""The base class of backends that use the runner: they only provide a byte stream."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from ..errors import FileError, MissingFile, NoPermission, NotAFile, SandboxLost, SandboxStartError
from ..guests import bundle
from ..guests.protocol import HELLO
from .base import Sandbox
from .channel import ByteStream, RequestFailed, RunnerChannel
from .runner_forward import SandboxForwards
from .types import Forward, Handler, SandboxSpec

if TYPE_CHECKING:
    from ..guests.protocol import HelloRequest, Operation, Reply, Request

FILE_ERRORS: Mapping[str, type[FileError]] = {
    "ENOENT": MissingFile,
    "ENOTDIR": MissingFile,
    "EISDIR": NotAFile,
    "EACCES": NoPermission,
    "EPERM": NoPermission,
    "EROFS": NoPermission,
}


def runner_source() -> str:
    """Return the runner as one program for any Python >= 3.6."""
    return "\n".join([bundle("seccomp"), bundle("runner/serve"), "serve_standard_streams(protect=restrict_calls)\n"])


class RunnerSandbox(Sandbox):
    """A backend that uses the runner. Subclasses implement `_connect`, `_disconnect` and `capabilities`."""

    slack: ClassVar[float] = 10.0
    """Seconds that a reply may take beyond its own deadline before the sandbox counts as lost. Busy machines stall."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self._channel: RunnerChannel | None = None
        self._forwards: SandboxForwards | None = None
        self._unprotected = ""
        self._runner_env = b""  # the environment that the runner was started with, NUL between its variables

    # --- what a backend writes ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, deadline: float) -> ByteStream:
        """Start the sandbox with the runner in it and return the runner's streams."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Stop the sandbox and everything in it, within 10 s, without raising."""

    def _last_words(self) -> str:
        """Return the output of a sandbox that failed to start, if the backend knows it."""
        return ""

    def _limits(self) -> dict[str, int]:
        """Return the resource limits that the runner sets on itself, and so on every command."""
        return {"RLIMIT_CORE": 0}

    def _watched_memory(self) -> int:
        """Return the bytes that all processes may use together, if the runner must watch that; else 0."""
        return 0

    # --- life -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        stream = self._connect(deadline)
        self._channel = RunnerChannel(stream)
        self._forwards = SandboxForwards(self._channel, f"sandbox {self.id}")
        if self.closed:  # closed meanwhile, before there was a channel to close
            self._channel.close()
        try:
            timeout = deadline - time.monotonic()
            hello: HelloRequest = {"limits": self._limits(), "memory": self._watched_memory(), "ttl": self.spec.ttl}
            reply, self._runner_env = self._request(HELLO, hello, timeout=timeout)
            self._unprotected = reply["unprotected"]
        except SandboxLost as error:
            text = f"the runner of the {self.name} sandbox did not start"
            late = error.reason == "unresponsive"
            detail = self._last_words() or str(error)
            retryable = late or self._channel.ran  # else the sandbox cannot run it
            raise SandboxStartError(
                text, reason="timeout" if late else "setup", retryable=retryable, detail=detail
            ) from error

    def _close(self) -> None:
        if self._channel:
            self._channel.close()
        self._disconnect()

    def _runner_notes(self) -> list[str]:
        """Return the entries of `capabilities.notes` about this sandbox's runner."""
        if not self._unprotected:
            return []
        return [
            "Commands can limit or slow down the runner, and so lose the sandbox, and use the host's keys and unusual "
            f"sockets: {self._unprotected}."
        ]

    def _request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        """Send a request to the runner and return its reply, with `slack` added to the deadline."""
        assert self._channel is not None
        try:
            return self._channel.request(operation, request, payload, timeout=timeout + self.slack)
        except RequestFailed as error:
            path = cast("Mapping[str, object]", request).get("path")
            kind = FILE_ERRORS.get(error.name, FileError)
            raise kind(f"{path}: {error}" if path else str(error)) from error

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        assert self._forwards is not None
        return self._forwards.open(port, handler, max_connections)
