"""A Python for images that have none: a copy of this machine's, or of another image's.

Without it, such images would need a second protocol over a shell, which could not keep the contract: a shell cannot
find and kill hidden processes, nor tell its markers from a command's output. Nothing is downloaded.
"""

import functools
import io
import platform
import subprocess
import sys
import tarfile

from ..errors import SandboxStartError
from ..guard import TemporaryFolder
from ..guests import bundle
from .pythons import ARCHITECTURES

PLACE = "/opt/swe-gym-python"
"""Its folder in the container. No PATH has it, so commands find only the image's programs."""

PACK_SECONDS = 60.0


def packing_program(folder: str = PLACE) -> str:
    """Return the program that fills a folder, to be used at `PLACE`, with the Python that runs it."""
    return f"{bundle('pack_python')}\n\npack_python({folder!r}, {PLACE!r})\n"


def problem(architecture: str) -> str:
    """Return why this machine's Python cannot run in an image of this architecture, or an empty text."""
    system, machine = platform.system(), platform.machine()
    ours = ARCHITECTURES.get(machine, machine)
    return "" if (system, ours) == ("Linux", architecture) else f"this machine's is for {system} on {ours}"


@functools.cache
def archive() -> bytes:
    """Return this machine's Python as a tar archive for the root of a container.

    Raises:
        SandboxStartError: Packing failed.
    """
    with TemporaryFolder("swe-gym-python-") as folder:
        command = [sys.executable, "-I", "-S", "-c", packing_program(str(folder.path))]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PACK_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            detail = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace")
            text = "cannot pack this machine's Python for images without one"
            raise SandboxStartError(text, reason="setup", detail=detail or str(error)) from error
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as packed:
            packed.add(folder.path, PLACE.lstrip("/"), filter=_readable_to_all)
        return buffer.getvalue()


def _readable_to_all(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode |= 0o555 if member.isdir() else 0o444
    return member
