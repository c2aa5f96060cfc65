"""Files: read and write one whole, pack and unpack folders, and list every file of a tree, in steps."""

import errno
import fnmatch
import hashlib
import io
import os
import stat
import tarfile

from ..gitignore import LONGEST_RULES, Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ..protocol import ManifestReply, ManifestRequest, Nothing, ReadRequest, UnpackRequest, WriteRequest
    from .loop import Answer, Steps

    Row = list[int | str | None]  # mode, size, digest, link target or None, what ignores it

FILE_CHUNK = 1 << 20


def open_regular(path: str, flags: int = 0, folder: "int | None" = None) -> "io.FileIO":
    """Open a regular file to read, below `folder` if the path is relative.

    A pipe or a device, even one made a moment ago, is refused without waiting.

    Raises:
        OSError: Not a regular file, or it cannot be opened.
    """
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IsADirectoryError(errno.EISDIR, "not a regular file")
    return file


def check_folder(path: str) -> None:
    """Raise OSError if `path` is not a folder."""
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR if os.path.exists(path) else errno.ENOENT, "not a directory")


def read_file(request: "ReadRequest", _: bytes) -> "Steps[Nothing]":
    chunks, total = [], 0
    with open_regular(request["path"]) as file:
        size = os.fstat(file.fileno()).st_size
        while size <= request["max_bytes"]:  # files of /proc have no size, others grow
            chunk = file.read(FILE_CHUNK)
            if not chunk:
                break
            chunks.append(chunk)
            total += len(chunk)
            size = max(size, total)
            yield
    if size > request["max_bytes"]:
        raise OSError(errno.EFBIG, "larger than %d bytes" % request["max_bytes"])
    return {}, b"".join(chunks)


def write_file(request: "WriteRequest", payload: bytes) -> "Answer[Nothing]":
    path = os.path.realpath(request["path"])
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    mode = request["mode"]
    if mode is None:
        mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o644
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    temporary = os.path.join(folder, ".swe-gym-%s" % os.urandom(8).hex())  # a name that nobody can guess
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(payload)
            os.fchmod(file.fileno(), mode)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return {}, b""


def put_tar(request: "UnpackRequest", payload: bytes) -> "Answer[Nothing]":
    root = os.path.realpath(request["path"])
    try:
        archive = tarfile.open(fileobj=io.BytesIO(payload), mode="r:*")
    except tarfile.TarError as error:
        raise OSError(errno.EINVAL, "not a tar archive: %s" % error) from error
    with archive:
        members = archive.getmembers()
        links: set[str] = set()
        for member in members:
            check_member(root, member, links)
        os.makedirs(root, exist_ok=True)
        for member in members:
            make_way(os.path.join(root, member.name), member)
        if hasattr(tarfile, "fully_trusted_filter"):
            archive.extraction_filter = tarfile.fully_trusted_filter  # members were checked
        archive.extractall(root, members=members)
    return {}, b""


def check_member(root: str, member: "tarfile.TarInfo", links: "set[str]") -> None:
    """Refuse a member that could write outside of `root`, or make a device. A symbolic link may point anywhere."""
    names = [os.path.normpath(name) for name in [member.name] + [member.linkname] * member.islnk()]
    harmless = member.isreg() or member.isdir() or member.issym() or member.islnk()
    for name in names:
        parts = name.split("/")
        folder = os.path.realpath(os.path.join(root, name if member.isdir() else os.path.dirname(name)))
        inside = parts[0] != ".." and (folder + "/").startswith(root.rstrip("/") + "/")
        through_link = any("/".join(parts[:count]) in links for count in range(1, len(parts) + 1))
        if through_link or not (inside and harmless):
            message = "refused member %r: it leads out of the folder or is a device" % member.name
            raise OSError(errno.EINVAL, message)
    if member.issym():
        links.add(names[0])


def make_way(path: str, member: "tarfile.TarInfo") -> None:
    """Remove what a member replaces: writing to a link would change its target."""
    if not member.isdir() and os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.unlink(path)


def get_tar(request: "ReadRequest", _: bytes) -> "Steps[Nothing]":
    root, max_bytes = request["path"], request["max_bytes"]
    check_folder(root)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(folders) + sorted(files):
                path = os.path.join(folder, name)
                info = archive.gettarinfo(path, os.path.relpath(path, root))
                if not info:  # a socket
                    continue
                if buffer.tell() + info.size > max_bytes:
                    raise OSError(errno.EFBIG, "larger than %d bytes" % max_bytes)
                if info.isreg():
                    with open_regular(path, os.O_NOFOLLOW) as file:
                        archive.addfile(info, file)
                else:
                    archive.addfile(info)
                yield
    return {}, buffer.getvalue()


LONGEST_NAMES = 16 << 20  # bytes of a manifest's paths; more would not fit into a frame


def list_files(request: "ManifestRequest", payload: bytes) -> "Steps[ManifestReply]":
    check_folder(request["path"])
    listing = TreeListing(request)
    yield from listing.add_named(payload) if request["only"] else listing.add_all()
    return {"entries": dict(listing.entries)}, b""


class TreeListing:
    """The files of a tree so far.

    Files that nothing ignores come first, so that ignored ones never keep them from being listed. What ignores a file
    is the outermost ignored folder above it, or the file itself: named by a `.gitignore`, or a virtual environment.

    Args:
        request: `path`, `exclude`, `max_files`, `max_ignored` and `max_hashed`, as in `Sandbox.manifest`.

    Attributes:
        entries: Relative path -> row.
        ignored: Number of entries that something ignores.
        names: Length of all paths.
        unhashed: Bytes that may still be hashed.
    """

    def __init__(self, request: "ManifestRequest") -> None:
        self.root = request["path"]
        self.exclude = request["exclude"]
        self.max_files = request["max_files"]
        self.max_ignored = request["max_ignored"]
        self.unhashed: float = float("inf") if request["max_hashed"] is None else request["max_hashed"]
        self.entries: dict[str, Row] = {}
        self.ignored = 0
        self.names = 0

    def add_named(self, payload: bytes) -> "Generator[None, None, None]":
        """List only files of these names, NUL between them: those that exist and lie behind no link."""
        root = os.path.realpath(self.root)
        for name in os.fsdecode(payload).split("\0"):
            yield
            path = os.path.join(root, name)
            if os.path.realpath(os.path.dirname(path)) == os.path.dirname(path):
                yield from self.add(name, "")

    def add_all(self) -> "Generator[None, None, None]":
        todo: list[tuple[str, Rules | None, str]] = [("", None, "")]  # folder, its rules, what ignores it
        ignored: list[tuple[str, Rules | None, str]] = []
        while todo or (ignored and self.has_room("ignored")):
            yield
            folder, rules, cause = (todo or ignored).pop()
            if self.max_ignored is not None and not cause:
                rules = self.read_rules(folder, rules)
                cause = folder if self.is_environment(folder) else ""
            for entry in self.scan(folder):
                yield
                if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in self.exclude):
                    continue
                name = os.path.join(folder, entry.name)
                is_folder = entry.is_dir(follow_symlinks=False)
                why = cause or (name if rules and rules.ignore(name, is_folder) else "")
                if not self.has_room(why):
                    continue
                if is_folder:
                    (ignored if why else todo).append((name, rules, why))
                else:
                    yield from self.add(name, why)

    def has_room(self, cause: str) -> bool:
        return not cause or self.max_ignored is None or self.ignored < self.max_ignored

    def add(self, name: str, cause: str) -> "Generator[None, None, None]":
        row = yield from self.describe(os.path.join(self.root, name))
        if not row:
            return
        self.entries[name] = [*row, cause]
        self.ignored += bool(cause)
        self.names += len(name) + len(str(row[3] or "")) + len(cause)
        if len(self.entries) - self.ignored > self.max_files or self.names > LONGEST_NAMES:
            raise OSError(errno.EFBIG, "more than %d files, or too long paths" % self.max_files)

    def read_rules(self, folder: str, above: "Rules | None") -> "Rules | None":
        """Return the rules of a folder: those above it, and those of its own `.gitignore`."""
        try:
            with open_regular(os.path.join(self.root, folder, ".gitignore"), os.O_NOFOLLOW) as file:
                return Rules(folder, os.fsdecode(file.read(LONGEST_RULES)), above)
        except OSError:
            return above

    def is_environment(self, folder: str) -> bool:
        """Return whether a folder below the root is a virtual environment with a Python of its own."""
        path = os.path.join(self.root, folder)
        pythons = ("bin/python", "Scripts/python.exe")
        return (
            folder != ""
            and os.path.lexists(os.path.join(path, "pyvenv.cfg"))
            and any(os.path.lexists(os.path.join(path, python)) for python in pythons)
        )

    def scan(self, folder: str) -> "Iterable[os.DirEntry[str]]":
        """Yield the entries of a folder; none if it was removed or replaced meanwhile."""
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            pass

    def describe(self, path: str) -> "Generator[None, None, Row | None]":
        """Return [mode, size, digest, link target or None] in steps, or None for neither file nor link."""
        try:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                target = os.readlink(path)
                digest = hashlib.sha256(os.fsencode(target)).hexdigest()
                return [stat.S_IMODE(info.st_mode), info.st_size, digest, target]
            if not stat.S_ISREG(info.st_mode):
                return None
            if info.st_size > self.unhashed:
                return [stat.S_IMODE(info.st_mode), info.st_size, "", None]
            self.unhashed -= info.st_size
            with open_regular(path, os.O_NOFOLLOW) as file:
                info = os.fstat(file.fileno())
                digest = yield from hash_file(file, info.st_size)
                return [stat.S_IMODE(info.st_mode), info.st_size, digest, None]
        except PermissionError:
            return [stat.S_IMODE(info.st_mode), info.st_size, "unreadable", None]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL):
                return None  # replaced while we look
            raise


def hash_file(file: "io.FileIO", left: int) -> "Generator[None, None, str]":
    """Return the digest of the first `left` bytes in steps: a file may grow for ever."""
    digest = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(FILE_CHUNK, left))
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
        yield
    return digest.hexdigest()
