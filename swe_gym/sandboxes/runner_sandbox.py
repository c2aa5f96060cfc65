"""A sandbox that is driven by the runner: all that backends share, down to one byte stream."""

import abc
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..errors import FileError, MissingFile, NoPermission, NotAFile, SandboxClosed, SandboxLost, SandboxStartError
from ..guests import bundle
from ..types import ExecResult, FileEntry
from .base import Pty, Sandbox, SandboxSpec
from .channel import ByteStream, Channel

FILE_ERRORS: Mapping[str, type[FileError]] = {
    "ENOENT": MissingFile,
    "ENOTDIR": MissingFile,
    "EISDIR": NotAFile,
    "EACCES": NoPermission,
    "EPERM": NoPermission,
    "EROFS": NoPermission,
}


def runner_source() -> str:
    """The runner as one text that any Python >= 3.6 runs."""
    return "\n".join([bundle("seccomp"), bundle("runner"), "serve_standard_streams(protect=restrict_calls)\n"])


@contextlib.contextmanager
def understanding() -> Iterator[None]:
    """Read a reply. One that makes no sense says that somebody in the sandbox has got hold of the runner."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SandboxLost("the runner's reply makes no sense", reason="protocol", detail=repr(error)) from error


class RunnerSandbox(Sandbox):
    """A backend over the runner: write `_connect`, `_disconnect` and `capabilities`, and inherit the rest."""

    slack: ClassVar[float] = 2.0
    """Seconds beyond its own deadline that a reply may take before the sandbox counts as lost."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(spec)
        self._channel: Channel | None = None
        self._unprotected = ""

    # --- what a backend writes ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, deadline: float) -> ByteStream:
        """Start the sandbox with the runner in it and return the runner's streams."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Make sure, within 10 s and without raising, that nothing of the sandbox is left."""

    def _last_words(self) -> str:
        """What the sandbox said before it failed to start, where the backend can know."""
        return ""

    def _limits(self) -> dict[str, int]:
        """Resource limits that the runner sets on itself, and so on every command."""
        return {"RLIMIT_CORE": 0}

    # --- life -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        stream = self._connect(deadline)
        self._channel = Channel(stream)
        if self.closed:  # closed meanwhile: nobody else will close this stream
            self._channel.close()
        try:
            timeout = deadline - time.monotonic()
            reply, _ = self._request("hello", timeout=timeout, limits=self._limits(), ttl=self.spec.ttl)
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
        """For `capabilities.notes`: what holds of the runner in this very sandbox."""
        if not self._unprotected:
            return []
        return [f"Commands can limit and slow down the runner, and so lose the sandbox: {self._unprotected}."]

    def _request(
        self, op: str, payload: bytes = b"", *, timeout: float, path: str = "", **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        """One request to the runner, `slack` added to its deadline."""
        assert self._channel is not None
        if path:
            fields["path"] = path
        reply, data = self._channel.request(op, payload, timeout=timeout + self.slack, **fields)
        if "error" in reply:
            with understanding():
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
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        max_output: int,
        merge: bool,
    ) -> ExecResult:
        reply, data = self._request(
            "exec",
            stdin,
            timeout=timeout + grace,
            argv=list(argv),
            cwd=cwd,
            env=dict(env),
            limit=timeout,
            grace=grace,
            max_output=max_output,
            merge=merge,
        )
        with understanding():
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
        self,
        path: str,
        *,
        exclude: tuple[str, ...],
        max_files: int,
        max_ignored: int | None,
        max_hashed: int | None,
        only: tuple[str, ...] | None,
        timeout: float,
    ) -> dict[str, FileEntry]:
        reply, _ = self._request(
            "manifest",
            b"\0".join(map(os.fsencode, only or ())),
            timeout=timeout,
            limit=timeout,
            path=path,
            exclude=exclude,
            max_files=max_files,
            max_ignored=max_ignored,
            max_hashed=max_hashed,
            only=only is not None,
        )
        with understanding():
            return {
                name: FileEntry(mode=mode, size=size, digest=digest, link=link, ignored=ignored)
                for name, (mode, size, digest, link, ignored) in sorted(reply["entries"].items())
            }

    def _end_processes(self, *, timeout: float) -> None:
        self._request("end_processes", timeout=timeout)

    def _open_pty(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        rows: int,
        columns: int,
        timeout: float,
    ) -> Pty:
        reply, _ = self._request(
            "pty_open", timeout=timeout, argv=list(argv), cwd=cwd, env=dict(env), rows=rows, columns=columns
        )
        return RunnerPty(self, reply["id"])


class RunnerPty(Pty):
    """A terminal that the runner holds."""

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
        with understanding():
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

    def _request(self, op: str, payload: bytes = b"", *, timeout: float, **fields: Any) -> tuple[dict[str, Any], bytes]:
        with self._sandbox._call():
            return self._sandbox._request(op, payload, timeout=timeout, pty=self._number, **fields)
