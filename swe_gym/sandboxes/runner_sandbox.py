"""The base class of backends that use the runner: they only provide a byte stream."""

import abc
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..errors import FileError, MissingFile, NoPermission, NotAFile, SandboxClosed, SandboxLost, SandboxStartError
from ..guests import bundle
from ..types import ExecResult, FileEntry, Json, JsonObject
from .base import Pty, Sandbox
from .channel import ByteStream, RunnerChannel, parsing
from .runner_forward import SandboxForwards
from .types import Forward, Handler, SandboxSpec

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

    slack: ClassVar[float] = 2.0
    """Seconds that a reply may take beyond its own deadline before the sandbox counts as lost."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self._channel: RunnerChannel | None = None
        self._forwards: SandboxForwards | None = None
        self._unprotected = ""

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
            limits: JsonObject = {"limits": self._limits(), "memory": self._watched_memory(), "ttl": self.spec.ttl}
            reply, _ = self._request("hello", timeout=timeout, **limits)
            self._unprotected = str(reply.get("unprotected", ""))
        except SandboxLost as error:
            text = f"the runner of the {self.name} sandbox did not start"
            late = error.reason == "unresponsive"
            detail = self._last_words() or str(error)
            raise SandboxStartError(
                text, reason="timeout" if late else "setup", retryable=late, detail=detail
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
        self, op: str, payload: bytes = b"", *, timeout: float, path: str = "", **fields: Json
    ) -> tuple[JsonObject, bytes]:
        """Send a request to the runner and return its reply, with `slack` added to the deadline."""
        assert self._channel is not None
        if path:
            fields["path"] = path
        reply, data = self._channel.request(op, payload, timeout=timeout + self.slack, **fields)
        if "error" in reply:
            with parsing():
                name, message = reply["error"]
                kind = FILE_ERRORS.get(name, FileError)
            raise kind(f"{path}: {message}" if path else str(message))
        return reply, data

    # --- the operations ---------------------------------------------------------------------------------------

    def _exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        grace: float,
        stdin: bytes,
        **how: Json,
    ) -> ExecResult:
        how |= {"argv": argv, "limit": timeout, "grace": grace}
        reply, data = self._request("exec", stdin, timeout=timeout + grace, **how)
        with parsing():
            middle = reply["stdout"]
            return ExecResult(
                exit_code=reply["exit_code"],
                signal=reply["signal"],
                timed_out=reply["timed_out"],
                stdout=data[:middle],
                stderr=data[middle:],
                stdout_dropped=reply["stdout_dropped"],
                stderr_dropped=reply["stderr_dropped"],
                duration=reply["duration"],
            )

    def _read_file(self, path: str, *, max_bytes: int, timeout: float) -> bytes:
        return self._request("read", timeout=timeout, limit=timeout, path=path, max_bytes=max_bytes)[1]

    def _write_file(self, path: str, data: bytes, *, mode: int | None, timeout: float) -> None:
        self._request("write", data, timeout=timeout, path=path, mode=mode)

    def _put_tar(self, path: str, data: bytes, *, timeout: float) -> None:
        self._request("put_tar", data, timeout=timeout, path=path)

    def _get_tar(self, path: str, *, max_bytes: int, timeout: float) -> bytes:
        return self._request("get_tar", timeout=timeout, limit=timeout, path=path, max_bytes=max_bytes)[1]

    def _manifest(
        self, path: str, *, only: tuple[str, ...] | None, timeout: float, **bounds: Json
    ) -> dict[str, FileEntry]:
        names = b"\0".join(map(os.fsencode, only or ()))
        bounds |= {"only": only is not None, "limit": timeout}
        reply, _ = self._request("manifest", names, timeout=timeout, path=path, **bounds)
        with parsing():
            return {
                name: FileEntry(mode=mode, size=size, digest=digest, link=link, ignored=ignored)
                for name, (mode, size, digest, link, ignored) in sorted(reply["entries"].items())
            }

    def _end_processes(self, *, commands: bool, timeout: float) -> None:
        self._request("end_processes", timeout=timeout, commands=commands)

    def _open_pty(self, argv: Sequence[str], *, timeout: float, **how: Json) -> Pty:
        reply, _ = self._request("pty_open", timeout=timeout, argv=argv, **how)
        return RunnerPty(self, reply["id"])

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        assert self._forwards is not None
        return self._forwards.open(port, handler, max_connections)


class RunnerPty(Pty):
    """A terminal of the runner."""

    def __init__(self, sandbox: RunnerSandbox, number: int) -> None:
        self._sandbox = sandbox
        self._number = number
        self._exit_code: int | None = None
        self._closed = False

    def write(self, data: bytes, *, timeout: float = 10.0) -> None:
        """See `Pty.write`."""
        self._request("pty_write", data, timeout=timeout)

    def read_until(self, marker: bytes, *, timeout: float) -> tuple[bytes, bool]:
        """See `Pty.read_until`."""
        reply, data = self._request("pty_read", marker, timeout=timeout, limit=timeout)
        with parsing():
            code = reply["exit_code"]
            self._exit_code = None if code is None else int(code)
            return data, bool(reply["found"])

    def signal(self, number: int, *, timeout: float = 10.0) -> None:
        """See `Pty.signal`."""
        self._request("pty_signal", timeout=timeout, signal=number)

    @property
    def exit_code(self) -> int | None:
        """See `Pty.exit_code`."""
        return self._exit_code

    def close(self) -> None:
        """See `Pty.close`."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(SandboxClosed):
                self._request("pty_close", timeout=10.0)

    def _request(self, op: str, payload: bytes = b"", *, timeout: float, **fields: Json) -> tuple[JsonObject, bytes]:
        with self._sandbox._call():
            return self._sandbox._request(op, payload, timeout=timeout, pty=self._number, **fields)
