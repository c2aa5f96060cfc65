"""A copy of an image's layers as an overlay shows them, for machines without overlays.

File systems that can share blocks (Btrfs, XFS) share them. The layers are never linked, so that a sandbox cannot change
them. Devices are left out: no sandbox could open them.
"""

import contextlib
import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WHITEOUT, OPAQUE = ".wh.", ("user.overlay.opaque", "trusted.overlay.opaque")
"""Name of a deletion where the kernel lets no user make the device that is one (before Linux 5.8)."""
FICLONE = 0x40049409


class Merge:
    """The state of one copy.

    Args:
        owners: Whether to keep the files' owners: this namespace has more users than one.
    """

    def __init__(self, owners: bool) -> None:
        self.owners = owners
        self.links: dict[tuple[int, int], str] = {}

    def copy(self, folders: "Sequence[str]", target: str) -> None:
        """Copy folders, top first, into one that exists."""
        for name, found in shown(folders).items():
            place = f"{target}/{name}"
            if found[0].is_dir(follow_symlinks=False):
                os.mkdir(place, 0o700)
                self.copy([entry.path for entry in found], place)
            else:
                self.copy_file(found[0], place)
        self.copy_status(folders[0], os.stat(folders[0]), target)

    def copy_file(self, entry: "os.DirEntry[str]", place: str) -> None:
        status = entry.stat(follow_symlinks=False)
        key = status.st_dev, status.st_ino
        if key in self.links:
            os.link(self.links[key], place, follow_symlinks=False)
            return
        if stat.S_ISREG(status.st_mode):
            copy_content(entry.path, place, status.st_size)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(entry.path), place)
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(place)
        else:
            return
        if status.st_nlink > 1:
            self.links[key] = place
        self.copy_status(entry.path, status, place)

    def copy_status(self, source: str, status: os.stat_result, place: str) -> None:
        """Copy owner, attributes, mode and times, in this order: a change of owner clears setuid."""
        if self.owners:
            os.chown(place, status.st_uid, status.st_gid, follow_symlinks=False)
        for name in os.listxattr(source, follow_symlinks=False):
            if name.startswith("user.") and name not in OPAQUE:
                with contextlib.suppress(OSError):  # the file system of the copy has none
                    os.setxattr(place, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(place, stat.S_IMODE(status.st_mode))
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def shown(folders: "Sequence[str]") -> "dict[str, list[os.DirEntry[str]]]":
    """Return what an overlay of folders, top first, has under each name: one file, or folders to merge."""
    found: dict[str, list[os.DirEntry[str]]] = {}
    closed: set[str] = set()
    for folder in folders:
        deleted = set()
        for entry in os.scandir(folder):
            if entry.name.startswith(WHITEOUT):
                deleted.add(entry.name[len(WHITEOUT) :])
            elif entry.name in closed:
                continue
            elif entry.is_dir(follow_symlinks=False):
                found.setdefault(entry.name, []).append(entry)
            else:
                deleted.add(entry.name)
                if entry.name not in found and not is_whiteout(entry):
                    found[entry.name] = [entry]
        closed |= deleted
        if is_opaque(folder):
            break
    return found


def is_whiteout(entry: "os.DirEntry[str]") -> bool:
    status = entry.stat(follow_symlinks=False)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: str) -> bool:
    return any(name in OPAQUE for name in os.listxattr(folder))


def copy_content(source: str, place: str, size: int) -> None:
    """Copy a file's content: by sharing its blocks if the file system can, else without its holes."""
    with open(source, "rb") as ours, open(place, "xb") as theirs:
        try:
            fcntl.ioctl(theirs, FICLONE, ours.fileno())
        except OSError:
            theirs.truncate(size)
            for start, end in parts(ours.fileno(), size):
                theirs.seek(start)
                while start < end:
                    start += os.sendfile(theirs.fileno(), ours.fileno(), start, end - start)


def parts(file: int, size: int) -> "Iterator[tuple[int, int]]":
    """Yield (start, end) of the parts of a file that are no holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end
