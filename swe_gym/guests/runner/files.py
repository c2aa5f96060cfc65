"""Files: read and write one whole, pack and unpack folders."""

import errno
import io
import os
import stat
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol import Nothing, ReadRequest, UnpackRequest, WriteRequest
    from .loop import Answer, Steps

FILE_CHUNK = 1 << 20


def open_regular(path: str, flags: int = 0) -> "io.FileIO":
    """Open a regular file to read. A pipe or a device, even one made a moment ago, is refused without waiting.

    Raises:
        OSError: Not a regular file, or it cannot be opened.
    """
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags))
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
