"""Takes the policy's work as data: the bounded and checked difference between its workspace and a fresh one.

Nothing of the episode's sandbox is trusted: none of its programs run, and only file contents cross over. Modes are
git's: `0o100644`, `0o100755`, and `0o120000` for a symbolic link, whose content is its target.
"""

import contextlib
import hashlib
import io
import os
import posixpath
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from ..errors import DiffError, FileError, SandboxError, TaskError
from ..sandboxes import Sandbox
from ..types import FileEntry, Frozen
from .diff import file_diff, normalize_patch, touched_files

EXCLUDED = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", ".pytest_cache", ".mypy_cache", ".ruff_cache"),
    *(".hypothesis", ".coverage", ".coverage.*", ".tox", ".nox", ".venv", "node_modules", ".aider.tags.cache.*"),
)
"""Names of files and folders that are never part of the work: history, caches, environments."""

PYTHONS = ("bin/python", "Scripts/python.exe")
"""Files that make a folder with a `pyvenv.cfg` a virtual environment."""

SPARE_FILES = 20_000
"""A workspace with this many files more than the original is rejected."""

LISTED_AHEAD = 40_000
"""Files of a workspace that are listed before the original is."""

LISTED_IGNORED = 10_000
"""Files that git ignores, or of virtual environments, that are listed beside the others."""

HASHED_AHEAD = 64 << 20
"""Bytes of a workspace that are hashed before its sizes are compared with the original's."""

GIT_REFUSES = (1, 128)
"""Exit codes of `git apply` about a diff: it does not fit, or is not one."""

READ_AHEAD = 16
"""Diffs that `DiffReader` reads beside the one that is asked for: other threads wait, and their sandboxes are open."""

KEPT_BYTES = 256 << 20
"""Bytes of patches that are read ahead."""

REGULAR, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000


def read_state(path: Path) -> tuple[int | None, bytes | None]:
    """Return git's mode and the content of a file or link; None and None if it does not exist."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    if stat.S_ISLNK(mode):
        return LINK, os.readlink(path).encode()
    if stat.S_ISDIR(mode):
        return None, None
    return EXECUTABLE if mode & stat.S_IXUSR else REGULAR, path.read_bytes()


class PatchLimits(Frozen):
    """Limits of a patch. Work beyond them gets a verdict that says so.

    Above the limits, new files that a `.gitignore` of the workspace names are left out: builds leave them behind.

    Attributes:
        max_files: Number of changed files.
        max_file_bytes: Size of one changed file, before or after.
        max_total_bytes: Sum of the larger sizes, before or after, of all changed files.
    """

    max_files: int = 2_000
    max_file_bytes: int = 16 << 20
    max_total_bytes: int = 64 << 20


class FileChange(Frozen):
    """A changed file.

    Attributes:
        path: Path relative to the workspace.
        old: Original content; None for a new file.
        new: The policy's content; None for a deleted file.
        old_mode: Git's mode of the original; None for a new file.
        new_mode: Git's mode now; None for a deleted file.
    """

    path: str
    old: bytes | None = None
    new: bytes | None = None
    old_mode: int | None = None
    new_mode: int | None = None


class Dropped(Frozen):
    """A change that is not part of the patch, and the reason."""

    path: str
    reason: str


class Patch(Frozen):
    """A policy's work.

    Attributes:
        changes: Changed files, sorted by path.
        dropped: Changes that were left out.
        rejected: Why the work as a whole cannot be judged, such as its size; empty if it can. The policy is to blame.
        packages: Folders of changes, and folders above them, that are Python packages before and after the work.
        excluded: Names of files and folders that are never part of the work; the same for every patch.
    """

    excluded: ClassVar[tuple[str, ...]] = EXCLUDED
    changes: tuple[FileChange, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    rejected: str = ""
    packages: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all changes."""
        return tuple(change.path for change in self.changes)

    @property
    def size(self) -> int:
        """Bytes of all contents, before and after."""
        return sum(len(change.old or b"") + len(change.new or b"") for change in self.changes)

    def reversed(self) -> "Patch":
        """Return the patch that takes the changes back."""
        changes = [
            FileChange(path=one.path, old=one.new, new=one.old, old_mode=one.new_mode, new_mode=one.old_mode)
            for one in self.changes
        ]
        return Patch(changes=tuple(changes))

    def diff(self) -> str:
        """Return a git diff. `git apply` on the original gives exactly the bytes and modes of the work."""
        return "".join(file_diff(c.path, c.old, c.new, c.old_mode, c.new_mode) for c in self.changes)

    @staticmethod
    def normalize(diff: str) -> str:
        """Return the removed and added lines of a git diff in a form that equal work shares: see `normalize_patch`."""
        return normalize_patch(diff)


# --- taking --------------------------------------------------------------------------------------------


class Listing(Frozen):
    """The files of a policy's workspace at one moment.

    Attributes:
        files: Path -> entry. Some may lack a digest.
        problem: Why they could not be listed; empty if they were. The policy is to blame.
    """

    files: dict[str, FileEntry] = {}
    problem: str = ""

    @property
    def cut(self) -> bool:
        """Whether ignored files may be missing from the list."""
        return sum(bool(entry.ignored) for entry in self.files.values()) >= LISTED_IGNORED


def list_work(sandbox: Sandbox, *, max_files: int = LISTED_AHEAD) -> Listing:
    """List an episode's workspace for `take_patch`. A fresh sandbox can start meanwhile.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        files = sandbox.manifest(
            exclude=EXCLUDED, max_files=max_files, max_ignored=LISTED_IGNORED, max_hashed=HASHED_AHEAD
        )
        return Listing(files=files)
    except FileError as error:
        return Listing(problem=f"the workspace cannot be read: {error}")


def take_patch(
    sandbox: Sandbox,
    fresh: Sandbox,
    *,
    limits: PatchLimits | None = None,
    hidden: Iterable[str] = (),
    listing: Listing | None = None,
    before: dict[str, FileEntry] | None = None,
) -> Patch:
    """Return the policy's work: the difference between its workspace and that of a fresh sandbox.

    Args:
        sandbox: The episode's sandbox.
        fresh: A new sandbox of the same task, in which nothing has run.
        limits: Limits of the patch.
        hidden: Absolute paths in `fresh` that sealing removed from the episode's sandbox. Their absence is not a
            deletion, and files that are there now do not count.
        listing: Result of `list_work` on the episode's sandbox, if it is known.
        before: Files of `fresh` without those of `EXCLUDED`, if they are known.

    Returns:
        The patch. Work that is over the limits or unreadable gives a `rejected` patch, not an error.

    Raises:
        SandboxError: A sandbox failed.
    """
    limits = limits or PatchLimits()
    before = fresh.manifest(exclude=EXCLUDED) if before is None else before
    most = len(before) + SPARE_FILES
    if listing is None or (listing.problem and most > LISTED_AHEAD):  # a repository this large needs a longer list
        listing = list_work(sandbox, max_files=max(most, LISTED_AHEAD))
    listing = _complete_listing(listing, before, sandbox)
    if listing.problem:
        return Patch(rejected=listing.problem)
    after = listing.files
    if len(after) - sum(bool(entry.ignored) for entry in after.values()) > most:
        return Patch(rejected=f"the workspace holds more than {most} files")
    differing = [path for path in sorted({*before, *after}) if not _same(before.get(path), after.get(path))]
    own = {posixpath.relpath(path, fresh.workdir) for path in hidden}
    wanted, dropped = _sift(differing, before, after, own, sandbox.workdir)
    rejected = _over_limits(wanted, before, after, limits)
    if rejected or listing.cut:
        wanted, ignored = _without_ignored(wanted, before, after)
        dropped += ignored
        rejected = _over_limits(wanted, before, after, limits)
    if rejected:
        return Patch(dropped=tuple(dropped), rejected=rejected)
    changes = []
    for path in wanted:
        try:
            changes.append(_read_change(path, before.get(path), after.get(path), fresh, sandbox))
        except _ChangedMeanwhile:
            dropped.append(Dropped(path=path, reason="it cannot be read, or changed meanwhile"))
    return Patch(changes=tuple(changes), dropped=tuple(dropped), packages=_packages(wanted, before, after))


def _complete_listing(listing: Listing, before: dict[str, FileEntry], sandbox: Sandbox) -> Listing:
    """The listing with the digests that the comparison needs and the files of the original that git ignores.

    Only files of the original's sizes are hashed, so the original bounds the hashing.
    """
    files = listing.files
    cut = listing.cut

    def open_question(path: str) -> bool:
        entry = files.get(path)
        return cut if entry is None else not entry.digest and entry.size == before[path].size

    missing = [] if listing.problem else [path for path in before if open_question(path)]
    if not missing:
        return listing
    try:
        return Listing(files={**files, **sandbox.manifest(only=missing, max_files=len(missing))})
    except FileError as error:
        return Listing(problem=f"the workspace cannot be read: {error}")


def _packages(paths: Iterable[str], before: dict[str, FileEntry], after: dict[str, FileEntry]) -> tuple[str, ...]:
    folders = {folder for path in paths for folder in parents(path)}
    kept = (folder for folder in folders if before.keys() & after.keys() & {f"{folder}/__init__.py"})
    return tuple(sorted(kept))


class _ChangedMeanwhile(Exception):
    """Something in the episode's sandbox still writes to the file."""


def _git_mode(entry: FileEntry) -> int:
    if entry.link is not None:
        return LINK
    return EXECUTABLE if entry.mode & 0o100 else REGULAR


def _same(old: FileEntry | None, new: FileEntry | None) -> bool:
    return old is not None and new is not None and old.digest == new.digest and _git_mode(old) == _git_mode(new)


def _sift(
    paths: Iterable[str], before: dict[str, FileEntry], after: dict[str, FileEntry], hidden: set[str], workdir: str
) -> tuple[list[str], list[Dropped]]:
    """Split the paths into those that may cross over and those that may not. Ignore the absence of hidden paths."""
    environments = _environments(after)
    wanted: list[str] = []
    dropped: dict[str, str] = {}
    for path in paths:
        entry = after.get(path)
        environment = next((folder for folder in parents(path) if folder in environments), None)
        if environment is not None and path not in before:
            dropped[environment] = "it is a virtual environment"
        elif not path.isprintable() and _is_not_text(path):
            dropped[path.encode("utf-8", "backslashreplace").decode()] = "its name is not UTF-8"
        elif entry is not None and entry.link is not None and inner_target(path, entry.link, workdir) is None:
            dropped[path] = "it is a symbolic link that leads out of the workspace"
        elif hidden.isdisjoint((path, *parents(path))):
            wanted.append(path)
        elif entry is not None:
            dropped[path] = "it is the task's own"
    return wanted, [Dropped(path=path, reason=reason) for path, reason in dropped.items()]


def _environments(files: dict[str, FileEntry]) -> set[str]:
    """The folders that are virtual environments. `pyvenv.cfg` alone may be a template of the product's."""
    folders = {posixpath.dirname(path) for path in files if posixpath.basename(path) == "pyvenv.cfg"} - {""}
    return {folder for folder in folders if any(f"{folder}/{python}" in files for python in PYTHONS)}


def parents(path: str) -> Iterator[str]:
    """Return the folders above a path, nearest first, without the workspace itself ("") and the root ("/")."""
    while (path := posixpath.dirname(path)) not in ("", "/"):
        yield path


def _is_not_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def inner_target(path: str, target: str, workdir: str) -> str | None:
    """Return the relative target of a link that stays in the workspace, whatever other links do; None if it may leave.

    Such a target goes up first, then only down.

    Args:
        path: Path of the link.
        target: Target of the link. An absolute one below `workdir` is made relative, because the workspace of another
            sandbox may lie elsewhere.
        workdir: Workspace of the sandbox that holds the link.
    """
    if _is_not_text(target):
        return None
    if target.startswith("/"):
        below = posixpath.normpath(workdir) + "/"
        if not f"{target}/".startswith(below):
            return None
        target = "../" * path.count("/") + f"{target}/".removeprefix(below).rstrip("/") or "."
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return target if ups <= path.count("/") and ".." not in parts[ups:] else None


def _without_ignored(
    paths: list[str], before: dict[str, FileEntry], after: dict[str, FileEntry]
) -> tuple[list[str], list[Dropped]]:
    """Leave out new files that git ignores. Builds leave more of them behind than any work has."""
    ignored = {path: after[path].ignored for path in paths if path not in before and after[path].ignored}
    reason = "git ignores it, and with it the work is too much"
    places = sorted(set(ignored.values()))
    return [path for path in paths if path not in ignored], [Dropped(path=path, reason=reason) for path in places]


def _over_limits(
    paths: list[str], before: dict[str, FileEntry], after: dict[str, FileEntry], limits: PatchLimits
) -> str:
    """Why the work is over the limits; empty if it is not."""
    if len(paths) > limits.max_files:
        return f"the work changes {len(paths)} files; at most {limits.max_files} are graded"
    total = 0
    for path in paths:
        size = max(entry.size for entry in (before.get(path), after.get(path)) if entry)
        total += size
        if size > limits.max_file_bytes:
            return f"{path} has {size} bytes; at most {limits.max_file_bytes} are graded"
    if total > limits.max_total_bytes:
        return f"the changed files have {total} bytes; at most {limits.max_total_bytes} are graded"
    return ""


def _read_change(
    path: str, old: FileEntry | None, new: FileEntry | None, fresh: Sandbox, sandbox: Sandbox
) -> FileChange:
    return FileChange(
        path=path,
        old=None if old is None else _read(fresh, path, old),
        new=None if new is None else _read_untrusted(sandbox, path, new),
        old_mode=None if old is None else _git_mode(old),
        new_mode=None if new is None else _git_mode(new),
    )


def _read(sandbox: Sandbox, path: str, entry: FileEntry) -> bytes:
    if entry.link is not None:
        return entry.link.encode("utf-8", "surrogateescape")  # an original's target may be any bytes
    return sandbox.read_file(path, max_bytes=entry.size)


def _read_untrusted(sandbox: Sandbox, path: str, entry: FileEntry) -> bytes:
    """The content that the manifest saw, or an error: a process that still runs there may swap files."""
    if entry.link is not None:
        return (inner_target(path, entry.link, sandbox.workdir) or "").encode()
    try:
        data = _read(sandbox, path, entry)
    except FileError as error:
        raise _ChangedMeanwhile from error
    changed = hashlib.sha256(data).hexdigest() != entry.digest if entry.digest else len(data) != entry.size
    if changed:
        raise _ChangedMeanwhile
    return data


# --- applying -------------------------------------------------------------------------------------------


def apply_patch(patch: Patch, sandbox: Sandbox) -> None:
    """Put the work into a fresh sandbox's workspace.

    Raises:
        SandboxError: The sandbox failed.
    """
    if not patch.changes:
        return
    # All changed paths are removed first, so that nothing is written through an old link or under an old file.
    names = b"\0".join(change.path.encode() for change in patch.changes)
    removal = sandbox.exec(["xargs", "-0", "rm", "-rf", "--"], stdin=names, merge=True)
    if not removal.ok:
        raise FileError(f"cannot remove files of a fresh workspace: {removal.describe()}", detail=removal.text[-2000:])
    sandbox.put_tar("", _tar(patch))


def _tar(patch: Patch) -> bytes:
    buffer = io.BytesIO()
    now = int(time.time())  # newer than any compiled file of the original, which makes that stale
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for change in patch.changes:
            if change.new is None or change.new_mode is None:
                continue
            info = tarfile.TarInfo(change.path)
            info.mtime = now
            info.mode = change.new_mode & 0o777
            if change.new_mode == LINK:
                info.type = tarfile.SYMTYPE
                info.linkname = change.new.decode()
                archive.addfile(info)
            else:
                info.size = len(change.new)
                archive.addfile(info, io.BytesIO(change.new))
    return buffer.getvalue()


def apply_diff(sandbox: Sandbox, diff: str, *, what: str = "the diff") -> None:
    """Apply a git diff of the task (the gold patch, the test patch) to the workspace.

    Args:
        sandbox: Sandbox to change.
        diff: Output of `git diff`; empty does nothing.
        what: Name of the diff in an error.

    Raises:
        DiffError: The diff does not apply.
        TaskError: The sandbox has no git, or git was killed.
        SandboxError: The sandbox failed.
    """
    if not diff.strip():
        return
    # No repository: neither its settings nor its attributes may change a byte.
    env = {"GIT_DIR": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    result = sandbox.exec(command, stdin=diff.encode(), env=env, merge=True)
    if not result.ok:
        kind = DiffError if result.exit_code in GIT_REFUSES and not result.timed_out else TaskError
        raise kind(f"{what} does not apply ({result.describe()}): {result.text[-2000:].strip()}")


class DiffReader:
    """Reads diffs of one task as patches, as if a policy had done the work. Any thread may call.

    One sandbox is for many diffs. None of their code runs there, and each is taken back before the next one.

    Args:
        ahead: Diffs that will be read. Each call that opens a sandbox reads the next few of them too.
    """

    def __init__(self, ahead: Iterable[str] = ()) -> None:
        self._ahead = list(dict.fromkeys(ahead))
        self._found: dict[str, Patch] = {}
        self._lock = threading.Lock()

    def read(
        self,
        diff: str,
        open_sealed: Callable[[], AbstractContextManager[Sandbox]],
        fresh: Sandbox,
        *,
        hidden: Iterable[str] = (),
        what: str = "the diff",
    ) -> Patch:
        """Return the patch of a diff.

        Args:
            diff: A git diff.
            open_sealed: Opens a policy's sandbox.
            fresh: A grading sandbox, in which nothing has run.
            hidden: As in `take_patch`.
            what: Name of the diff in an error.

        Raises:
            DiffError: It does not apply.
            SandboxError: A sandbox failed.
            TaskError: The task's sandbox cannot be built or sealed.
        """
        with self._lock:
            if diff not in self._found:
                with open_sealed() as sandbox:
                    self._read_all(diff, sandbox, fresh, tuple(hidden), what)
            return self._found[diff]

    def _read_all(self, diff: str, sandbox: Sandbox, fresh: Sandbox, hidden: Sequence[str], what: str) -> None:
        """Read a diff, then others until one fails or cannot be taken back: that one gets a sandbox of its own."""
        before = fresh.manifest(exclude=EXCLUDED)

        def read(one: str) -> bool:
            apply_diff(sandbox, one, what=what)
            patch = self._found[one] = take_patch(sandbox, fresh, hidden=hidden, before=before)
            is_whole = not patch.rejected and not patch.dropped and {*patch.paths} == touched_files(one)
            if is_whole:
                apply_patch(patch.reversed(), sandbox)
            return is_whole

        goes_on = read(diff)
        self._ahead = [one for one in self._ahead if one not in self._found]
        few, self._ahead = self._ahead[:READ_AHEAD], self._ahead[READ_AHEAD:]
        with contextlib.suppress(SandboxError, TaskError):
            while goes_on and few and sum(patch.size for patch in self._found.values()) < KEPT_BYTES:
                goes_on = read(few.pop(0))
        self._ahead = [*few, *self._ahead]
