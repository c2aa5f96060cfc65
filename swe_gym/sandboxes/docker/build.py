"""Building images for sandboxes that have none: a base image, a Python, its requirements, a workspace, as layers."""

import contextlib
import hashlib
import io
import json
import logging
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...cache import build_once, cache_folder, digest
from ...errors import SandboxStartError, TaskError
from ...types import JsonObject, PythonEnv
from ..container import VENV
from ..contents.pythons import PreparedPython, prepare_python
from ..contents.workspaces import prepare_workspace
from ..types import SandboxSpec
from .engine import connect, engine_errors
from .images import build_dockerfile, find_image

Change = Callable[[tarfile.TarInfo, bytes], bytes | None]
"""A function of a file's or link's member (named relative to the folder) and content that returns the new content.

It may change the member. None omits it.
"""


@dataclass(frozen=True)
class Layer:
    """A folder to add to an image.

    Attributes:
        path: Absolute path of the folder in the image.
        folder: The folder on this machine.
        change: Rewrites or omits files.
    """

    path: str
    folder: Path
    change: Change = lambda _, content: content

    @property
    def fingerprint(self) -> str:
        """A text that changes with the content of the layer."""
        if self.folder.is_relative_to(cache_folder()):
            return f"{self.path} {self.folder}"  # the cache is immutable
        found = hashlib.sha256(self.path.encode())
        for member, content in self.members():
            found.update(repr((member.name, member.type, member.mode, member.linkname, content)).encode())
        return found.hexdigest()

    def members(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """Yield the layer's members with their content, parents first. Root owns them all."""
        with tarfile.open(fileobj=io.BytesIO(), mode="w") as archive:
            for folder, folders, files in os.walk(self.folder):
                folders.sort()
                for name in sorted([*folders, *files]):
                    path = os.path.join(folder, name)
                    found = self._member(archive.gettarinfo(path, os.path.relpath(path, self.folder)), path)
                    if found is not None:
                        yield found
                    elif name in folders:
                        folders.remove(name)

    def _member(self, member: tarfile.TarInfo, path: str) -> tuple[tarfile.TarInfo, bytes] | None:
        if member.islnk():  # a hard link
            member.type, member.linkname, member.size = tarfile.REGTYPE, "", os.path.getsize(path)
        content = self.change(member, Path(path).read_bytes() if member.isreg() else b"")
        if content is None:
            return None
        member.size = len(content)
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member, content


def write_context(file: IO[bytes], dockerfile: str, layers: list[Layer]) -> None:
    """Write a build context: the Dockerfile, and the layers as folders "0", "1" and so on."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile.encode())
        archive.addfile(member, io.BytesIO(dockerfile.encode()))
        for number, layer in enumerate(layers):
            top = tarfile.TarInfo(str(number))
            top.type, top.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(top)
            for member, content in layer.members():
                member.name = f"{number}/{member.name}"
                archive.addfile(member, io.BytesIO(content))


# --- relocated Python ------------------------------------------------------------------------------------------

NOT_NEEDED = ("site-packages", "idlelib", "turtledemo")
"""Folders of an installation that a virtual environment on top of it does not need."""


def interpreter_layer(python: PreparedPython, home: str) -> Layer:
    """Return an installation of Python as a layer, without installed packages, documentation and tests."""
    minor = "python" + ".".join(python.version.split(".")[:2])

    def change(member: tarfile.TarInfo, content: bytes) -> bytes | None:
        top, _, below = member.name.partition("/")
        wanted = {"bin": below.startswith("python") and "config" not in below, "lib": "python" in below}
        first = below.partition("/")[0]
        own_tests = member.name.startswith(f"lib/{minor}/test/") and not below.startswith(
            (f"{minor}/test/support", f"{minor}/test/__init__")
        )
        needed = (not below and top in wanted) or (wanted.get(top, False) and first in (minor, below))
        if not needed or own_tests or member.name.endswith(".a") or member.name.split("/")[-1] in NOT_NEEDED:
            return None
        return content

    return Layer(home, python.base_prefix, change)


def environment_layer(python: PreparedPython, place: str, executable: str) -> Layer:
    """Return a virtual environment as a layer, moved to `place` and to another executable of the same version."""
    old, new = str(python.prefix).encode(), place.encode()

    def change(member: tarfile.TarInfo, content: bytes) -> bytes | None:
        if member.name == "pyvenv.cfg":
            return f"home = {os.path.dirname(executable)}\ninclude-system-site-packages = false\n".encode()
        if member.issym() and member.linkname.startswith("/"):
            member.linkname = executable
        names_the_place = member.name.startswith("bin/") or member.name.endswith((".pth", ".egg-link"))
        return content.replace(old, new) if names_the_place and member.isreg() else content

    return Layer(place, python.prefix, change)


log = logging.getLogger(__name__)

PYTHONS = "/opt/python"
"""Folder of an image for Pythons copied from this machine, one subfolder per version."""

SYSTEM = ("/usr", "/usr/local")
"""Prefixes of system-wide installations, which cannot be copied as one folder."""

PROBE = "import json, sys; print(json.dumps(['%d.%d.%d' % sys.version_info[:3], sys.executable]))"
FIND_PYTHON = (
    'for name in "python$0" python3 python; do command -v "$name" >/dev/null && "$name" -I -c "$1"; done; true'
)


def build_image(
    spec: SandboxSpec,
    base: str,
    *,
    name: str = "workspace",
    base_url: str | None = None,
    venv: str = VENV,
    extra: Sequence[tuple[str, Path]] = (),
    timeout: float = 1800.0,
) -> str:
    """Build the image of a sandbox, unless it exists.

    With a Dockerfile, its image is built. Other arguments than the engine and the time do not count then.

    Args:
        spec: A sandbox with a workspace or a Dockerfile.
        base: An image with a shell, git, and a C library at least as new as this machine's.
        name: Name of the image. Its tag is a digest of its content.
        base_url: Address of the engine; None uses DOCKER_HOST, else the local socket.
        venv: Path of the Python environment in the image.
        extra: More folders: absolute path in the image, folder on this machine.
        timeout: Seconds before the build fails.

    Returns:
        The image's name, for a sandbox with the image instead of workspace and Python environment.

    Raises:
        TaskError: The sandbox has neither, or its workspace or Python environment cannot be built.
        MissingInterpreter: This machine lacks that version of Python.
        SandboxStartError: The engine, the network or the file system failed, or the base image is missing.
    """
    if spec.build and spec.image:
        deadline = time.monotonic() + timeout
        with contextlib.closing(connect(base_url, timeout)) as engine:
            build_dockerfile(engine, spec.image, spec.build, deadline=deadline, base_url=base_url)
        return spec.image
    if spec.workspace is None:
        raise TaskError(f"{name} has neither a workspace nor a Dockerfile to build an image from")
    with contextlib.closing(_Builder(base, base_url, time.monotonic() + timeout)) as builder:
        below = builder.add_python(spec.python, venv) if spec.python else base
        tree = prepare_workspace(spec.workspace, timeout=builder.seconds_left())
        layers = [Layer(spec.workdir, tree), *(Layer(path, folder) for path, folder in extra)]
        return builder.add(name.lower(), below, layers, f"WORKDIR {spec.workdir}")


class _Builder:
    """One build, with its engine, base image and deadline."""

    def __init__(self, base: str, base_url: str | None, deadline: float) -> None:
        self._base = base
        self._deadline = deadline
        self._engine = connect(base_url, self.seconds_left())

    def close(self) -> None:
        self._engine.close()

    def seconds_left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SandboxStartError("the image was not built in time", reason="timeout", retryable=True)
        return left

    def add_python(self, env: PythonEnv, venv: str) -> str:
        """Return the image with a Python environment on top of the base image."""
        python = prepare_python(env, timeout=self.seconds_left())
        minor = ".".join(python.version.split(".")[:2])
        copied = str(python.base_prefix) not in SYSTEM
        # The exact version if possible: the standard library changes between bug-fix releases too.
        below, executable = self._base, self._python_of_base(minor, python.version if copied else "")
        if not executable:
            if not copied:
                raise TaskError(
                    f"image {self._base!r} has no Python {minor}, and this machine's cannot be copied from "
                    f"{python.base_prefix}. Use a base image with Python {minor}"
                )
            home = f"{PYTHONS}/{python.version}"
            register = f"RUN echo {home}/lib > /etc/ld.so.conf.d/swe-gym-python.conf && ldconfig"
            below = self.add("python", self._base, [interpreter_layer(python, home)], register)
            executable = f"{home}/bin/python{minor}"
        return self.add("env", below, [environment_layer(python, venv, executable)])

    def _python_of_base(self, minor: str, exactly: str) -> str:
        """Return the path of that Python in the base image, or an empty string. Each image is probed once.

        Args:
            minor: Minor version, such as "3.11".
            exactly: Full version, such as "3.11.7"; empty accepts any of the minor version.
        """
        image = self._must_find(self._base)

        def probe(folder: Path) -> None:
            (folder / "executable").write_text(self._probe_python(minor, exactly))

        key = digest(image["Id"], minor, exactly)
        return (build_once("base-pythons", key, probe, deadline=self._deadline) / "executable").read_text()

    def _probe_python(self, minor: str, exactly: str) -> str:
        argv = ["/bin/sh", "-c", FIND_PYTHON, minor, PROBE]
        with engine_errors(f"look for Python in image {self._base!r}"):
            container = self._engine.create_container(self._base, entrypoint=argv, command=[], network_disabled=True)
            try:
                self._engine.start(container)
                self._engine.wait(container, timeout=self.seconds_left())
                said = self._engine.logs(container, stdout=True, stderr=False).decode()
            finally:
                self._engine.remove_container(container, force=True, v=True)
        found = map(json.loads, said.splitlines())
        return next((where for version, where in found if f"{version}.".startswith(f"{exactly or minor}.")), "")

    def _must_find(self, image: str) -> JsonObject:
        found = find_image(self._engine, image)
        if found is None:
            text = f"the Docker engine lacks the base image {image!r}. Run `docker pull {image}`"
            raise SandboxStartError(text, reason="image")
        return found

    def add(self, name: str, below: str, layers: list[Layer], instruction: str = "") -> str:
        """Return the image with layers on top of another one. Its tag is a hash of its content, so it is built once."""
        under = self._must_find(below)
        key = digest(under["Id"], instruction, [layer.fingerprint for layer in layers])
        image = f"swe-gym/{name}:{key[:16]}"
        if find_image(self._engine, image) is None:
            log.info("building image %s", image)
            copies = [f'COPY ["{number}", "{layer.path}"]' for number, layer in enumerate(layers)]
            with tempfile.TemporaryFile() as context:
                write_context(context, "\n".join([f"FROM {below}", *copies, instruction, ""]), layers)
                context.seek(0)
                self._build(image, context)
            log.info("built image %s", image)
        return image

    def _build(self, image: str, context: IO[bytes]) -> None:
        with engine_errors(f"build image {image!r}"):
            self._engine.timeout = self.seconds_left()
            events = list(
                self._engine.build(
                    fileobj=context,
                    custom_context=True,
                    tag=image,
                    rm=True,
                    forcerm=True,
                    network_mode="none",
                    decode=True,
                )
            )
        problem = "".join(event.get("error", "") for event in events)
        if problem:
            raise SandboxStartError(f"the Docker engine cannot build image {image!r}", reason="image", detail=problem)
