"""A Python for images that have none: this machine's, or that of another image, brought into the container.

The alternative would be a second way to talk to a sandbox, by a shell and markers in its output. It could not keep the
contract: a shell cannot kill a tree that hides, nor tell a command's output from a marker that the command prints. With
a Python of its own every image keeps the whole contract: those of Go, Node, Java and Rust, Alpine's with another C
library, and one that holds nothing but a shell. Nothing is downloaded.
"""

import functools
import io
import platform
import subprocess
import sys
import tarfile
import tempfile

from ..errors import SandboxStartError
from ..guests import bundle

PLACE = "/opt/swe-gym-python"
"""Where it lies in the container. It is on no PATH: a command finds only what its image has."""

PACK_SECONDS = 60.0
ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
"""Names of machines, as the kernel has them, and as images have them."""


def lender() -> str:
    """The program that fills `PLACE` with the Python that runs it."""
    return _program(PLACE)


def problem(architecture: str) -> str:
    """Why this machine's Python cannot run in an image of this architecture; empty where it can."""
    system, machine = platform.system(), platform.machine()
    ours = ARCHITECTURES.get(machine, machine)
    return "" if (system, ours) == ("Linux", architecture) else f"this machine's is for {system} on {ours}"


@functools.cache
def archive() -> bytes:
    """This machine's Python as a tar archive to be unpacked at the root of a container.

    Raises:
        SandboxStartError: It cannot be packed.
    """
    with tempfile.TemporaryDirectory(prefix="swe-gym-python-") as folder:
        command = [sys.executable, "-I", "-S", "-c", _program(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PACK_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            detail = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace")
            text = "this machine's Python cannot be packed for images that have none"
            raise SandboxStartError(text, reason="setup", detail=detail or str(error)) from error
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as packed:
            packed.add(folder, PLACE.lstrip("/"), filter=_readable_to_all)
        return buffer.getvalue()


def _program(folder: str) -> str:
    return f"{bundle('lend')}\n\nlend({folder!r}, {PLACE!r})\n"


def _readable_to_all(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode |= 0o555 if member.isdir() else 0o444
    return member
