"""The wire between host and runner: its operations, and the frames that they exchange over one byte stream.

`OPERATIONS` is the table of what the host may ask of the runner: the fields of each request and of its reply, with
their types. Both ends, the fake sandbox and the tests read it.

A frame is `SWE1`, the length of a JSON object, the length of a payload (both 32 bits, big-endian), the object in
UTF-8, the payload. A request carries "id", "op" and the fields of its operation; its reply carries the same "id". A
reply with "error" is a failure: "error" holds [errno name or "BadRequest", message]. The runner may send frames without
"id": events. The host may send requests without a reply, on forwarded connections.
"""

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generic, TypedDict, TypeVar

    Message = dict[str, Any]
    Frame = tuple[Message, bytes]
    Request = TypeVar("Request")
    Reply = TypeVar("Reply")

    class Operation(Generic[Request, Reply]):
        """An operation of the runner.

        Attributes:
            name: Its name on the wire.
            request: Fields of its request.
            reply: Fields of its reply.
            payload: What the payload of its request is; empty if it has none.
        """

        def __init__(
            self, name: str, request: Callable[..., Request], reply: Callable[..., Reply], payload: str = ""
        ) -> None:
            self.name, self.request, self.reply, self.payload = name, request, reply, payload


if not TYPE_CHECKING:  # a guest has no `typing`; a request is a plain dict at both ends, and is not converted

    def TypedDict(_, fields, total=True):
        return fields

    class UntypedOperation:
        """An `Operation`, without what only the type checker reads."""

        def __init__(self, name, request, reply, payload=""):
            self.name, self.request, self.reply, self.payload = name, request, reply, payload

    Operation = UntypedOperation


def fields_of(kind: "Callable[..., object]") -> "dict[str, str]":
    """Return the fields of a request or of a reply: name -> type."""
    return kind  # type: ignore[return-value]  # what `TypedDict` returned above


# --- the operations -------------------------------------------------------------------------------------------

Nothing = TypedDict("Nothing", {})

HelloRequest = TypedDict("HelloRequest", {"limits": "dict[str, int]", "memory": "int", "ttl": "float"})
HelloReply = TypedDict("HelloReply", {"python": "str", "unprotected": "str"})
HELLO = Operation("hello", HelloRequest, HelloReply)
"""Set resource limits, the bytes of memory to watch (0: none) and the seconds to live. The payload of the reply is the
environment that the runner was started with, which holds what an image sets."""

ExecRequest = TypedDict(
    "ExecRequest",
    {
        "argv": "list[str]",
        "cwd": "str",
        "env": "dict[str, str]",
        "timeout": "float",
        "grace": "float",
        "max_output": "int",
        "merge": "bool",
    },
)
ExecReply = TypedDict(
    "ExecReply",
    {
        "exit_code": "int | None",
        "signal": "int | None",
        "timed_out": "bool",
        "duration": "float",
        "stdout": "int",
        "stdout_dropped": "int",
        "stderr_dropped": "int",
    },
)
EXEC = Operation("exec", ExecRequest, ExecReply, "stdin")
"""Run a command. The payload of the reply is both streams; the first `stdout` bytes are standard output."""

EndRequest = TypedDict("EndRequest", {"commands": "bool"})
EndReply = TypedDict("EndReply", {"left": "bool"})
END_PROCESSES = Operation("end_processes", EndRequest, EndReply)
"""`left`: whether there is one that can go on."""

ReadRequest = TypedDict("ReadRequest", {"path": "str", "max_bytes": "int", "timeout": "float"})
READ_FILE = Operation("read", ReadRequest, Nothing)
GET_TAR = Operation("get_tar", ReadRequest, Nothing)

WriteRequest = TypedDict("WriteRequest", {"path": "str", "mode": "int | None"})
WRITE_FILE = Operation("write", WriteRequest, Nothing, "data")

UnpackRequest = TypedDict("UnpackRequest", {"path": "str"})
PUT_TAR = Operation("put_tar", UnpackRequest, Nothing, "data")

ManifestRequest = TypedDict(
    "ManifestRequest",
    {
        "path": "str",
        "exclude": "list[str]",
        "max_files": "int",
        "max_ignored": "int | None",
        "max_hashed": "int | None",
        "only": "bool",
        "timeout": "float",
    },
)
ManifestReply = TypedDict("ManifestReply", {"entries": "dict[str, list[Any]]"})
MANIFEST = Operation("manifest", ManifestRequest, ManifestReply, "names")
"""List files. If `only`, list those that the payload names, with NUL between them."""

MarkRequest = TypedDict("MarkRequest", {"path": "str", "age": "float", "identified": "bool", "timeout": "float"})
SnapshotRequest = TypedDict(
    "SnapshotRequest", {"path": "str", "max_bytes": "int", "in_place": "dict[str, int] | None", "timeout": "float"}
)
SnapshotReply = TypedDict("SnapshotReply", {"entries": "dict[str, list[Any]]", "folders": "dict[str, int]"})
RestoreRequest = TypedDict("RestoreRequest", {"path": "str", "entries": "dict[str, list[Any]]", "timeout": "float"})
MARK = Operation("mark", MarkRequest, Nothing)
"""Call this moment the start. `age`: seconds since nothing of the sandbox was there; negative if that is not known.
`identified`: whether the host can tell which folders of an overlay's lower layers are in place."""
SNAPSHOT = Operation("snapshot", SnapshotRequest, SnapshotReply)
"""Return what was written since the start. The payload of the reply is the content of all files, in their order.
`in_place`: changed folders that the host identified, with their inodes. If it is None, the reply has only `folders`:
those that the host must identify, with their inodes."""
RESTORE = Operation("restore", RestoreRequest, Nothing, "content")

OpenRequest = TypedDict(
    "OpenRequest", {"argv": "list[str]", "cwd": "str", "env": "dict[str, str]", "rows": "int", "columns": "int"}
)
PtyReply = TypedDict("PtyReply", {"pty": "int"})
PtyRequest = TypedDict("PtyRequest", {"pty": "int"})
PtyReadRequest = TypedDict("PtyReadRequest", {"pty": "int", "timeout": "float"})
PtyReadReply = TypedDict("PtyReadReply", {"found": "bool", "exit_code": "int | None"})
PtySignalRequest = TypedDict("PtySignalRequest", {"pty": "int", "signal": "int"})
PTY_OPEN = Operation("pty_open", OpenRequest, PtyReply)
PTY_READ = Operation("pty_read", PtyReadRequest, PtyReadReply, "marker")
PTY_WRITE = Operation("pty_write", PtyRequest, Nothing, "data")
PTY_SIGNAL = Operation("pty_signal", PtySignalRequest, Nothing)
PTY_CLOSE = Operation("pty_close", PtyRequest, Nothing)

ListenRequest = TypedDict("ListenRequest", {"forward": "int", "port": "int", "max_connections": "int"})
ListenReply = TypedDict("ListenReply", {"port": "int", "unsupported": "str"})
ForwardRequest = TypedDict("ForwardRequest", {"forward": "int"})
ConnectionRequest = TypedDict("ConnectionRequest", {"connection": "int"})
TakenRequest = TypedDict("TakenRequest", {"connection": "int", "size": "int"})
FORWARD_OPEN = Operation("forward_open", ListenRequest, ListenReply)
FORWARD_WAIT = Operation("forward_wait", ForwardRequest, Nothing)
FORWARD_CLOSE = Operation("forward_close", ForwardRequest, Nothing)
FORWARD_DATA = Operation("forward_data", ConnectionRequest, Nothing, "data")  # this one and the next two: no reply
FORWARD_TAKEN = Operation("forward_taken", TakenRequest, Nothing)
FORWARD_END = Operation("forward_end", ConnectionRequest, Nothing)

OPERATIONS: "dict[str, Operation[Any, Any]]" = {
    operation.name: operation
    for operation in (
        *(HELLO, EXEC, END_PROCESSES, READ_FILE, WRITE_FILE, PUT_TAR, GET_TAR, MANIFEST),
        *(MARK, SNAPSHOT, RESTORE),
        *(PTY_OPEN, PTY_READ, PTY_WRITE, PTY_SIGNAL, PTY_CLOSE),
        *(FORWARD_OPEN, FORWARD_WAIT, FORWARD_CLOSE, FORWARD_DATA, FORWARD_TAKEN, FORWARD_END),
    )
}

ForwardEvent = TypedDict(
    "ForwardEvent",
    {"event": "str", "connection": "int", "forward": "int", "taken": "int", "end": "bool", "gone": "bool"},
    total=False,
)
"""What happened to a forwarded connection: a new one has `forward`. The payload is what its client sent."""

# --- the frames -----------------------------------------------------------------------------------------------

MAGIC = b"SWE1"
HEADER = struct.Struct(">4sII")
MAX_OBJECT = 64 << 20
MAX_PAYLOAD = 1 << 30

WINDOW = 1 << 18
"""Bytes of a forwarded connection that either end may send before the other end has passed them on."""

PIECE = 1 << 16
"""Bytes of a forwarded connection in a frame, at most."""


class ProtocolError(Exception):
    """The bytes are not a frame. The stream cannot be used any further."""


def encode(message: "Message", payload: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Raises:
        ProtocolError: The frame would be too large.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_OBJECT or len(payload) > MAX_PAYLOAD:
        raise ProtocolError("too large for a frame: {} and {} bytes".format(len(body), len(payload)))
    return b"".join((HEADER.pack(MAGIC, len(body), len(payload)), body, payload))


class Decoder:
    """Turns received bytes, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> "list[Frame]":
        """Take bytes; return the frames (message, payload) that they complete.

        Raises:
            ProtocolError: The bytes are not a frame, or announce one that is too large.
        """
        self._buffer += data
        frames: list[Frame] = []
        while True:
            frame = self._next()
            if frame is None:
                return frames
            frames.append(frame)

    def _next(self) -> "Frame | None":
        if len(self._buffer) < HEADER.size:
            if not MAGIC.startswith(bytes(self._buffer[:4])):
                raise ProtocolError("not a frame: {!r}".format(bytes(self._buffer[:64])))
            return None
        magic, object_size, payload_size = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or object_size > MAX_OBJECT or payload_size > MAX_PAYLOAD:
            raise ProtocolError("not a frame: {!r}".format(bytes(self._buffer[:64])))
        start, middle = HEADER.size, HEADER.size + object_size
        end = middle + payload_size
        if len(self._buffer) < end:
            return None
        try:
            message = json.loads(bytes(self._buffer[start:middle]).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ProtocolError("not JSON: {}".format(error)) from error
        if not isinstance(message, dict):
            raise ProtocolError("not a JSON object: {!r}".format(message))
        payload = bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return message, payload
