"""Workspaces as folders in the cache: complete, under git with one commit, never written to again.

A folder holds the workspace's files byte for byte. Permission bits are 0o755 or 0o644, as in git, and all times are one
fixed date, so that a policy sees the same on every machine.
"""

import contextlib
import os
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ...cache import build_once, digest, file_sha256
from ...commands import commit_of, find_repository, git_environment, git_program, run_command
from ...errors import TaskError
from ...files import FileMetadata, scan_folder
from ...index import download_sdist
from ...types import FilesWorkspace, FolderWorkspace, GitWorkspace, SdistWorkspace, TarWorkspace, Workspace

DATE = 1577836800
"""Time of every file and of the commit: 2020-01-01 00:00:00 UTC."""

_ATTEMPTS = 3
_EXACT_BYTES = "* -text -eol -filter -ident -working-tree-encoding\n"
_GIT_CONFIG = """\
[user]
\tname = swe_gym
\temail = swe_gym@localhost
[core]
\tautocrlf = false
\tsafecrlf = false
\tprotectNTFS = false
\tprotectHFS = false
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[advice]
\tdetachedHead = false
"""

Fill = Callable[[Path, float], None]
"""A function that fills an empty folder with a workspace's files by a deadline (of `time.monotonic`)."""


def prepare_workspace(workspace: Workspace, *, timeout: float, at: str = "") -> Path:
    """Return the absolute path of a folder with the workspace's files and a fresh `.git` of exactly one commit.

    The folder lies in the cache and is never written to again: mount it read-only or copy it. The commit's hash depends
    on the files alone. It has all files, ignored ones too, and nothing of the source's own `.git` (no remotes, reflogs
    or later commits). Submodules of a git workspace are empty folders.

    Args:
        workspace: Source of the files. A folder that has changed gives a new snapshot.
        timeout: Seconds that building it may take.
        at: Path of the files within the folder of the cache, which then can be a layer of a root file system. The
            returned path ends in it.

    Raises:
        TaskError: The workspace does not exist, is broken, or has files that it must not have.
        SandboxStartError: The network or the file system failed, or the time was up.
    """
    deadline = time.monotonic() + timeout
    if isinstance(workspace, FolderWorkspace):
        return _folder(Path(workspace.path).expanduser().absolute(), deadline, at)
    if isinstance(workspace, TarWorkspace):
        return _tar(workspace, deadline, at)
    if isinstance(workspace, GitWorkspace):
        return _git(workspace, deadline, at)
    if isinstance(workspace, FilesWorkspace):
        return _files(workspace, deadline, at)
    return _sdist(workspace, deadline, at)


# --- the five kinds ---------------------------------------------------------------------------------------


def _folder(root: Path, deadline: float, at: str) -> Path:
    """Take a snapshot, keyed by the metadata of every file; again if files change meanwhile."""
    if not root.is_dir():
        raise TaskError(f"workspace {root} is not a folder")
    for _ in range(_ATTEMPTS):
        try:
            entries = scan_folder(root, deadline)
        except FileNotFoundError:
            continue
        key = digest(str(root), entries)

        def fill(tree: Path, deadline: float, entries: list[FileMetadata] = entries) -> None:
            try:
                _copy(root, entries, tree, deadline)
                if scan_folder(root, deadline) != entries:
                    raise _Changed
            except FileNotFoundError as error:
                raise _Changed from error

        with contextlib.suppress(_Changed):
            return _prepare(f"folder-{key}", f"workspace {root}", fill, deadline, at)
    raise TaskError(f"workspace {root} changes while it is copied: stop the program that writes to it")


def _tar(workspace: TarWorkspace, deadline: float, at: str) -> Path:
    path = Path(workspace.path).expanduser().absolute()
    try:
        status = path.stat()
    except FileNotFoundError:
        raise TaskError(f"workspace {path} does not exist") from None

    def fill(tree: Path, deadline: float) -> None:
        if workspace.sha256 and (found := file_sha256(path)) != workspace.sha256:
            raise TaskError(f"workspace {path} has SHA-256 {found}, not {workspace.sha256}: copy the archive again")
        _untar(path, tree, workspace.strip, deadline)

    options = (workspace.strip, workspace.sha256)
    key = digest(str(path), *options, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _prepare(f"tar-{key}", f"workspace {path}", fill, deadline, at)


def _git(workspace: GitWorkspace, deadline: float, at: str) -> Path:
    """Export a commit. A reference of a local repository is resolved each time, any other one once."""
    url, ref = workspace.url, workspace.ref
    if local := find_repository(url):
        url, ref = str(local), commit_of(local, ref, deadline)

    def fill(tree: Path, deadline: float) -> None:
        _export_commit(url, ref, tree, deadline)

    return _prepare(f"git-{digest(url, ref)}", f"workspace {workspace.url} at {workspace.ref}", fill, deadline, at)


def _sdist(workspace: SdistWorkspace, deadline: float, at: str) -> Path:
    def fill(tree: Path, deadline: float) -> None:
        archive = download_sdist(
            workspace.name, workspace.filename, workspace.sha256, timeout=deadline - time.monotonic()
        )
        unpack_sdist(archive, tree, deadline=deadline)

    key = digest(workspace.filename, workspace.sha256)
    return _prepare(f"sdist-{key}", f"workspace {workspace.filename}", fill, deadline, at)


def _files(workspace: FilesWorkspace, deadline: float, at: str) -> Path:
    def fill(tree: Path, deadline: float) -> None:  # noqa: ARG001  small enough
        for name, text in workspace.files.items():
            path = _inside(tree, name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
            except (ValueError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise TaskError(f"cannot create the workspace file {name!r}: {error}") from error

    key = digest(sorted(workspace.files.items()))
    return _prepare(f"files-{key}", "workspace of given files", fill, deadline, at)


def _inside(tree: Path, name: str) -> Path:
    """Return the path of a workspace's file.

    Raises:
        TaskError: The name is absolute or leads out of the workspace.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or ".git" in path.parts or not path.parts:
        raise TaskError(f"invalid name of a workspace file: {name!r}; use a relative path without '..' or '.git'")
    return tree / path


def unpack_sdist(archive: Path, tree: Path, *, deadline: float) -> None:
    """Unpack a source release into an existing folder, without the release's top folder.

    Raises:
        TaskError: It is not an archive, or leads out of the folder.
    """
    unpack = _unzip if archive.suffix == ".zip" else _untar
    unpack(archive, tree, 1, deadline)


# --- from files to a complete folder ----------------------------------------------------------------------


def _prepare(key: str, what: str, fill: Fill, deadline: float, at: str) -> Path:
    place = PurePosixPath(at.strip("/"))

    def build(root: Path) -> None:
        tree = root / place
        tree.mkdir(parents=True, exist_ok=True)
        fill(tree, deadline)
        _make_equal(tree, DATE, modes=True)
        _commit(tree, what, deadline)
        _make_equal(tree / ".git", DATE + 86400)  # later than the files, so git trusts its index without reading them
        for folder in (place, *place.parents):
            (root / folder).chmod(0o755)
            os.utime(root / folder, (DATE, DATE))

    key = f"{key}-{digest(str(place))}" if at else key
    return build_once("workspaces", key, build, deadline=deadline) / place


def _make_equal(root: Path, date: int, *, modes: bool = False) -> None:
    """Set the same time, and optionally git's permission bits, on `root` and everything below."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            path = os.path.join(folder, name)
            if modes and not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & stat.S_IXUSR else 0o644)
            os.utime(path, (date, date), follow_symlinks=False)
        if modes:
            os.chmod(folder, 0o755)
        os.utime(folder, (date, date))


def _commit(tree: Path, what: str, deadline: float) -> None:
    def git(*arguments: str) -> None:
        failure = f"cannot commit {what}: git {arguments[0]} failed"
        run_command([git_program(), *arguments], deadline=deadline, cwd=tree, env=_git_env(), failure=failure)

    git("-c", "init.defaultBranch=main", "init", "--quiet", "--template=", ".")
    with (tree / ".git" / "config").open("a") as config:
        config.write(_GIT_CONFIG)
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "attributes").write_text(_EXACT_BYTES)
    git("add", "--all", "--force", ".")
    git("commit", "--quiet", "--allow-empty", "--no-verify", "--message=base")
    git("repack", "-a", "-d", "--quiet")


def base_commit(workspace: Path) -> str:
    """Return the hash of a prepared workspace's only commit, which stands for its content."""
    return (workspace / ".git" / "refs" / "heads" / "main").read_text().strip()


def _git_env() -> dict[str, str]:
    """Return an environment in which git ignores the user's configuration."""
    date = f"{DATE} +0000"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
    }


# --- folders ----------------------------------------------------------------------------------------------


class _Changed(Exception):
    """The folder changed while it was copied."""


def _copy(root: Path, entries: list[FileMetadata], tree: Path, deadline: float) -> None:
    for entry in entries:
        if time.monotonic() > deadline:
            raise TimeoutError(f"workspace {root} was not copied in time")
        target = tree / entry.path
        if entry.link is not None:
            target.symlink_to(entry.link)
        elif stat.S_ISDIR(entry.mode):
            target.mkdir()
        else:
            _copy_file(root / entry.path, target)


def _copy_file(source: Path, target: Path) -> None:
    try:
        shutil.copy(source, target)
    except PermissionError as error:
        raise TaskError(f"workspace file {source} cannot be read: {error}") from error


# --- archives ---------------------------------------------------------------------------------------------


def _untar(archive: Path, tree: Path, strip: int, deadline: float) -> None:
    """Unpack a tar archive of any compression. Members that leave `tree`, and devices, are refused."""

    def stripped(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"unpacking {archive} timed out")
        name = _strip(member.name, strip)
        if name is None:
            return None
        changes = {"name": name}
        if member.islnk():
            changes["linkname"] = _strip(member.linkname, strip) or member.linkname
        return tarfile.data_filter(member.replace(**changes), folder)  # type: ignore[arg-type]

    try:
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter=stripped)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise TaskError(f"cannot unpack workspace {archive}: {error}") from error


def _unzip(archive: Path, tree: Path, strip: int, deadline: float) -> None:
    """Unpack a zip archive; `zipfile` itself keeps its members inside `tree`."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            for member in zipped.infolist():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"unpacking {archive} timed out")
                name = _strip(member.filename, strip)
                if name is not None:
                    mode = member.external_attr >> 16
                    member.filename = name + "/" * member.is_dir()
                    path = zipped.extract(member, tree)
                    os.chmod(path, 0o755 if member.is_dir() or mode & stat.S_IXUSR else 0o644)
    except (zipfile.BadZipFile, EOFError) as error:
        raise TaskError(f"cannot unpack workspace {archive}: {error}") from error


def _strip(name: str, count: int) -> str | None:
    """Return a member's path without its first `count` parts; None if nothing is left or it belongs to a `.git`."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise TaskError(f"archive member {name!r} leads out of the workspace")
    parts = path.parts[count:]
    return None if not parts or ".git" in parts else "/".join(parts)


# --- git --------------------------------------------------------------------------------------------------


def _export_commit(url: str, ref: str, tree: Path, deadline: float) -> None:
    """Fetch one commit into a new repository with our attributes, and check its files out."""
    scratch = tree.parent / "fetched.git"
    environment = {
        **git_environment(),
        "GIT_DIR": str(scratch),
        "GIT_WORK_TREE": str(tree),
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }

    def git(*arguments: str) -> None:
        failure = f"cannot fetch {ref!r} of {url} (a hash must be complete)"
        run_command([git_program(), *arguments], deadline=deadline, env=environment, failure=failure)

    git("init", "--quiet", "--template=")
    (scratch / "info").mkdir(exist_ok=True)
    (scratch / "info" / "attributes").write_text(_EXACT_BYTES)
    git("fetch", "--quiet", "--depth=1", "--no-tags", "--", url, ref)
    git("read-tree", "FETCH_HEAD")
    git("checkout-index", "--all")
    shutil.rmtree(scratch)
