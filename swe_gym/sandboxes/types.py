"""The types of a sandbox's contract: its description, forwarded ports, and a line of a report about a backend."""

import json
import logging
import posixpath
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from ..errors import ConnectionEnded, SandboxClosed, SandboxLost, Unsupported, UsageError, unknown_name, wrong_fields
from ..guests.runner.snapshots import check_entries
from ..types import START_TIMEOUT, Frozen, ImageBuild, JsonMapping, JsonObject, NetworkAccess, PythonEnv, Workspace

ISOLATION_LEVELS = ("none", "process", "landlock", "namespace", "container", "vm")
"""Values of `SandboxSpec.min_isolation`, weakest first."""

LONGEST_TTL, LONGEST_START = 1e10, 1e6
"""Largest values in seconds, infinity included: clocks, labels and system calls cannot count further."""


def _normalise(workdir: str) -> str:
    """Remove `..`, which could leave the folder that stands for the root if nothing can be mounted."""
    return "/" + posixpath.normpath(workdir).lstrip("/")


class SandboxSpec(Frozen):
    """A frozen description of a sandbox. Every backend takes the same fields.

    Attributes:
        image: Container image, template or tool name.
        workspace: Initial content of `workdir`, if there is no image.
        python: Python environment, if there is no image.
        workdir: Absolute path of the workspace, in which commands start.
        env: Variables added to the clean environment of every command; `{workdir}` in a value is replaced.
        user: User that runs the commands; None is the backend's default.
        cpus: CPU limit in cores; None is the backend's default.
        memory_mb: Memory limit in MiB; None is the backend's default, `DEFAULT_MEMORY_MB` unless its options change it.
        disk_mb: Disk limit in MiB.
        pids: Limit of processes and threads.
        network: Network access: "none", "egress", or the hosts that programs reach through a proxy: `hosts.HostProxy`.
        ttl: Seconds after which the sandbox ends itself, even if this process is gone.
        start_timeout: Seconds that the start may take.
        min_isolation: Weakest isolation to accept; a backend that offers less raises `Unsupported`.
        activate: Whether a Python environment of the image may go first on the PATH, as the backend's option `activate`
            says. False keeps the image's PATH.
        build: Build of the image, on backends that build images; nothing is built if the backend has the image.
        labels: Labels of the sandbox, on backends that have them.
        mounts: Read-only folders: absolute path in the sandbox -> folder of this machine, whose content never changes.
            Backends that cannot mount them copy them at the start.
        options: Options of the backend; an unknown one is an error.
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
    network: NetworkAccess = "none"
    ttl: Annotated[float, AfterValidator(lambda seconds: min(seconds, LONGEST_TTL))] = Field(default=6 * 3600.0, gt=0)
    start_timeout: Annotated[float, AfterValidator(lambda seconds: min(seconds, LONGEST_START))] = Field(
        default=START_TIMEOUT, gt=0
    )
    min_isolation: Literal["none", "process", "landlock", "namespace", "container", "vm"] = "none"
    activate: bool = True
    build: ImageBuild | None = None
    labels: dict[str, str] = {}
    mounts: dict[str, str] = {}
    options: JsonObject = {}

    @property
    def access(self) -> Literal["none", "hosts", "egress"]:
        """The kind of its network access, as in `Capabilities.network`."""
        return "hosts" if isinstance(self.network, tuple) else self.network

    @property
    def closed(self) -> bool:
        """Whether the backend must give the sandbox no network. If it may reach hosts, it does so through a proxy."""
        return self.network != "egress"


DEFAULT_MEMORY_MB = 4096
"""Memory limit in MiB if the description sets none, on every backend of this package."""

Options = TypeVar("Options", bound=Frozen)


def parse_options(model: type[Options], options: JsonMapping, backend: str) -> Options:
    """Validate a backend's own options.

    Raises:
        UsageError: A name is unknown (the message lists the known ones) or a value is invalid.
    """
    for name in options:
        if name not in model.model_fields:
            raise unknown_name(f"option of backend {backend!r}:", name, model.model_fields)
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(f"options of backend {backend!r}: {wrong_fields(error)}") from error


def demand_isolation(spec: SandboxSpec, given: str, backend: str, advice: str) -> None:
    """Raise `Unsupported` if a backend offers less isolation than the spec demands; `advice` ends the message."""
    if ISOLATION_LEVELS.index(given) < ISOLATION_LEVELS.index(spec.min_isolation):
        offer = f"backend {backend!r} offers isolation {given!r} here"
        raise Unsupported(f"{offer}, less than min_isolation={spec.min_isolation!r}. {advice}")


def make_spec(base: SandboxSpec, options: JsonObject) -> SandboxSpec:
    """Return `base` with a user's `sandbox_options`: fields of the spec, with the backend's own under "options".

    Raises:
        UsageError: A name is not a field of `SandboxSpec` (the message lists them), or a value is invalid.
    """
    for name in options:
        if name not in SandboxSpec.model_fields:
            unknown = unknown_name("sandbox option", name, SandboxSpec.model_fields)
            raise UsageError(f"{unknown} Options of a backend belong under `options`.")
    try:
        return SandboxSpec.model_validate({**base.model_dump(), **options})
    except ValidationError as error:
        raise UsageError(f"sandbox options: {wrong_fields(error)}") from error


log = logging.getLogger(__name__)


class Connection(Protocol):
    """A connection that a process in the sandbox made to a forwarded port. Any thread may use it."""

    def recv(self, size: int, *, timeout: float) -> bytes:
        """Return at least one and at most `size` bytes, or `b""` once the client has sent everything.

        Raises:
            ConnectionTimeout: No byte came within `timeout` seconds.
            ConnectionEnded: The connection is closed, or its client is gone.
            SandboxLost, SandboxClosed: The sandbox is gone.
        """
        ...

    def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of `data`; wait while the client does not read and the buffers are full.

        Raises:
            ConnectionTimeout: The client did not read within `timeout` seconds. A part of `data` may be sent.
            ConnectionEnded: The connection is closed, or its client is gone.
            SandboxLost, SandboxClosed: The sandbox is gone.
        """
        ...

    def close(self) -> None:
        """Close the connection. Idempotent, from any thread.

        What was sent still reaches the client, unless it does not read for 60 s. What it sends is discarded.
        """
        ...


class Forward(Protocol):
    """A forwarded port, as `Sandbox.forward` returns it."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 in the sandbox."""
        ...

    def close(self) -> None:
        """Stop listening and end all connections of the port. Idempotent, from any thread, without raising."""
        ...


Handler = Callable[[Connection], None]
"""Serves a connection in a thread of its own. When it returns or raises, the connection is closed."""


def start_handler(handler: Handler, connection: Connection, name: str) -> None:
    """Run a handler in a thread, and close the connection after it."""

    def serve() -> None:
        try:
            handler(connection)
        except (ConnectionEnded, SandboxClosed, SandboxLost) as error:
            log.info("%s: a connection ended early: %s", name, error)
        except Exception:
            log.exception("%s: the handler of a connection failed", name)
        finally:
            connection.close()

    try:
        threading.Thread(target=serve, name=name, daemon=True).start()
    except RuntimeError:
        log.exception("%s: no thread for a connection", name)
        connection.close()


class Identity(NamedTuple):
    """Who runs the commands of a sandbox.

    Attributes:
        names: Number and name of the image's user. The name is empty if it has none.
        python: Path of a Python that only root can change; empty if there is none.
    """

    names: tuple[str, str]
    python: str


MOST_SNAPSHOT = 256 << 20
"""Bytes of the files of a snapshot, by default."""

LONGEST_ENTRIES = 64 << 20


class Snapshot(NamedTuple):
    """What a sandbox wrote since its start. It has no content of files that were not written.

    Attributes:
        entries: Path, relative to the root of the sandbox ("" is the root) -> entry, as in
            `swe_gym.guests.runner.snapshots`. Folders come before what is in them.
        data: Content of all files, in the order of the entries.
    """

    entries: Mapping[str, list[Any]]
    data: bytes

    def pack(self) -> bytes:
        """Return the snapshot as bytes for `unpack`, compressed."""
        head = json.dumps(self.entries, separators=(",", ":")).encode("ascii")
        return zlib.compress(b"%d\n%b%b" % (len(head), head, self.data), 1)

    @classmethod
    def unpack(cls, packed: bytes, *, max_bytes: int = MOST_SNAPSHOT) -> "Snapshot":
        """Return the snapshot that `pack` made bytes of. The bytes need not be trusted.

        Raises:
            UsageError: They are not a snapshot, lead out of a sandbox's root, or have more than `max_bytes`.
        """
        try:
            unpacking = zlib.decompressobj()
            plain = unpacking.decompress(packed, max_bytes + LONGEST_ENTRIES)
            if unpacking.unconsumed_tail:
                raise ValueError(f"its files have more than {max_bytes} bytes")
            start = plain.index(b"\n") + 1
            end = start + int(plain[: start - 1])
            entries, data = json.loads(plain[start:end]), plain[end:]
            del plain
            check_entries(entries, len(data))
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError, OSError, zlib.error) as error:
            raise UsageError(f"not a snapshot of a sandbox: {getattr(error, 'strerror', None) or error}") from error
        return cls(entries, data)


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        what: Name of the check.
        works: Whether it passed.
        detail: Description of the result.
        fix: Fix if it failed.
        needed: Whether no sandbox can start if it fails. Then `swe-gym doctor` exits with status 1.
        main: Whether `swe-gym doctor` shows it without `--verbose`.
        notes: More sentences, shown with `--verbose`.
    """

    what: str
    works: bool
    detail: str
    fix: str = ""
    needed: bool = True
    main: bool = False
    notes: tuple[str, ...] = ()
