"""What a sandbox is: one live, isolated box for one episode, and the contract of its calls."""

from __future__ import annotations

import abc
import contextlib
import os
import posixpath
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from ..errors import (
    SandboxClosed,
    SandboxError,
    SandboxLost,
    SandboxStartError,
    Unsupported,
    UsageError,
    unknown_name,
    wrong_fields,
)
from ..types import Capabilities, ExecResult, FileEntry, Frozen, PythonEnv, Workspace

ISOLATION_LEVELS = ("none", "process", "landlock", "namespace", "container", "vm")
"""What `SandboxSpec.min_isolation` may demand, weakest first."""

DEFAULT_MAX_OUTPUT = 1 << 20
DEFAULT_MAX_READ = 100 << 20
LARGEST_MAX_OUTPUT = 256 << 20

LONGEST_TTL, LONGEST_START = 1e10, 1e6
"""Seconds. What is longer, infinity too, means as long: clocks, labels and the kernel's calls cannot count further."""

CLEAN_ENV: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",  # the workspace may belong to another user than the commands run as
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # what a program prints of a set is the same in every run
}
"""What every command's environment starts from; nothing of the host's is inherited."""


def _normalise(workdir: str) -> str:
    """Without `..`, which would lead out of the folder that stands for the root where nothing can be mounted."""
    return "/" + posixpath.normpath(workdir).lstrip("/")


class SandboxSpec(Frozen):
    """What a sandbox should be. Every backend takes the same fields.

    Attributes:
        image: Container image, template or tool name; the local backend has none and ignores it.
        workspace: What lies in `workdir` at the start, on backends without images.
        python: The Python environment, on backends without images.
        workdir: Where the work lies and commands start. Always absolute.
        env: Added to the clean environment of every command; `{workdir}` in a value is replaced.
        user: Who runs the commands; None is the backend's default.
        cpus: CPU limit in cores; None is the backend's default.
        memory_mb: Memory limit in MiB; None is the backend's default.
        disk_mb: Limit of what the sandbox may write, in MiB.
        pids: Limit of processes and threads.
        network: "none" unless the task needs more.
        ttl: Seconds after which the sandbox may end itself, whatever happens to us.
        start_timeout: Seconds that start-up may take.
        min_isolation: Refuse, with `Unsupported`, to start with less.
        labels: Put on the sandbox where the backend has labels; elsewhere ignored.
        options: The backend's own options; an unknown one is an error.
    """

    image: str | None = None
    workspace: Workspace | None = None
    python: PythonEnv | None = None
    workdir: Annotated[str, AfterValidator(_normalise)] = Field(default="/testbed", pattern=r"^/[^\x00]*$")
    env: dict[str, str] = {}
    user: str | None = None
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    disk_mb: int = Field(default=4096, gt=0)
    pids: int = Field(default=512, gt=0)
    network: Literal["none", "egress"] = "none"
    ttl: Annotated[float, AfterValidator(lambda seconds: min(seconds, LONGEST_TTL))] = Field(default=6 * 3600.0, gt=0)
    start_timeout: Annotated[float, AfterValidator(lambda seconds: min(seconds, LONGEST_START))] = Field(
        default=600.0, gt=0
    )
    min_isolation: Literal["none", "process", "landlock", "namespace", "container", "vm"] = "none"
    labels: dict[str, str] = {}
    options: dict[str, Any] = {}


Options = TypeVar("Options", bound=Frozen)


def parse_options(model: type[Options], options: Mapping[str, Any], backend: str) -> Options:
    """A backend's own options, checked.

    Raises:
        UsageError: A name is unknown (the message lists the known) or a value makes no sense.
    """
    for name in options:
        if name not in model.model_fields:
            raise unknown_name(f"option of backend {backend!r}:", name, model.model_fields)
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(f"options of backend {backend!r}: {wrong_fields(error)}") from error


def demand_isolation(spec: SandboxSpec, given: str, backend: str, advice: str) -> None:
    """Refuse with `Unsupported` where a backend gives less than the spec demands; `advice` ends the message."""
    if ISOLATION_LEVELS.index(given) < ISOLATION_LEVELS.index(spec.min_isolation):
        raise Unsupported(
            f"min_isolation={spec.min_isolation!r} was asked for and backend {backend!r} gives {given!r} here. {advice}"
        )


class Pty(abc.ABC):
    """A process on a pseudo-terminal inside a sandbox, as `Sandbox.open_pty` returns it."""

    @abc.abstractmethod
    def write(self, data: bytes, *, timeout: float = 10.0) -> None:
        """Type `data`. Raises `SandboxError` where the sandbox does not take it in time."""

    @abc.abstractmethod
    def read_until(self, marker: bytes, *, timeout: float) -> tuple[bytes, bool]:
        """Everything printed up to and including `marker`, and whether the marker came.

        Returns when the marker came, the process ended and was drained, or after `timeout` seconds.
        At most 1 MiB is kept, newest bytes last. What follows the marker stays for the next read.
        One thread may read at a time: for a second one it is a `FileError`.
        """

    @abc.abstractmethod
    def signal(self, number: int, *, timeout: float = 10.0) -> None:
        """Send a signal to the terminal's foreground process group."""

    @property
    @abc.abstractmethod
    def exit_code(self) -> int | None:
        """The exit code (minus the signal's number where one ended it) as far as reads have shown."""

    @abc.abstractmethod
    def close(self) -> None:
        """Kill the process and everything it started. Idempotent."""


class Sandbox(abc.ABC):
    """One live, isolated box. `start` it, use it, `close` it; or use it as a context manager.

    The contract, on every backend (`swe_gym.testing.sandbox_contract` holds it to it):

    * **Deadlines.** `exec` returns or raises within `timeout + grace` and a slack of 2 s (10 s on remote
      backends), whatever the command does. Every other call has a deadline too.
    * **Completion** means that the leader exited. Children that hold the pipes never delay the reply;
      they live on (a server may be started with `&`) until `close`, and what they print later is discarded.
    * **A timeout is a result**: `timed_out=True`, partial output kept. The command's whole tree, with
      what it daemonised, is sent SIGTERM, `grace` seconds later SIGKILL, and none of it is left alive.
    * **A non-zero exit is a result**, "command not found" (127) included. Trouble with the backend is always an
      exception: `SandboxLost` where the sandbox is gone or did not answer, after which it is closed.
    * **Output** is bytes, bounded: the first quarter and the last three quarters of `max_output` are kept,
      what was cut is counted. A flood neither blocks nor kills the command.
    * **stdin** is empty unless given. The environment is `CLEAN_ENV`, the spec's and the call's; pagers
      and colours are off, the locale is UTF-8, nothing of the host's environment is inherited.
    * **Control** never travels in a command's output: no text that a command prints can end, fake or shift
      a reply.
    * **Threads.** Any thread may call, several at once. `close` is idempotent, bounded, callable from any
      thread and in any state; calls that are running raise `SandboxClosed` within a second.

    A backend fills in the underscored methods; these public ones are final and do the shared work.

    Attributes:
        id: Random, unique, for logs. Never shown to a policy.
        spec: What was asked for.
    """

    name = "abstract"
    """The name of the backend, as in `gym.make(..., backend=NAME)`."""

    _shell = "bash"
    """What runs command lines."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.spec = spec
        self._state: Literal["new", "starting", "open", "closed"] = "new"
        self._lock = threading.RLock()  # a handler of signals may close what its own thread is using
        self._owner: int | None = None  # the process that started it
        self._loss: SandboxLost | None = None

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Bring the sandbox up.

        Raises:
            SandboxStartError: It did not come up within `spec.start_timeout`; nothing is left behind.
            Unsupported: The machine cannot give the `spec.min_isolation` or another demanded field.
            TaskError: The workspace or the Python environment cannot be built.
            SandboxClosed: It was closed before or meanwhile.
        """
        with self._lock:
            if self._state != "new":
                raise SandboxClosed(f"{self} cannot start: it is {self._state}")
            self._state = "starting"
            self._owner = os.getpid()
        try:
            self._start(time.monotonic() + self.spec.start_timeout)
            with self._lock:
                if self._state == "starting":
                    self._state = "open"
            self._check_open()
        except BaseException as error:
            meanwhile, self._state = self.closed, "closed"
            self._close()  # again, where `close` came meanwhile: it could not free what was not there yet
            if meanwhile and isinstance(error, SandboxError):
                raise SandboxClosed(f"{self} was closed while it started") from error
            if isinstance(error, OSError) and not isinstance(error, SandboxError):
                text = "the sandbox did not start"
                raise SandboxStartError(text, reason="setup", retryable=True, detail=str(error)) from error
            raise
        return self

    def close(self) -> None:
        """Stop the sandbox and everything in it. Never raises, never takes more than 10 s.

        In a process that was forked from the one that started it, it does nothing.
        """
        if self.closed:
            return
        with self._lock:
            before, self._state = self._state, "closed"
        if before != "closed":
            self._close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, by the caller or because the sandbox was lost; always in a forked process."""
        return self._state == "closed" or self._owner not in (None, os.getpid())

    def __enter__(self) -> Self:
        return self.start() if self._state == "new" else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._state}>"

    # --- work -----------------------------------------------------------------------------------------

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 60.0,
        grace: float = 1.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output: int = DEFAULT_MAX_OUTPUT,
        merge: bool = False,
    ) -> ExecResult:
        """Run a command and wait for its leader to end, by the contract in the class's docstring.

        Args:
            command: A line for `bash -c` (`sh -c` where there is no bash), or an argument list.
            timeout: Seconds until the command's tree is killed. Must be positive and finite.
            grace: Seconds between SIGTERM and SIGKILL.
            cwd: Where it runs, relative to the workdir; None is the workdir. A missing one is exit code 127.
            env: Added to the environment.
            stdin: What it may read.
            max_output: Bytes kept of each stream.
            merge: Send standard error to standard output, in the order of writing.

        Raises:
            UsageError: An argument makes no sense.
            SandboxClosed: The sandbox is or was closed meanwhile.
            SandboxLost: The sandbox is gone or did not answer in time.
        """
        if not 0 < timeout < float("inf") or not 0 <= grace < float("inf"):
            raise UsageError(f"timeout must be positive and finite and grace not negative: {timeout=}, {grace=}")
        if not 0 <= max_output <= LARGEST_MAX_OUTPUT:
            raise UsageError(f"max_output must be from 0 to {LARGEST_MAX_OUTPUT}: {max_output}")
        with self._call():
            return self._exec(
                self._argv(command),
                timeout=timeout,
                grace=grace,
                cwd=self.resolve(cwd or ""),
                env=self.environment(env),
                stdin=stdin,
                max_output=max_output,
                merge=merge,
            )

    def read_file(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ, timeout: float = 60.0) -> bytes:
        """The content of a file; `path` is relative to the workdir or absolute.

        Raises:
            MissingFile, NotAFile, NoPermission, FileError: As the file system says; more than `max_bytes`
                is a `FileError` too.
        """
        with self._call():
            return self._read_file(self.resolve(path), max_bytes=max_bytes, timeout=timeout)

    def write_file(self, path: str, data: bytes, *, mode: int | None = None, timeout: float = 60.0) -> None:
        """Write a file whole and at once (a reader sees the old or the new content), with its parents.

        Args:
            path: Relative to the workdir, or absolute.
            data: The content.
            mode: Permission bits; None keeps those of an existing file, else 0o644.
            timeout: Seconds it may take.

        Raises:
            NotAFile, NoPermission, FileError: As the file system says.
        """
        with self._call():
            self._write_file(self.resolve(path), data, mode=mode, timeout=timeout)

    def put_tar(self, path: str, data: bytes, *, timeout: float = 120.0) -> None:
        """Unpack a tar archive into the folder `path`, made if missing.

        Members that lead out of the folder, and devices, are refused with `FileError` and nothing is unpacked.
        """
        with self._call():
            self._put_tar(self.resolve(path), data, timeout=timeout)

    def get_tar(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ, timeout: float = 120.0) -> bytes:
        """The folder `path` as a tar archive, modes, times and links kept; over `max_bytes` is a `FileError`."""
        with self._call():
            return self._get_tar(self.resolve(path), max_bytes=max_bytes, timeout=timeout)

    def manifest(
        self,
        path: str = "",
        *,
        exclude: Sequence[str] = (),
        max_files: int = 200_000,
        max_ignored: int | None = None,
        max_hashed: int | None = None,
        only: Sequence[str] | None = None,
        timeout: float = 120.0,
    ) -> dict[str, FileEntry]:
        """Every regular file and symbolic link below a folder, hashed, without running the sandbox's own tools.

        Args:
            path: The folder.
            exclude: Names (not paths, fnmatch patterns) of files and folders to leave out wherever they are.
            max_files: More is a `FileError`.
            max_ignored: Files to list of those that a `.gitignore` of the tree names or that belong to a virtual
                environment. They do not count as `max_files`, and any others of them are left out. None does not look
                for them.
            max_hashed: Bytes to hash. A file that would exceed them has an empty digest. None hashes everything.
            only: Paths relative to the folder: list these files and no others, those of them that exist.
            timeout: Seconds it may take.

        Returns:
            Relative path (os.fsdecode of it) -> entry, sorted by path. Sockets, pipes and devices are left out.
        """
        with self._call():
            return self._manifest(
                self.resolve(path),
                exclude=tuple(exclude),
                max_files=max_files,
                max_ignored=max_ignored,
                max_hashed=max_hashed,
                only=None if only is None else tuple(only),
                timeout=timeout,
            )

    def end_processes(self, *, timeout: float = 10.0) -> None:
        """Kill every process that commands have left behind. What is still running, terminals too, is spared.

        Args:
            timeout: Seconds it may take.

        Raises:
            SandboxClosed: The sandbox is or was closed meanwhile.
            SandboxLost: The sandbox is gone or did not answer in time.
        """
        with self._call():
            self._end_processes(timeout=timeout)

    def open_pty(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        rows: int = 50,
        columns: int = 200,
        timeout: float = 30.0,
    ) -> Pty:
        """Start a process on a pseudo-terminal of its own, with echo off. It ends with `Pty.close` or `close`."""
        with self._call():
            return self._open_pty(
                self._argv(command),
                cwd=self.resolve(cwd or ""),
                env=self.environment(env),
                rows=rows,
                columns=columns,
                timeout=timeout,
            )

    # --- what callers and backends share ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sandbox offers; known once it is open."""

    @property
    def workdir(self) -> str:
        """Where the work lies, as commands in the sandbox see it."""
        return self.spec.workdir

    @property
    def image_digest(self) -> str:
        """The digest of the image that runs, where the backend runs one and knows it; else empty."""
        return ""

    def resolve(self, path: str) -> str:
        """The absolute, normalised form of a path that is relative to the workdir or absolute.

        Where a tier cannot mount the workspace at `spec.workdir`, paths below `spec.workdir` are moved to
        the real `workdir`.
        """
        asked = posixpath.normpath(posixpath.join(self.spec.workdir, path))
        inside = self.spec.workdir.rstrip("/")  # nothing where it is the root
        if self.workdir != self.spec.workdir and (asked + "/").startswith(inside + "/"):
            return self.workdir.rstrip("/") + asked[len(inside) :]
        return asked

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of a command: clean, the backend's, the spec's, the call's, in this order."""
        env = {**CLEAN_ENV, **self._base_env(), **self.spec.env, **(extra or {})}
        return {key: value.replace("{workdir}", self.workdir) for key, value in env.items()}

    def _argv(self, command: str | Sequence[str]) -> list[str]:
        argv = [self._shell, "-c", command] if isinstance(command, str) else [str(part) for part in command]
        if not argv:
            raise UsageError("command is empty")
        return argv

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Refuse when closed; a call that fails because of a concurrent close says so; close what is lost."""
        self._check_open()
        try:
            yield
        except SandboxClosed:
            raise
        except SandboxError as error:
            if self.closed and self._loss is None and not isinstance(error, OSError):
                raise SandboxClosed(f"{self} was closed during the call") from error
            if isinstance(error, SandboxLost):
                self._loss = error
                self.close()
            raise

    def _check_open(self) -> None:
        if self._state != "open":
            raise SandboxClosed(f"{self} is not open")
        if self._owner != os.getpid():
            raise SandboxClosed(f"{self} belongs to process {self._owner}, of which this one is a fork")

    # --- what a backend writes ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _start(self, deadline: float) -> None:
        """Bring it up by `deadline` (of `time.monotonic`) or raise; `close` is called after a raise."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Stop it and free everything, in any state, within 10 s, without raising.

        Called once; and again by `start`, where `close` came while `_start` ran.
        """

    def _base_env(self) -> Mapping[str, str]:
        """What the backend adds to the clean environment, such as PATH and HOME."""
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

    @abc.abstractmethod
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
    ) -> ExecResult: ...

    @abc.abstractmethod
    def _read_file(self, path: str, *, max_bytes: int, timeout: float) -> bytes: ...

    @abc.abstractmethod
    def _write_file(self, path: str, data: bytes, *, mode: int | None, timeout: float) -> None: ...

    @abc.abstractmethod
    def _put_tar(self, path: str, data: bytes, *, timeout: float) -> None: ...

    @abc.abstractmethod
    def _get_tar(self, path: str, *, max_bytes: int, timeout: float) -> bytes: ...

    @abc.abstractmethod
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
    ) -> dict[str, FileEntry]: ...

    @abc.abstractmethod
    def _end_processes(self, *, timeout: float) -> None: ...

    @abc.abstractmethod
    def _open_pty(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        rows: int,
        columns: int,
        timeout: float,
    ) -> Pty: ...
