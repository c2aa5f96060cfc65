"""Layers of built images: folders of this machine, packed as a build context, with some files rewritten."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...cache import cache_folder
from ..pythons import PreparedPython

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
