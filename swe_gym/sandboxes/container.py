"""The base class of backends with images: the image's Python, its environment, and the workspace."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ..cache import build_once, digest
from ..errors import SandboxError, SandboxLost, SandboxStartError, Unsupported
from ..guests.protocol import EXEC, PUT_TAR
from ..types import PythonEnv
from .base import make_result
from .contents.pythons import PORTABLE_FOLDER
from .contents.workspaces import base_commit, prepare_workspace
from .gates import gate
from .runner_sandbox import RunnerSandbox
from .types import SandboxSpec

if TYPE_CHECKING:
    from ..guests.protocol import ExecRequest, Operation, Reply, Request, UnpackRequest

log = logging.getLogger(__name__)

PYTHONS = f"python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/miniconda3/bin/python {PORTABLE_FOLDER}/python3"
NO_PYTHON = 97
NO_PYTHON_SAID = "no Python found in the image"
START = f"""\
for python in {PYTHONS}; do
  command -v "$python" >/dev/null 2>&1 && exec "$python" -I -S -c "$0" "$@"
done
echo "{NO_PYTHON_SAID}; looked for: {PYTHONS}" >&2
exit {NO_PYTHON}
"""

ATTACH_SECONDS = 60
"""Seconds that a running container waits for its client, which may have died."""

BOOT = f"""\
import os, select, sys
def read(size):
    data = b""
    while len(data) < size:
        ready = select.select([0], [], [], {ATTACH_SECONDS})[0]
        piece = os.read(0, size - len(data)) if ready else b""
        if not piece:
            sys.exit("no client attached to this sandbox")
        data += piece
    return data
exec(compile(read(int(read(8))), "sandbox", "exec"), {{"__name__": "sandbox"}})
"""
"""The first program: reads the real one from standard input. So manifests and lists of processes stay short.

It exits if nobody attaches, for example because the client died."""

KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE")
"""Linux capabilities that package managers and test suites use as root."""

VENV = "/opt/venv"
ENVIRONMENTS = (VENV, "/opt/miniconda3/envs/testbed", "{workdir}/.venv", "/root/.venv")
"""Usual places of an image's Python environment. The first that exists goes first on the PATH."""

FIND_ENVIRONMENT = 'for place; do [ -x "$place/bin/python" ] && { printf %s "$place"; exit; }; done; '
FIND_SHELL = "command -v bash >/dev/null && printf 'bash ' || printf 'sh '; "
OR_NONE, OR_MAKE_ONE = "true", 'exec python3 -I -S -c "$0"'

MAKE_ENVIRONMENT = f"""\
import os, sys
venv, lib = {VENV!r}, "python%d.%d" % sys.version_info[:2]
os.makedirs(venv + "/bin")
os.makedirs(venv + "/lib/" + lib + "/site-packages")
for name in ("python", "python3", lib):
    os.symlink(sys.executable, venv + "/bin/" + name)
with open(venv + "/pyvenv.cfg", "w") as file:
    file.write("home = %s\\ninclude-system-site-packages = false\\n" % os.path.dirname(sys.executable))
sys.stdout.write(venv)
"""
"""Makes the environment of a task that asks for a plain Python: the image's, without its packages."""

NOT_INHERITED = frozenset(("HOSTNAME", "LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "TERM", "_"))  # LC_CTYPE: Python sets it


def start_command(program: str, before: str = "", arguments: Sequence[str] = ()) -> list[str]:
    """Return a container's first command: shell lines, then a Python program, run by any Python of the image."""
    return ["/bin/sh", "-c", before + START, program, *arguments]


def boot_input(source: str) -> bytes:
    """Return what `BOOT` reads: a program, after its length in 8 digits."""
    data = source.encode()
    return b"%08d" % len(data) + data


def default_image(python: PythonEnv | None) -> str:
    """Return the image for tasks without one: the official image of their Python."""
    version = python.version if python else ""
    return "python:" + (version or "{}.{}".format(*sys.version_info))


class ContainerSandbox(RunnerSandbox):
    """A sandbox from an image.

    Args:
        spec: Description of the sandbox.
        activate: Python environment to put on the PATH. "auto" looks for the image's, and creates an empty one if the
            task asks for a plain Python or has no image. An empty text keeps the PATH of the image.
        running: Number of commands that may run at once in all sandboxes of this backend, over all processes of this
            user on this machine; None is no limit. A command's timeout starts with its turn.
    """

    _builds = False
    """Whether it can build images, or may have images that were built."""

    def __init__(self, spec: SandboxSpec, activate: str, running: int | None = None) -> None:
        super().__init__(spec)
        if spec.python and spec.python.requirements and not spec.image:
            raise Unsupported(
                f"backend {self.name!r} installs no requirements: set the sandbox option `image` to one that "
                "has them (`swe-gym images build` makes it), or use the local backend"
            )
        if spec.build and not self._builds:
            raise Unsupported(
                f"backend {self.name!r} builds no images, and the task needs one of {spec.build.context}: use the "
                "backend 'docker', or build and push the image and pass its name as the source option `image`"
            )
        self._activation = activate if spec.activate else ""
        self._running = running
        self._cancelled = threading.Event()
        self._image_env: dict[str, str] = {}

    def _default_image(self) -> str:
        """Return the image for tasks with a workspace and no image."""
        return default_image(self.spec.python)

    def _start(self, deadline: float) -> None:
        try:
            self._bring_up(deadline)
        except SandboxLost as loss:
            reason = "timeout" if loss.reason == "unresponsive" else "setup"
            raise SandboxStartError(
                "the sandbox was lost while it started", reason=reason, retryable=True, detail=str(loss)
            ) from loss

    def _bring_up(self, deadline: float) -> None:
        workspace = None
        if self.spec.workspace:
            workspace = prepare_workspace(self.spec.workspace, timeout=deadline - time.monotonic())
            self._origin = base_commit(workspace)
        super()._start(deadline)
        self._image_env = self._read_environment()
        if workspace:
            self._unpack(self.workdir, pack(workspace), deadline)
        self._bring_mounts(deadline)
        self._activate(deadline)

    def _bring_mounts(self, deadline: float) -> None:
        """Copy the folders of `spec.mounts`, compressed."""
        for place, folder in self.spec.mounts.items():
            archive = compress_folder(Path(folder), deadline).read_bytes()
            self._unpack(place, archive, deadline)

    def _unpack(self, place: str, archive: bytes, deadline: float) -> None:
        request: UnpackRequest = {"path": place}
        self._request(PUT_TAR, request, archive, timeout=deadline - time.monotonic())

    def _request(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes = b"", *, timeout: float
    ) -> tuple[Reply, bytes]:
        if self._running is not None and operation.name == EXEC.name and self._state == "open":
            with self._turn(cast("ExecRequest", request)["timeout"]):
                return self._send(operation, request, payload, timeout=timeout)
        return self._send(operation, request, payload, timeout=timeout)

    def _send(
        self, operation: Operation[Request, Reply], request: Request, payload: bytes, *, timeout: float
    ) -> tuple[Reply, bytes]:
        try:
            return super()._request(operation, request, payload, timeout=timeout)
        except SandboxLost as loss:
            loss = self._explain_loss(loss)
            log.warning("sandbox %s was lost during %s (%s): %s", self.id, operation.name, loss.reason, loss)
            raise loss from None

    def _explain_loss(self, loss: SandboxLost) -> SandboxLost:
        """Return the loss with what the backend knows about its cause."""
        return loss

    def _read_environment(self) -> dict[str, str]:
        """Return the image's variables, with which the runner was started."""
        pairs = (item.partition("=") for item in self._runner_env.decode("utf-8", "replace").split("\0") if "=" in item)
        return {name: value for name, _, value in pairs if name not in NOT_INHERITED}

    def _activate(self, deadline: float) -> None:
        """Find the shell for command lines, and put the Python environment first on the PATH."""
        places: list[str] = []
        script = FIND_SHELL
        if self._activation == "auto":
            places = [place.format(workdir=self.workdir) for place in ENVIRONMENTS]
            plain = self.spec.python is not None and not self.spec.python.requirements
            script += FIND_ENVIRONMENT + (OR_MAKE_ONE if plain or not self.spec.image else OR_NONE)
        said = self._must_run(["/bin/sh", "-c", script, MAKE_ENVIRONMENT, *places], deadline)
        self._shell, _, found = said.partition(" ")
        prefix = found if self._activation == "auto" else self._activation
        if prefix:
            path = self._base_env()["PATH"]
            self._image_env |= {"PATH": f"{prefix}/bin:{path}", "VIRTUAL_ENV": prefix}

    @contextlib.contextmanager
    def _turn(self, patience: float) -> Iterator[None]:
        """Wait for a turn of a limited number of running commands."""
        assert self._running is not None
        with contextlib.ExitStack() as stack:
            try:
                deadline = time.monotonic() + patience
                stack.enter_context(gate(f"{self.name}-exec", self._running, deadline, self._cancelled))
            except SandboxStartError as error:
                raise SandboxError(f"the command was not run: {error}", retryable=True) from error
            yield

    def _must_run(self, argv: list[str], deadline: float) -> str:
        """Run a command during the start; return its output."""
        timeout = max(0.1, deadline - time.monotonic())
        request: ExecRequest = {
            "argv": argv,
            "cwd": "/",
            "env": self.environment(),
            "timeout": timeout,
            "grace": 0.0,
            "max_output": 1 << 16,
            "merge": True,
        }
        result = make_result(*self._request(EXEC, request, timeout=timeout))
        if not result.ok:
            text = f"the container cannot run {argv[0]}: {result.describe()}"
            raise SandboxStartError(text, reason="setup", detail=result.text)
        return result.text

    def _base_env(self) -> Mapping[str, str]:
        return {**super()._base_env(), **self._image_env}

    def _limits(self) -> dict[str, int]:
        return {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self.spec.disk_mb << 20}


def pack(folder: Path) -> bytes:
    """Return a folder as a tar archive whose files belong to root."""
    buffer = io.BytesIO()
    write_tar(folder, buffer)
    return buffer.getvalue()


def compress_folder(folder: Path, deadline: float) -> Path:
    """Return the archive of an immutable folder, compressed once and kept in the cache."""

    def build(entry: Path) -> None:
        with gzip.open(entry / "archive", "wb", compresslevel=1) as file:
            write_tar(folder, file)

    return build_once("archives", digest(str(folder)), build, deadline=deadline) / "archive"


def write_tar(folder: Path, file: IO[bytes] | gzip.GzipFile) -> None:
    """Write a folder as a tar archive whose files belong to root."""

    def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = int(member.mtime)  # whole seconds, as in a workspace, save a header for each member
        return member

    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, ".", filter=as_root)
