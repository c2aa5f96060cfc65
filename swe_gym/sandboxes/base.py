"""The base class of all sandboxes, with the contract of its calls."""

from __future__ import annotations

import abc
import contextlib
import os
import posixpath
import stat
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn, ParamSpec, Self, TypeVar

from ..errors import SandboxClosed, SandboxError, SandboxLost, SandboxStartError, Unsupported, UsageError
from ..guests.protocol import (
    END_PROCESSES,
    EXEC,
    GET_TAR,
    MANIFEST,
    MARK,
    PTY_CLOSE,
    PTY_OPEN,
    PTY_READ,
    PTY_SIGNAL,
    PTY_WRITE,
    PUT_TAR,
    READ_FILE,
    RESTORE,
    SNAPSHOT,
    WRITE_FILE,
)
from ..types import Capabilities, ExecResult, FileEntry, JsonMapping
from .channel import parsing
from .hosts import HostProxy, proxy_variables
from .types import MOST_SNAPSHOT, Finding, Forward, Handler, Identity, SandboxSpec, Snapshot

if TYPE_CHECKING:
    from ..guests.protocol import (
        EndRequest,
        ExecReply,
        ExecRequest,
        ManifestReply,
        ManifestRequest,
        MarkRequest,
        OpenRequest,
        Operation,
        PtyReadRequest,
        PtyRequest,
        PtySignalRequest,
        ReadRequest,
        Reply,
        Request,
        RestoreRequest,
        SnapshotRequest,
        UnpackRequest,
        WriteRequest,
    )

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MAX_OUTPUT = 1 << 20
DEFAULT_MAX_READ = 100 << 20
LARGEST_MAX_OUTPUT = 256 << 20

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
    "GIT_CONFIG_COUNT": "1",  # the workspace may belong to another user
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # a program prints a set in the same order in every run
}
"""The base environment of every command. Nothing of the host's environment is inherited."""


class Pty:
    """A process on a pseudo-terminal inside a sandbox; `Sandbox.open_pty` returns it."""

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox = sandbox
        self._request: PtyRequest = {"pty": number}
        self._exit_code: int | None = None
        self._closed = False

    def write(self, data: bytes, *, timeout: float = 10.0) -> None:
        """Type `data`. Raises `SandboxError` if the sandbox does not take it in time."""
        self._ask(PTY_WRITE, self._request, data, timeout=timeout)

    def read_until(self, marker: bytes, *, timeout: float) -> tuple[bytes, bool]:
        """Return everything printed up to and including `marker`, and whether the marker was found.

        Returns once the marker is found, the process has ended, or `timeout` seconds are over. At most the newest
        1 MiB is kept. Output after the marker stays for the next read. One thread may read at a time; a second one
        gets a `FileError`.
        """
        request: PtyReadRequest = {**self._request, "timeout": timeout}
        reply, data = self._ask(PTY_READ, request, marker, timeout=timeout)
        self._exit_code = reply["exit_code"]
        return data, reply["found"]

    def signal(self, number: int, *, timeout: float = 10.0) -> None:
        """Send a signal to the terminal's foreground process group."""
        request: PtySignalRequest = {**self._request, "signal": number}
        self._ask(PTY_SIGNAL, request, timeout=timeout)

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the signal's number if one ended it, or None if no read has seen the end."""
        return self._exit_code

    def close(self) -> None:
        """Kill the process and everything it started. Idempotent."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(SandboxClosed):
                self._sandbox._ask(PTY_CLOSE, self._request, timeout=10.0)

    def _ask(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        if self._closed:
            raise SandboxClosed("the terminal is closed")
        return self._sandbox._ask(operation, request, payload, timeout=timeout)


class Sandbox(abc.ABC):
    """An isolated place to run code. `start` it, use it, `close` it; or use it as a context manager.

    Every backend keeps this contract (`swe_gym.testing.sandbox_contract` tests it):

    * **Deadlines.** `exec` returns or raises within `timeout + grace` and a slack of 10 s, whatever the command
      does. Every other call has a deadline too.
    * **Completion** means that the command's first process exited. Children that hold the pipes never delay the
      reply. They live until `close` (a server may be started with `&`), and their later output is discarded.
    * **A timeout is a result**: `timed_out=True`, with partial output. The command's whole tree, daemons included,
      gets SIGTERM, then SIGKILL after `grace` seconds, and no process of it survives.
    * **A non-zero exit is a result**, "command not found" (127) included. A failure of the backend is always an
      exception: `SandboxLost` if the sandbox is gone or did not answer; it is closed then.
    * **Output** is bytes, bounded: the first quarter and the last three quarters of `max_output` are kept, and the
      rest is counted. A flood neither blocks nor kills the command.
    * **stdin** is empty unless given. The environment is `CLEAN_ENV`, the spec's and the call's. Pagers and colours
      are off, the locale is UTF-8, and nothing of the host's environment is inherited.
    * **Control** never travels in a command's output: no text that a command prints can end, fake or shift a reply.
    * **Forwarded ports** carry bytes between processes in the sandbox and this one, without a network. An end that does
      not read delays nothing else.
    * **Threads.** Any thread may call, several at once. `close` is idempotent, bounded, and callable from any thread
      in any state. Running calls raise `SandboxClosed` within a second.

    A backend implements the underscored methods; the public ones are final. The class methods speak for the whole
    backend, before any of its sandboxes starts. Their defaults do nothing.

    Attributes:
        id: Random, unique identifier for logs. Never shown to a policy.
        spec: Description of the sandbox.
    """

    name = "abstract"
    """The name of the backend, as in `gym.make(..., backend=NAME)`."""

    waiting = 0
    """Number of grading sandboxes that may start and wait while a policy works, over all processes of this user on this
    machine. 0 if starts are fast or a sandbox that waits is expensive."""

    on_this_machine: ClassVar[bool] = False
    """Whether sandboxes use the memory of the machine that opens them. If so, each node of a cluster must be able to
    start them, and `swe-gym doctor` includes the backend."""

    quota: ClassVar[int | None] = None
    """Sandboxes that an account may usually run at once; None if there is no such limit."""

    system_path: ClassVar[str] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    """Folders of the system's programs, which only root can change."""

    _shell = "bash"
    """Shell for command lines."""

    _new_layers: ClassVar[bool] = False
    """Whether all that a sandbox writes in an overlay lies in a layer that is made by its `start`."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.spec = spec
        self._state: Literal["new", "starting", "open", "closed"] = "new"
        self._lock = threading.RLock()  # a signal handler may close what its own thread is using
        self._owner: int | None = None  # the process that started it
        self._began = 0.0  # `time.monotonic()` of its start
        self._origin = ""
        self._layers: tuple[str, ...] = ()  # folders of this machine: the lower layers of its overlay, top first
        self._loss: SandboxLost | None = None
        self._identity: Identity | None = None  # once it was asked for: see `user_sandbox.find_identity`
        self._network_env: Mapping[str, str] = {}
        self._environment: dict[str, str] | None = None  # of commands; it does not change any more once it is open

    # --- the backend --------------------------------------------------------------------------------------

    @classmethod
    def for_spec(cls, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox of this description, which is not started. A backend of several classes chooses one.

        Raises:
            UsageError: An option of the backend is unknown or invalid, or credentials are missing.
            Unsupported: The backend cannot provide a field.
        """
        return cls(spec)

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:  # noqa: ARG003  for backends
        """Check what must exist outside for these sandboxes: the service, its images, its disk. Nothing is started.

        Commands call it before a run, with the description of every task, and refuse the run with the first `needed`
        finding that does not work. Each call that waits has a deadline of seconds.

        Args:
            specs: Descriptions that `for_spec` accepts, at least one, with equal `options`.

        Raises:
            UsageError, SandboxStartError, Unsupported: A sandbox could not start; the message has the fix.
        """
        return []

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:  # noqa: ARG003  for backends
        """Check what works here and what does not, with a fix for each: `swe-gym doctor`. May start a sandbox.

        Args:
            options: Options of the backend, as in `SandboxSpec.options`.

        Raises:
            UsageError: An option is unknown or invalid.
        """
        return []

    @classmethod
    def sweep(cls, options: JsonMapping) -> list[str] | None:  # noqa: ARG003  for backends
        """Remove sandboxes that dead clients of this package left behind: `swe-gym clean`. Others are not touched.

        Args:
            options: Options of the backend, as in `SandboxSpec.options`.

        Returns:
            The names of what was removed; None if sandboxes of this backend end with their client anyway.

        Raises:
            UsageError: An option is unknown or invalid.
            SandboxError: The backend cannot be reached or refuses.
        """
        return None

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the sandbox.

        Raises:
            SandboxStartError: It did not start within `spec.start_timeout`; nothing is left behind.
            Unsupported: The machine cannot provide `spec.min_isolation` or another field.
            TaskError: The workspace or the Python environment cannot be built.
            SandboxClosed: It was closed before or meanwhile.
        """
        with self._lock:
            if self._state != "new":
                raise SandboxClosed(f"{self} cannot start: it is {self._state} already")
            self._state = "starting"
            self._owner = os.getpid()
            self._began = time.monotonic()
        try:
            if self.spec.access == "hosts" and not self._closes_network():
                self._refuse_hosts()
            self._start(time.monotonic() + self.spec.start_timeout)
            if self.spec.access == "hosts":
                self._open_hosts()
            self._environment = self.environment()
            with self._lock:
                if self._state == "starting":
                    self._state = "open"
            self._check_open()
        except BaseException as error:
            meanwhile, self._state = self.closed, "closed"
            self._close()  # again if `close` came meanwhile: it could not free what did not exist yet
            if meanwhile and isinstance(error, SandboxError):
                raise SandboxClosed(f"{self} was closed while it started") from error
            if isinstance(error, OSError) and not isinstance(error, SandboxError):
                text = "the sandbox did not start"
                raise SandboxStartError(text, reason="setup", retryable=True, detail=str(error)) from error
            raise
        return self

    def close(self) -> None:
        """Stop the sandbox and everything in it, within 10 s, without raising.

        A forked process cannot close its parent's sandbox: the call does nothing.
        """
        if self.closed:
            return
        with self._lock:
            before, self._state = self._state, "closed"
        if before != "closed":
            self._close()

    @property
    def closed(self) -> bool:
        """Whether the sandbox was closed or lost, or this process is a fork of the one that started it."""
        return self._state == "closed" or self._owner not in (None, os.getpid())

    def __enter__(self) -> Self:
        return self.start() if self._state == "new" else self

    def __exit__(self, *_: object) -> None:
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
        """Run a command and wait for its first process to end. The class's docstring has the contract.

        Args:
            command: A line for `bash -c` (`sh -c` without bash), or an argument list.
            timeout: Seconds until the command's tree is killed. Must be positive and finite.
            grace: Seconds between SIGTERM and SIGKILL.
            cwd: Its folder, relative to the workdir; None is the workdir. A missing one is exit code 127.
            env: Variables added to the environment.
            stdin: Bytes on its standard input.
            max_output: Bytes kept of each stream.
            merge: Send standard error to standard output, in the order of writing.

        Raises:
            UsageError: An argument is invalid.
            SandboxClosed: The sandbox is closed, or was closed meanwhile.
            SandboxLost: The sandbox is gone or did not answer in time.
        """
        if not 0 < timeout < float("inf") or not 0 <= grace < float("inf"):
            raise UsageError(f"timeout must be positive and finite, and grace not negative: {timeout=}, {grace=}")
        if not 0 <= max_output <= LARGEST_MAX_OUTPUT:
            raise UsageError(f"max_output must be between 0 and {LARGEST_MAX_OUTPUT}: {max_output}")
        self._check_open()
        request: ExecRequest = {
            "argv": self._argv(command),
            "cwd": self.resolve(cwd) if cwd else self.workdir,
            "env": self.environment(env),
            "timeout": timeout,
            "grace": grace,
            "max_output": max_output,
            "merge": merge,
        }
        reply, output = self._ask(EXEC, request, stdin, timeout=timeout + grace)
        return make_result(reply, output)

    def read_file(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ, timeout: float = 60.0) -> bytes:
        """Return the content of a file; `path` is relative to the workdir or absolute.

        Raises:
            MissingFile, NotAFile, NoPermission: The error of the file system.
            FileError: Any other error, or the file is larger than `max_bytes`.
        """
        request: ReadRequest = {"path": self.resolve(path), "max_bytes": max_bytes, "timeout": timeout}
        return self._ask(READ_FILE, request, timeout=timeout)[1]

    def write_file(self, path: str, data: bytes, *, mode: int | None = None, timeout: float = 60.0) -> None:
        """Write a file atomically: a reader sees the old or the new content. Missing parents are created.

        Args:
            path: Path, relative to the workdir or absolute.
            data: Content.
            mode: Permission bits; None keeps those of an existing file, else 0o644.
            timeout: Seconds that it may take.

        Raises:
            NotAFile, NoPermission, FileError: The error of the file system.
        """
        request: WriteRequest = {"path": self.resolve(path), "mode": mode}
        self._ask(WRITE_FILE, request, data, timeout=timeout)

    def put_tar(self, path: str, data: bytes, *, timeout: float = 120.0) -> None:
        """Unpack a tar archive into the folder `path`, which is created if missing.

        Raises:
            FileError: A member leads out of the folder or is a device. Nothing is unpacked.
        """
        request: UnpackRequest = {"path": self.resolve(path)}
        self._ask(PUT_TAR, request, data, timeout=timeout)

    def get_tar(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ, timeout: float = 120.0) -> bytes:
        """Return the folder `path` as a tar archive with modes, times and links. Over `max_bytes` is a `FileError`."""
        request: ReadRequest = {"path": self.resolve(path), "max_bytes": max_bytes, "timeout": timeout}
        return self._ask(GET_TAR, request, timeout=timeout)[1]

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
        """List every regular file and symbolic link below a folder, hashed, without the sandbox's own programs.

        Args:
            path: Folder.
            exclude: Names (fnmatch patterns, not paths) of files and folders to leave out at any depth.
            max_files: Largest number of files; more is a `FileError`.
            max_ignored: Largest number of ignored files to list: those that a `.gitignore` of the tree names, or that
                belong to a virtual environment. They do not count towards `max_files`. None treats them like others.
            max_hashed: Bytes to hash. A file that would exceed them has an empty digest. None hashes everything.
            only: Paths relative to the folder: list only these files, if they exist.
            timeout: Seconds that it may take.

        Returns:
            Relative path (`os.fsdecode`d) -> entry, sorted by path. Sockets, pipes and devices are left out.
        """
        request: ManifestRequest = {
            "path": self.resolve(path),
            "exclude": list(exclude),
            "max_files": max_files,
            "max_ignored": max_ignored,
            "max_hashed": max_hashed,
            "only": only is not None,
            "timeout": timeout,
        }
        names = b"\0".join(map(os.fsencode, only or ()))
        return self._call(lambda: read_entries(self._request(MANIFEST, request, names, timeout=timeout)[0]))

    def mark_start(self, *, timeout: float = 120.0) -> None:
        """Call this moment the start, from which `snapshot` counts."""
        age = time.monotonic() - self._began if self._new_layers else -1.0
        request: MarkRequest = {"path": self._top, "age": age, "identified": bool(self._layers), "timeout": timeout}
        self._ask(MARK, request, timeout=timeout)

    def snapshot(self, *, max_bytes: int = MOST_SNAPSHOT, timeout: float = 120.0) -> Snapshot:
        """Return what was written since `mark_start`, in every folder of the sandbox that may be written.

        These are files, folders, links and pipes that were made or changed, with content, modes, owners and times, and
        what was deleted. Processes go on; a file that one writes meanwhile may be half written. Extended attributes and
        the files that a container engine mounts, such as /etc/hosts, are left out.

        Args:
            max_bytes: Largest size of all files together.
            timeout: Seconds that it may take.

        Raises:
            FileError: The files are larger, a file cannot be read, or the start was not marked.
        """
        request: SnapshotRequest = {"path": self._top, "max_bytes": max_bytes, "in_place": {}, "timeout": timeout}
        if self._layers:
            first: SnapshotRequest = {**request, "in_place": None}
            asked, _ = self._ask(SNAPSHOT, first, timeout=timeout)
            request["in_place"] = find_in_place(self._layers, asked["folders"])
        reply, data = self._ask(SNAPSHOT, request, timeout=timeout)
        return Snapshot(reply["entries"], data)

    def restore(self, snapshot: Snapshot, *, timeout: float = 120.0) -> None:
        """Make the files those of a snapshot, in a new sandbox with the same start.

        Args:
            snapshot: Snapshot of a sandbox of this backend, or of one restored from such a snapshot.
            timeout: Seconds that it may take.

        Raises:
            FileError: It leads out of the root of the sandbox, or a file cannot be written.
        """
        request: RestoreRequest = {"path": self._top, "entries": dict(snapshot.entries), "timeout": timeout}
        self._ask(RESTORE, request, snapshot.data, timeout=timeout)

    def end_processes(self, *, commands: bool = False, timeout: float = 10.0) -> bool:
        """Kill every process that ended commands left behind.

        Where commands have a user's rights only, those that took root's, as by `sudo`, may be left.

        Args:
            commands: Also kill running commands and terminals. A killed command's `exec` returns.
            timeout: Seconds that it may take.

        Returns:
            Whether none of them can go on. If one can, closing the sandbox ends it.
        """
        request: EndRequest = {"commands": commands}
        reply, _ = self._ask(END_PROCESSES, request, timeout=timeout)
        return not reply["left"]

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
        self._check_open()
        request: OpenRequest = {
            "argv": self._argv(command),
            "cwd": self.resolve(cwd or ""),
            "env": self.environment(env),
            "rows": rows,
            "columns": columns,
        }
        reply, _ = self._ask(PTY_OPEN, request, timeout=timeout)
        return Pty(self, reply["pty"])

    def forward(self, port: int, handler: Handler, *, max_connections: int = 64) -> Forward:
        """Listen on a port of 127.0.0.1 in the sandbox, and serve its connections in this process, without any network.

        Every process in the sandbox can connect; in tier "process" of the local backend, every process of this machine.

        Args:
            port: TCP port in the sandbox; 0 is any free one.
            handler: Function that serves a `Connection`, in a thread of its own. When it returns or raises, the
                connection is closed; an error is logged.
            max_connections: Open connections at most. Further ones wait to be accepted.

        Returns:
            The open port. It is closed with `Forward.close` or with the sandbox.

        Raises:
            UsageError: An argument is invalid.
            Unsupported: This sandbox has no sockets, or its backend has no forwarded ports.
            SandboxError: The port cannot be opened, for example because a process in the sandbox has it.
        """
        if not 0 <= port <= 65535 or max_connections < 1:
            raise UsageError(f"port must be 0 to 65535, and max_connections positive: {port=}, {max_connections=}")
        return self._call(self._forward, port, handler, max_connections)

    # --- what callers and backends share ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sandbox offers. Available once it is open."""

    @property
    def privileged(self) -> Sandbox:
        """This sandbox with all its rights; another one only if this one is a `UserSandbox`."""
        return self

    @property
    def workdir(self) -> str:
        """Path of the workspace, as commands in the sandbox see it."""
        return self.spec.workdir

    @property
    def image_digest(self) -> str:
        """Digest of the running image, or an empty text if the backend knows none."""
        return ""

    @property
    def origin(self) -> str:
        """Digests of the image and of the workspace that it began with; empty if none is known."""
        return " ".join(filter(None, (self.image_digest, self._origin)))

    @property
    def _top(self) -> str:
        """Path of the topmost folder that may hold files of the sandbox."""
        return "/"

    def resolve(self, path: str) -> str:
        """Return the absolute, normalised form of a path that is relative to the workdir or absolute.

        If a tier cannot mount the workspace at `spec.workdir`, paths below `spec.workdir` map to the real `workdir`.
        """
        asked = posixpath.normpath(posixpath.join(self.spec.workdir, path))
        inside = self.spec.workdir.rstrip("/")  # empty for the root
        if self.workdir != self.spec.workdir and (asked + "/").startswith(inside + "/"):
            return self.workdir.rstrip("/") + asked[len(inside) :]
        return asked

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment of a command: clean, the backend's, the spec's, the call's, in this order."""
        known = self._environment or {**CLEAN_ENV, **self._base_env(), **self._network_env, **self.spec.env}
        if self._environment and not extra:
            return known.copy()
        workdir = self.workdir
        return {key: value.replace("{workdir}", workdir) for key, value in {**known, **(extra or {})}.items()}

    def _argv(self, command: str | Sequence[str]) -> list[str]:
        argv = [self._shell, "-c", command] if isinstance(command, str) else [str(part) for part in command]
        if not argv:
            raise UsageError("command is empty")
        return argv

    def _ask(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        """Carry out an operation of `guests.protocol`, as one call. Return its reply, and the reply's payload."""
        return self._call(self._request, operation, request, payload, timeout=timeout)

    def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do one call: refuse it if closed, report a concurrent close as such, close a lost sandbox."""
        self._check_open()
        try:
            return work(*args, **kwargs)
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
            raise SandboxClosed(f"{self} belongs to process {self._owner}, and this process is a fork of it")

    # --- what a backend writes ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _start(self, deadline: float) -> None:
        """Start by `deadline` (of `time.monotonic`) or raise. `_close` is called after a failure."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Stop it and free everything, in any state, within 10 s, without raising.

        Called once; and again by `start` if `close` came while `_start` ran.
        """

    def _closes_network(self) -> bool:
        """Return whether `network="none"` is enforced. It is asked before the start."""
        return True

    def _open_hosts(self) -> None:
        """Let programs reach the hosts of `spec.network` through a proxy."""
        if self.capabilities.network != "hosts":
            self._refuse_hosts()
        assert isinstance(self.spec.network, tuple)
        proxy = HostProxy(self.spec.network, self.id)
        self._network_env = proxy_variables(self._forward(0, proxy.serve, 64).port)

    def _refuse_hosts(self) -> NoReturn:
        raise Unsupported(
            f"backend {self.name!r} cannot close the network here, so it cannot open it for some hosts only "
            f"(network={self.spec.network!r}): use another backend, or another network"
        )

    def _base_env(self) -> Mapping[str, str]:
        """Return the backend's additions to the clean environment, such as PATH and HOME."""
        return {"PATH": self.system_path, "HOME": "/root"}

    @abc.abstractmethod
    def _request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        """Carry out one operation of `guests.protocol.OPERATIONS`.

        Args:
            operation: The operation.
            request: The fields of its request. Paths are absolute.
            payload: The payload of its request.
            timeout: Seconds that it may take.

        Returns:
            The fields of its reply, and the payload.

        Raises:
            FileError: The error of the file system.
            SandboxLost: The sandbox is gone or did not answer in time.
        """

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:  # noqa: ARG002  optional
        raise Unsupported(f"backend {self.name!r} cannot forward ports")


def make_result(reply: ExecReply, output: bytes) -> ExecResult:
    """Return the result of a command."""
    middle = reply["stdout"]
    return ExecResult(
        exit_code=reply["exit_code"],
        signal=reply["signal"],
        timed_out=reply["timed_out"],
        stdout=output[:middle],
        stderr=output[middle:],
        stdout_dropped=reply["stdout_dropped"],
        stderr_dropped=reply["stderr_dropped"],
        duration=reply["duration"],
    )


INODE = (1 << 48) - 1
"""Bits of an inode's number in an overlay that are those of its layer."""


def find_in_place(layers: Sequence[str], folders: Mapping[str, int]) -> dict[str, int]:
    """Return the folders whose inode is that of the topmost layer that has a folder at this path."""
    found = {}
    for path, inode in folders.items():
        for layer in layers:
            with contextlib.suppress(OSError, ValueError):
                status = os.lstat(layer + path)
                if stat.S_ISDIR(status.st_mode):
                    if not (status.st_ino ^ inode) & INODE:
                        found[path] = inode
                    break
    return found


def read_entries(reply: ManifestReply) -> dict[str, FileEntry]:
    """Return the entries of a manifest, sorted by path."""
    with parsing():
        return {
            name: FileEntry(mode=mode, size=size, digest=digest, link=link, ignored=ignored)
            for name, (mode, size, digest, link, ignored) in sorted(reply["entries"].items())
        }
