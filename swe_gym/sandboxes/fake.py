"""A sandbox that runs nothing: scripted replies and faults, for tests of code that uses a sandbox.

The script can be JSON, so it works through `gym.make`:

    gym.make(ID, backend="fake", sandbox_options={"options": {
        "files": {"calc.py": "add = int.__sub__"},
        "replies": [{"match": "pytest", "stdout": "1 failed", "exit_code": 1}],
        "faults": [{"at": "exec", "nth": 3, "error": "SandboxLost", "reason": "oom"}],
    }})

In Python, the calls can be inspected afterwards:

    with FakeSandbox(replies=[Reply(match="^ls", stdout=b"calc.py")]) as sandbox:
        sandbox.exec("ls")
        assert sandbox.calls[-1].target == "ls"
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import os
import posixpath
import re
import shlex
import socket
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from .. import errors
from ..errors import FileError, MissingFile, NotAFile, SandboxClosed, SandboxLost, SandboxStartError, Unsupported
from ..guests.protocol import (
    EXEC,
    GET_TAR,
    MANIFEST,
    OPERATIONS,
    PTY_OPEN,
    PTY_READ,
    PTY_WRITE,
    PUT_TAR,
    READ_FILE,
    RESTORE,
    SNAPSHOT,
    WRITE_FILE,
)
from ..guests.runner import forwards, loop
from ..types import Capabilities, Frozen
from .base import Sandbox
from .channel import RunnerChannel, SocketStream, reply_types
from .runner_sandbox import SandboxForwards
from .types import Forward, Handler, SandboxSpec, parse_options

if TYPE_CHECKING:
    from ..guests.protocol import (
        ExecReply,
        ExecRequest,
        ManifestReply,
        ManifestRequest,
        Nothing,
        OpenRequest,
        Operation,
        PtyReadReply,
        PtyReadRequest,
        PtyReply,
        PtyRequest,
        ReadRequest,
        RestoreRequest,
        SnapshotReply,
        SnapshotRequest,
        UnpackRequest,
        WriteRequest,
    )
    from ..guests.protocol import Reply as AnyReply
    from ..guests.protocol import Request as AnyRequest

Content = Annotated[
    bytes,
    BeforeValidator(lambda value: value.encode() if isinstance(value, str) else value),
    PlainSerializer(lambda value: value.decode("utf-8", "replace"), when_used="json"),
]
"""Bytes, written as text in JSON (not in base64, as other data), because scripts are written by hand."""


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"invalid regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]


def kind_of_call(operation: str) -> str:
    """Return the kind of call that an operation of the runner is: its name, or what several are together."""
    if operation.startswith("pty_"):
        return "pty"
    return "tar" if operation.endswith("_tar") else operation


KINDS = sorted({"start", "close", "forward", *map(kind_of_call, OPERATIONS)})
"""Kinds of calls that a script can let fail."""


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"unknown kind of call {kind!r}: choose from {', '.join(KINDS)}")
    return kind


CLOSE_TIMEOUT = 10.0
DEFAULT_MODE = 0o644


class Reply(Frozen):
    """The scripted result of a command.

    Attributes:
        match: Regular expression to search for in the command; the first reply that matches is used. In a pty, it is
            searched for in the typed text and in the command that opens the pty.
        stdout: Standard output, text in JSON and bytes in Python. In a pty, the printed text.
        stderr: Standard error, text in JSON and bytes in Python.
        exit_code: Exit code. None means 0, or no code after a signal or a timeout. In a pty, a number ends the process.
        signal: Number of the signal that ended the command.
        timed_out: Whether the command timed out.
        times: Number of calls to answer before the next matching reply has its turn; None is no limit.
    """

    match: Pattern = ""
    stdout: Content = b""
    stderr: Content = b""
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    times: int | None = Field(default=None, gt=0)


class Fault(Frozen):
    """A scripted failure: exactly one of `error`, `stall` and `truncate`.

    Attributes:
        at: Kind of call: "start", "close", or an operation of `swe_gym.guests.protocol`. "tar" is both directions;
            "pty" is opening one and every use of it; "forward" is opening a port.
        nth: Number of the call, from 1, or "every".
        match: Regular expression; only calls whose command or path matches are counted.
        error: Name of the error class in `swe_gym.errors` to raise. `SandboxLost` closes the sandbox.
        message: Message of the error.
        reason: `reason` of the error, if its class has one.
        retryable: `retryable` of the error, if its class has it; None is the class's default.
        stall: Whether the call hangs until its deadline, `close` or `FakeSandbox.release`. At its deadline, a start
            raises `SandboxStartError`, a close returns, and any other call raises `SandboxLost`.
        truncate: Number of bytes to which a command's streams, or a file that is read, are cut.
    """

    at: Annotated[str, AfterValidator(_check_kind)]
    nth: int | Literal["every"] = 1
    match: Pattern = ""
    error: str | None = None
    message: str = "a scripted fault"
    reason: str | None = None
    retryable: bool | None = None
    stall: bool = False
    truncate: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if sum((self.error is not None, self.stall, self.truncate is not None)) != 1:
            raise ValueError("a fault needs exactly one of error, stall and truncate")
        if self.truncate is not None and self.at not in ("exec", "read"):
            raise ValueError("only exec and read can be truncated")
        if isinstance(self.nth, int) and self.nth < 1:
            raise ValueError('nth must be at least 1, or "every"')
        if self.error is not None:
            self.make_error()
        return self

    def make_error(self) -> errors.SweGymError:
        """Return the error to raise.

        Raises:
            ValueError: The error is unknown, or has no `reason` or `retryable`.
        """
        kind = getattr(errors, self.error or "", None)
        if not (isinstance(kind, type) and issubclass(kind, errors.SweGymError)):
            raise ValueError(f"swe_gym.errors has no error {self.error!r}")
        given = {"reason": self.reason, "retryable": self.retryable}
        try:
            return kind(self.message, **{name: value for name, value in given.items() if value is not None})
        except TypeError as error:
            raise ValueError(f"{self.error} takes no such argument: {error}") from error


class FakeOptions(Frozen):
    """The script, in `SandboxSpec.options`.

    Attributes:
        files: Path, relative to the workdir or absolute -> content.
        replies: Replies in the order in which they are tried.
        default: Reply to a command that no reply matches.
        faults: Faults; the first that applies to a call happens.
        slack: Seconds that a stalled command gets beyond its timeout and grace.
    """

    files: dict[str, Content] = {}
    replies: tuple[Reply, ...] = ()
    default: Reply = Reply()
    faults: tuple[Fault, ...] = ()
    slack: float = Field(default=2.0, ge=0)


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """One call that reached the sandbox.

    Attributes:
        at: Kind of call.
        target: Command, path, or text typed into a pty.
        arguments: The fields of the request, and its payload by its name: timeout, env, data and so on.
    """

    at: str
    target: str
    arguments: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class _File:
    data: bytes
    mode: int = DEFAULT_MODE


@dataclasses.dataclass
class _Terminal:
    printed: bytearray
    exit_code: int | None


class FakeSandbox(Sandbox):
    """A sandbox that answers from a script and keeps files in memory. It ignores `workspace`, `python` and `image`.

    A forwarded port is one of this machine's loopback interface, for clients in the test's own process. Use port 0.

    Args:
        spec: Description of the sandbox; its options are those of `FakeOptions`.
        **options: Options given directly; they override the spec's.

    Attributes:
        calls: Every call in order, failed ones included.
        stalled: Set while a call is in a scripted stall; cleared by `release`.

    Raises:
        UsageError: An option is unknown or invalid.
    """

    name = "fake"

    def __init__(self, spec: SandboxSpec | None = None, **options: object) -> None:
        spec = spec or SandboxSpec()
        super().__init__(spec)
        self.script = parse_options(FakeOptions, {**spec.options, **options}, self.name)
        self.calls: list[RecordedCall] = []
        self.stalled = threading.Event()
        self._files = {self.resolve(path): _File(data) for path, data in self.script.files.items()}
        self._changed = threading.Condition()
        self._stopping = False
        self._runner: tuple[RunnerChannel, SandboxForwards] | None = None
        self._releases = 0
        self._fault_counts: Counter[int] = Counter()
        self._reply_counts: Counter[int] = Counter()
        self._terminals: dict[int, _Terminal] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[str, Callable[[Any, bytes, int | None], tuple[Any, bytes]]] = {}
        self._offer(EXEC, self._run)
        self._offer(READ_FILE, self._read)
        self._offer(WRITE_FILE, self._write)
        self._offer(PUT_TAR, self._unpack)
        self._offer(GET_TAR, self._pack)
        self._offer(MANIFEST, self._list)
        self._offer(SNAPSHOT, self._take)
        self._offer(RESTORE, self._put_back)
        self._offer(PTY_OPEN, self._open_terminal)
        self._offer(PTY_READ, self._read_terminal)
        self._offer(PTY_WRITE, self._write_terminal)

    @property
    def capabilities(self) -> Capabilities:
        """See `Sandbox.capabilities`. A fake isolates nothing, because it runs nothing."""
        return Capabilities(
            backend=self.name,
            isolation="none",
            transport="script",
            network=self.spec.access,
            notes=("Commands are not run.",),
        )

    def release(self) -> None:
        """Let every stalled call continue normally."""
        with self._changed:
            self._releases += 1
            self.stalled.clear()
            self._changed.notify_all()

    # --- life -----------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> None:
        if self.spec.min_isolation != "none":
            raise Unsupported(f"a fake sandbox isolates nothing, less than min_isolation={self.spec.min_isolation!r}")
        self._record("start", "", {}, deadline)

    def _close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._runner:
            self._runner[0].close()
        self._record("close", "", {}, time.monotonic() + CLOSE_TIMEOUT)

    # --- the script -----------------------------------------------------------------------------------

    def _record(self, at: str, target: str, arguments: Mapping[str, object], deadline: float) -> Fault | None:
        """Record a call and carry out its fault; return the fault if it truncates, which the caller does."""
        with self._changed:
            self.calls.append(RecordedCall(at, target, arguments))
            fault = self._due(at, target)
        if fault is None or fault.truncate is not None:
            return fault
        if fault.stall:
            self._stall(at, deadline)
            return None
        raise fault.make_error()

    def _due(self, at: str, target: str) -> Fault | None:
        due = None
        for index, fault in enumerate(self.script.faults):
            if fault.at == at and re.search(fault.match, target):
                self._fault_counts[index] += 1
                if due is None and fault.nth in ("every", self._fault_counts[index]):
                    due = fault
        return due

    def _stall(self, at: str, deadline: float) -> None:
        with self._changed:
            before = self._releases
            self.stalled.set()
            self._changed.wait_for(
                lambda: self._releases != before or (self._stopping and at != "close"), deadline - time.monotonic()
            )
            released, stopping = self._releases != before, self._stopping
        if released or at == "close":
            return
        if stopping:
            raise SandboxClosed(f"{self} was closed during the call")
        if at == "start":
            raise SandboxStartError("a scripted stall", reason="timeout", retryable=True)
        raise SandboxLost("a scripted stall: no answer by the deadline", reason="unresponsive")

    def _reply(self, text: str) -> Reply:
        with self._changed:
            for index, reply in enumerate(self.script.replies):
                used_up = reply.times is not None and self._reply_counts[index] >= reply.times
                if not used_up and re.search(reply.match, text):
                    self._reply_counts[index] += 1
                    return reply
        return self.script.default

    # --- operations -----------------------------------------------------------------------------------

    def _offer(
        self,
        operation: Operation[AnyRequest, AnyReply],
        answer: Callable[[AnyRequest, bytes, int | None], tuple[AnyReply, bytes]],
    ) -> None:
        """Let `answer` carry out an operation. It takes the request, its payload, and the bytes to truncate to."""
        self._answers[operation.name] = answer

    def _request(
        self, operation: Operation[AnyRequest, AnyReply], request: AnyRequest, payload: bytes = b"", *, timeout: float
    ) -> tuple[AnyReply, bytes]:
        """Record the operation, carry out its fault, and answer: with an empty reply if nothing else is known."""
        fields = cast("Mapping[str, Any]", request)
        arguments = {**fields, operation.payload: payload} if operation.payload else fields
        deadline = time.monotonic() + timeout + (self.script.slack if operation.name == EXEC.name else 0.0)
        fault = self._record(kind_of_call(operation.name), _target(fields, payload), arguments, deadline)
        answer = self._answers.get(operation.name)
        if answer is None:
            return empty_reply(operation), b""
        return answer(request, payload, fault.truncate if fault else None)

    def _forward(self, port: int, handler: Handler, max_connections: int) -> Forward:
        arguments = {"max_connections": max_connections}
        self._record("forward", str(port), arguments, time.monotonic() + CLOSE_TIMEOUT)
        with self._lock:
            self._check_open()
            self._runner = self._runner or _start_runner(f"sandbox {self.id}")
        return self._runner[1].open(port, handler, max_connections)

    def _run(self, request: ExecRequest, _: bytes, cut: int | None) -> tuple[ExecReply, bytes]:
        limit = request["max_output"] if cut is None else min(request["max_output"], cut)
        reply = self._reply(_command_text(request["argv"]))
        stdout, stderr = (reply.stdout + reply.stderr, b"") if request["merge"] else (reply.stdout, reply.stderr)
        stdout, stdout_dropped = _head_and_tail(stdout, limit)
        stderr, stderr_dropped = _head_and_tail(stderr, limit)
        ended_itself = reply.signal is None and not reply.timed_out
        answer: ExecReply = {
            "exit_code": (reply.exit_code or 0) if ended_itself else reply.exit_code,
            "signal": reply.signal,
            "timed_out": reply.timed_out,
            "duration": request["timeout"] if reply.timed_out else 0.0,
            "stdout": len(stdout),
            "stdout_dropped": stdout_dropped,
            "stderr_dropped": stderr_dropped,
        }
        return answer, stdout + stderr

    def _open_terminal(self, request: OpenRequest, _: bytes, __: int | None) -> tuple[PtyReply, bytes]:
        reply = self._reply(_command_text(request["argv"]))
        number = next(self._numbers)
        self._terminals[number] = _Terminal(bytearray(reply.stdout), reply.exit_code)
        return {"pty": number}, b""

    def _write_terminal(self, request: PtyRequest, data: bytes, _: int | None) -> tuple[Nothing, bytes]:
        """Print the reply to the typed text."""
        terminal = self._terminals[request["pty"]]
        if terminal.exit_code is None:
            reply = self._reply(data.decode("utf-8", "replace"))
            terminal.printed += reply.stdout
            terminal.exit_code = reply.exit_code
        return {}, b""

    def _read_terminal(self, request: PtyReadRequest, marker: bytes, _: int | None) -> tuple[PtyReadReply, bytes]:
        terminal = self._terminals[request["pty"]]
        start = terminal.printed.find(marker)
        end = len(terminal.printed) if start < 0 else start + len(marker)
        data = bytes(terminal.printed[:end])
        del terminal.printed[:end]
        return {"found": start >= 0, "exit_code": terminal.exit_code}, data

    # --- files ----------------------------------------------------------------------------------------

    def _read(self, request: ReadRequest, _: bytes, cut: int | None) -> tuple[Nothing, bytes]:
        path, max_bytes = request["path"], request["max_bytes"]
        if self._is_folder(path):
            raise NotAFile(f"is a directory: {path}")
        if path not in self._files:
            raise MissingFile(f"no such file: {path}")
        data = self._files[path].data
        if len(data) > max_bytes:
            raise FileError(f"{path} has {len(data)} bytes, more than {max_bytes}")
        return {}, data[:cut]

    def _write(self, request: WriteRequest, data: bytes, _: int | None) -> tuple[Nothing, bytes]:
        path, mode = request["path"], request["mode"]
        self._check_writable(path)
        before = self._files.get(path, _File(b""))
        self._files[path] = _File(data, before.mode if mode is None else mode)
        return {}, b""

    def _unpack(self, request: UnpackRequest, data: bytes, _: int | None) -> tuple[Nothing, bytes]:
        unpacked = {posixpath.join(request["path"], name): file for name, file in _unpack(data).items()}
        for target in unpacked:
            self._check_writable(target)
        self._files.update(unpacked)
        return {}, b""

    def _pack(self, request: ReadRequest, _: bytes, __: int | None) -> tuple[Nothing, bytes]:
        path, max_bytes = request["path"], request["max_bytes"]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, file in self._below(path).items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(file.data), file.mode
                archive.addfile(member, io.BytesIO(file.data))
        if buffer.tell() > max_bytes:
            raise FileError(f"the tar archive of {path} is larger than {max_bytes} bytes")
        return {}, buffer.getvalue()

    def _list(self, request: ManifestRequest, names: bytes, _: int | None) -> tuple[ManifestReply, bytes]:
        only = os.fsdecode(names).split("\0") if request["only"] else None
        found = {
            name: [file.mode, len(file.data), hashlib.sha256(file.data).hexdigest(), None, ""]
            for name, file in self._below(request["path"]).items()
            if not any(fnmatchcase(part, pattern) for part in name.split("/") for pattern in request["exclude"])
            and (only is None or name in only)
        }
        if len(found) > request["max_files"]:
            raise FileError(f"{request['path']} has more than {request['max_files']} files")
        return {"entries": found}, b""

    def _take(self, _: SnapshotRequest, __: bytes, ___: int | None) -> tuple[SnapshotReply, bytes]:
        """Return all files: none is known to be as it was."""
        entries = {name[1:]: ["file", file.mode, 0, 0, 0, len(file.data)] for name, file in self._files.items()}
        return {"entries": entries, "folders": {}}, b"".join(file.data for file in self._files.values())

    def _put_back(self, request: RestoreRequest, data: bytes, _: int | None) -> tuple[Nothing, bytes]:
        content = io.BytesIO(data)
        files = request["entries"].items()
        self._files = {f"/{name}": _File(content.read(entry[5]), entry[1]) for name, entry in files}
        return {}, b""

    def _is_folder(self, path: str) -> bool:
        return path in ("/", self.workdir) or any(name.startswith(path + "/") for name in self._files)

    def _below(self, folder: str) -> dict[str, _File]:
        if not self._is_folder(folder):
            raise MissingFile(f"no such folder: {folder}")
        start = folder.rstrip("/") + "/"
        return {name[len(start) :]: file for name, file in sorted(self._files.items()) if name.startswith(start)}

    def _check_writable(self, path: str) -> None:
        if self._is_folder(path):
            raise NotAFile(f"is a directory: {path}")
        for parent in map(str, PurePosixPath(path).parents):
            if parent in self._files:
                raise FileError(f"not a directory: {parent}")


def empty_reply(operation: Operation[Any, AnyReply]) -> AnyReply:
    """Return a reply of an operation in which everything is zero, empty or None."""
    types = reply_types(operation)
    return cast("AnyReply", {name: types[name][-1]() for name in types if name != "id"})


def _target(fields: Mapping[str, Any], payload: bytes) -> str:
    """Return what a call is about: its command, its path, or what is typed or looked for."""
    if "argv" in fields:
        return _command_text(fields["argv"])
    return str(fields["path"]) if "path" in fields else payload.decode("utf-8", "replace")


def _command_text(argv: Sequence[str]) -> str:
    """Return a command as one line: the shell line, or the quoted arguments."""
    return argv[2] if argv[:2] == ["bash", "-c"] else shlex.join(argv)


def _head_and_tail(data: bytes, limit: int) -> tuple[bytes, int]:
    """Return the first quarter and the last three quarters of `limit` bytes, and how many were cut."""
    if len(data) <= limit:
        return data, 0
    head = limit // 4
    return data[:head] + data[len(data) - (limit - head) :], len(data) - limit


def _unpack(data: bytes) -> dict[str, _File]:
    """Return the regular files of a tar archive. Folders are implied."""
    files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                if name.startswith(("/", "../")) or name == "..":
                    raise FileError(f"tar member leads out of the folder: {member.name}")
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    files[name] = _File(content.read(), member.mode)
                elif not member.isdir():
                    raise FileError(f"FakeSandbox supports only regular files, not {member.name}")
    except tarfile.TarError as error:
        raise FileError(f"not a tar archive: {error}") from error
    return files


def _start_runner(name: str) -> tuple[RunnerChannel, SandboxForwards]:
    """Run the part of the runner that forwards ports in a thread, until the channel is closed."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_serve, args=[theirs], name=f"runner of {name}", daemon=True).start()
    channel = RunnerChannel(SocketStream(ours))
    return channel, SandboxForwards(channel, name)


def _serve(stream: socket.socket) -> None:
    """Serve a stream to its end, and free everything."""
    sink = os.dup(stream.fileno())
    runner = loop.Loop(stream.fileno(), sink)
    ports = forwards.Forwards(runner)
    try:
        runner.run()
    finally:
        for number in list(ports.listeners):
            ports.forward_close({"forward": number}, b"")
        os.close(sink)
        stream.close()
