"""The cache on disk. Each entry is built once, by one process, and never changes afterwards."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import SandboxStartError, UsageError

_COMPLETE = "complete"
_POLL = 0.02


def cache_folder() -> Path:
    """Return the folder of the cache: `$SWE_GYM_CACHE`, or `swe-gym` in the user's cache folder.

    It may be deleted whenever no sandbox is open.
    """
    if chosen := os.environ.get("SWE_GYM_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "swe-gym"


FREE_MB = 100
"""MiB that must be free in a folder that is written to."""


def check_room(folder: Path, what: str, fix: str) -> None:
    """Check that a folder can be written to, and that its disk has some room.

    Raises:
        UsageError: It cannot, or has not.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"{what} cannot be written: {there} is not a folder. Fix: {fix}")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{what} cannot be written: {there} is read-only. Fix: {fix}")
    if (free := shutil.disk_usage(there).free >> 20) < FREE_MB:
        raise UsageError(f"{what} has no room: {free} MiB are free in {there}, less than {FREE_MB}. Fix: {fix}")


def digest(*parts: object) -> str:
    """Return a short key of JSON-like `parts`: equal for equal parts, different for others."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:32]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_entry(kind: str, key: str) -> Path | None:
    """Return the folder of a cache entry; None if it is not built."""
    entry = cache_folder() / kind / key
    return entry / "content" if (entry / _COMPLETE).exists() else None


def build_once(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    *,
    deadline: float,
    remove: Callable[[Path], None] | None = None,
) -> Path:
    """Return the folder of a cache entry. If this or another process has not built it yet, build it.

    A marker beside the folder is written last. If a build is killed, the next process starts over.

    Args:
        kind: Name of the cache's folder for such entries.
        key: Digest of everything that the content depends on.
        build: Function that fills an empty folder. If it raises, the entry is removed.
        deadline: Time (`time.monotonic`) until which to wait for another process. `build` has its own deadline.
        remove: Function that removes an entry, in place of `remove_entry`.

    Raises:
        SandboxStartError: The wait timed out, or the file system or the network failed.
    """
    entry = cache_folder() / kind / key
    content = entry / "content"
    if _is_there(entry):
        return content
    try:
        with _hold_lock(entry.with_name(f"{key}.lock"), deadline):
            if not (entry / _COMPLETE).exists():
                _build(entry, content, build, remove or remove_entry)
    except TimeoutError as error:
        raise SandboxStartError(f"cannot build {entry.name}: {error}", reason="timeout", retryable=True) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = f". Free space on the disk of {entry.parent}, or set SWE_GYM_CACHE to another disk" if full else ""
        reason = "capacity" if full else "setup"
        raise SandboxStartError(f"cannot build {entry.name}: {error}{fix}", reason=reason, retryable=True) from error
    return content


def _is_there(entry: Path) -> bool:
    """Return whether an entry is complete. Otherwise, make sure that it can be built."""
    folder = entry.parent
    try:
        if (entry / _COMPLETE).exists():
            return True
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return False
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise SandboxStartError(
            f"cannot use the cache: {error}. Set SWE_GYM_CACHE to a writable folder",
            reason="setup",
            retryable=True,  # a full or read-only cache says nothing about this machine's backends
        ) from error


def _build(entry: Path, content: Path, build: Callable[[Path], None], remove: Callable[[Path], None]) -> None:
    remove(entry)
    content.mkdir(parents=True)
    try:
        build(content)
        (entry / _COMPLETE).touch()
    except BaseException:
        remove(entry)
        raise


def remove_entry(entry: Path) -> None:
    """Remove an entry, its marker first."""
    (entry / _COMPLETE).unlink(missing_ok=True)
    remove_tree(entry)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a folder if it exists. The folders in it may forbid that to their owner, as those of an image do."""
    if os.path.exists(path):
        for folder, folders, _ in os.walk(path):  # a folder is unlocked before it is listed
            for name in folders:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
        shutil.rmtree(path)


@contextlib.contextmanager
def _hold_lock(path: Path, deadline: float) -> Iterator[None]:
    """Hold the lock file. The kernel releases the lock if the process dies."""
    with path.open("a") as file:
        lock(file.fileno(), deadline)
        try:
            yield
        finally:
            # Explicitly: a process that another thread forked meanwhile holds a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)


def lock(descriptor: int, deadline: float) -> None:
    """Lock a file or folder for this descriptor and its copies.

    Raises:
        TimeoutError: Another process held it until the deadline.
    """
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process is still building it") from None
            time.sleep(_POLL)
