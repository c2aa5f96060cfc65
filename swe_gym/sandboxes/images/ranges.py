"""The ranges of users and groups that an ordinary user may map: those that rootless containers use."""

import contextlib
import functools
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ... import guests
from ...cache import lock, remove_entry

FILES = {"newuidmap": "/etc/subuid", "newgidmap": "/etc/subgid"}
"""The setuid program that maps a range -> where the administrator grants it."""

USUAL = 65536
"""Users of an image, which a range must have."""

PROBE_SECONDS, HELD_SECONDS = 10.0, 60.0

Ranges = tuple[tuple[str, int, int], ...]


@functools.cache
def id_ranges() -> Ranges:
    """Return (program, first, count) for users and for groups; nothing if this user is root, or cannot map them."""
    found = tuple(range_of(name, Path(path)) for name, path in FILES.items()) if os.geteuid() else ()
    ranges = tuple(one for one in found if one is not None)
    return ranges if len(ranges) == len(FILES) and _works(ranges) else ()


def range_of(name: str, path: Path) -> tuple[str, int, int] | None:
    """Return the program of a name and the first range that a file grants this user, if there are both."""
    program = shutil.which(name)
    user = os.getuid()
    try:
        names = {str(user), pwd.getpwuid(user).pw_name}
    except KeyError:
        names = {str(user)}
    try:
        fields = [line.split(":") for line in path.read_text().splitlines()]
    except OSError:
        fields = []
    for owner, first, count in (one for one in fields if len(one) == 3):
        if program and owner in names and first.isdecimal() and count.isdecimal() and int(count) >= USUAL:
            return program, int(first), int(count)
    return None


def _works(ranges: Ranges) -> bool:
    """Return whether the programs work: not where setuid programs gain nothing, as in many containers."""
    try:
        done = subprocess.run(unpack_command("probe", Path("/"), ranges), capture_output=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def unpack_command(task: str, folder: Path, ranges: Ranges) -> list[str]:
    """Return the command that unpacks its standard input into a folder, or removes what that has."""
    package = os.path.dirname(os.path.dirname(guests.__file__))
    code = f"import sys; sys.path.append({package!r}); import guests.local.unpack as guest; guest.main()"
    python = getattr(sys, "_base_executable", None) or sys.executable
    return [python, "-I", "-S", "-c", code, task, str(folder), json.dumps(ranges)]


@contextlib.contextmanager
def hold_entry(entry: Path, seconds: float = HELD_SECONDS) -> Iterator[int]:
    """Hold a cache entry's folder. Yield the descriptor that holds it, for processes that write into the entry.

    A process that unpacks outlives a killed parent for a moment, so it holds the folder too: others wait for its end.

    Raises:
        TimeoutError: Another process held it for so many seconds.
    """
    folder = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(folder, time.monotonic() + seconds)
        yield folder
    finally:
        os.close(folder)


def remove_layers(entry: Path) -> None:
    """Remove a cache entry with layers, whose files may belong to the users of a range."""
    if not entry.exists():
        return
    with hold_entry(entry):
        if ranges := id_ranges():
            subprocess.run(unpack_command("remove", entry, ranges), capture_output=True, check=False)
        remove_entry(entry)
