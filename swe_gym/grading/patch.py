"""The policy's work as data: what differs between its workspace and a fresh one, bounded and checked.

Nothing of the episode's sandbox is trusted: no git of it runs, only file contents cross over. Modes are git's:
`0o100644`, `0o100755`, and `0o120000` for a symbolic link, whose content is its target.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
import time
from collections.abc import Iterable, Iterator

from ..errors import FileError, SandboxError, TaskError
from ..sandboxes.base import Sandbox
from ..types import FileEntry, Frozen
from .diff import file_diff

EXCLUDED = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    "*.pyo",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".coverage",
    ".coverage.*",
    ".tox",
    ".nox",
    ".venv",
    "node_modules",
)
"""Names of files and folders that are never part of the work: history, caches, environments."""

PYTHONS = ("bin/python", "Scripts/python.exe")
"""What makes a folder with a `pyvenv.cfg` a virtual environment."""

SPARE_FILES = 20_000
"""With so many files more than the original, a workspace is not looked through."""

LISTED_AHEAD = 40_000
"""Files of a workspace that are listed before it is known how many the original has."""

LISTED_IGNORED = 10_000
"""Files of a workspace that git ignores, or of virtual environments, that are listed beside the others."""

HASHED_AHEAD = 64 << 20
"""Bytes of a workspace that are hashed before it is known which of its files have the size of the original's."""

REGULAR, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000


class PatchLimits(Frozen):
    """How much work may cross over. A policy that goes beyond is told so by its verdict.

    Where it is more, new files that a `.gitignore` of the workspace names do not count: builds leave them behind.

    Attributes:
        max_files: Changed files.
        max_file_bytes: Size of one changed file, before or after.
        max_total_bytes: Sum of the larger sizes, before or after, of all changed files.
    """

    max_files: int = 2_000
    max_file_bytes: int = 16 << 20
    max_total_bytes: int = 64 << 20


class FileChange(Frozen):
    """One file that differs.

    Attributes:
        path: Relative to the workspace.
        old: The original content; None where the file is new.
        new: The policy's content; None where the file was deleted.
        old_mode: git's mode of the original; None where the file is new.
        new_mode: git's mode now; None where the file was deleted.
    """

    path: str
    old: bytes | None = None
    new: bytes | None = None
    old_mode: int | None = None
    new_mode: int | None = None


class Dropped(Frozen):
    """A change that is not part of the patch, and why."""

    path: str
    reason: str


class Patch(Frozen):
    """All of a policy's work.

    Attributes:
        changes: Sorted by path.
        dropped: What was left out.
        rejected: Why the work as a whole cannot be judged, such as its size; empty where it can. The policy's doing.
        packages: Folders of changes, and folders above them, that are Python packages before and after the work.
    """

    changes: tuple[FileChange, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    rejected: str = ""
    packages: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all changes."""
        return tuple(change.path for change in self.changes)

    def diff(self) -> str:
        """The patch as git writes it; `git apply` on the original gives the very bytes and modes of the work."""
        return "".join(file_diff(c.path, c.old, c.new, c.old_mode, c.new_mode) for c in self.changes)


# --- taking --------------------------------------------------------------------------------------------


class Listing(Frozen):
    """The files of a policy's workspace, as they were at one moment.

    Attributes:
        files: Path -> entry. Some may have no digest.
        problem: Why they could not be listed; empty where they were. The policy's doing.
    """

    files: dict[str, FileEntry] = {}
    problem: str = ""

    @property
    def cut(self) -> bool:
        """Whether there may be more ignored files than are listed."""
        return sum(bool(entry.ignored) for entry in self.files.values()) >= LISTED_IGNORED


def list_work(sandbox: Sandbox, *, max_files: int = LISTED_AHEAD) -> Listing:
    """List what lies in an episode's workspace, for `take_patch`. Needs no fresh sandbox, which may start meanwhile.

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
) -> Patch:
    """What the policy changed: the difference between its workspace and that of a fresh sandbox.

    Args:
        sandbox: The episode's sandbox.
        fresh: A new sandbox of the same task, in which nothing has run.
        limits: How much may cross over.
        hidden: Absolute paths in `fresh` that were taken from the episode's sandbox: nobody deleted them, and what is
            there now does not count.
        listing: What `list_work` said of the episode's sandbox, where it was asked already.

    Returns:
        The patch. Work over the limits, or that cannot be read, gives a patch that is `rejected`: no error.

    Raises:
        SandboxError: A sandbox failed.
    """
    limits = limits or PatchLimits()
    before = fresh.manifest(exclude=EXCLUDED)
    most = len(before) + SPARE_FILES
    if listing is None or (listing.problem and most > LISTED_AHEAD):  # of a repository so large, more is listed
        listing = list_work(sandbox, max_files=max(most, LISTED_AHEAD))
    listing = _completed(listing, before, sandbox)
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


def _completed(listing: Listing, before: dict[str, FileEntry], sandbox: Sandbox) -> Listing:
    """The listing, with the digests that the comparison needs and the files of the original that git ignores.

    Only files as large as the original's are hashed, so what is hashed is bounded by the original.
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
    """Part the paths into those that may cross over and those that may not; of what is hidden, absence says nothing."""
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
    """The folders that are virtual environments: `pyvenv.cfg` alone may be a template of the product's."""
    folders = {posixpath.dirname(path) for path in files if posixpath.basename(path) == "pyvenv.cfg"} - {""}
    return {folder for folder in folders if any(f"{folder}/{python}" in files for python in PYTHONS)}


def parents(path: str) -> Iterator[str]:
    """The folders above a path, nearest first, the workspace itself ("") and the root ("/") left out."""
    while (path := posixpath.dirname(path)) not in ("", "/"):
        yield path


def _is_not_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def inner_target(path: str, target: str, workdir: str) -> str | None:
    """The relative target of a link that stays in the workspace, whatever other links do: up first, then only down.

    Args:
        path: The link.
        target: Where it leads. An absolute target below `workdir` is given relative to the link, for the workspace of
            another sandbox may lie elsewhere.
        workdir: The workspace of the sandbox that holds the link.

    Returns:
        The target; None for a link that leads out.
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
    """Leave out new files that git ignores: builds leave them behind, more of them than any work has."""
    ignored = {path: after[path].ignored for path in paths if path not in before and after[path].ignored}
    reason = "git ignores it, and with it the work is too much"
    places = sorted(set(ignored.values()))
    return [path for path in paths if path not in ignored], [Dropped(path=path, reason=reason) for path in places]


def _over_limits(
    paths: list[str], before: dict[str, FileEntry], after: dict[str, FileEntry], limits: PatchLimits
) -> str:
    """Why the work is too much; empty where it is not."""
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
        return entry.link.encode("utf-8", "surrogateescape")  # an original's target need not be text
    return sandbox.read_file(path, max_bytes=entry.size)


def _read_untrusted(sandbox: Sandbox, path: str, entry: FileEntry) -> bytes:
    """The content that the manifest saw, or nothing: what still runs in there may swap files under our hands."""
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
    """Make a fresh sandbox's workspace hold the work.

    Raises:
        SandboxError: The sandbox failed.
    """
    if not patch.changes:
        return
    # All that changes is removed first, so nothing is written through an old link or under an old file.
    names = b"\0".join(change.path.encode() for change in patch.changes)
    removal = sandbox.exec(["xargs", "-0", "rm", "-rf", "--"], stdin=names, merge=True)
    if not removal.ok:
        raise SandboxError(
            f"files of a fresh workspace could not be removed: {removal.describe()}", detail=removal.text[-2000:]
        )
    sandbox.put_tar("", _tar(patch))


def _tar(patch: Patch) -> bytes:
    buffer = io.BytesIO()
    now = int(time.time())  # newer than any compiled file of the original, which is thereby stale
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
    """Apply a git diff of the task's own (the gold patch, the test patch) to the workspace.

    Args:
        sandbox: Where.
        diff: What `git diff` prints; empty does nothing.
        what: How to call it in an error.

    Raises:
        TaskError: It does not apply, or the sandbox has no git.
        SandboxError: The sandbox failed.
    """
    if not diff.strip():
        return
    # A repository that does not exist: neither its settings nor its attributes may change a byte.
    env = {"GIT_DIR": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    result = sandbox.exec(command, stdin=diff.encode(), env=env, merge=True)
    if not result.ok:
        raise TaskError(f"{what} does not apply ({result.describe()}): {result.text[-2000:].strip()}")
