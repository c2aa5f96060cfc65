"""Unpacks one layer of a container image, a tar stream on standard input, into the folder that is its argument.

It runs as a program of its own, with that folder as its root: whatever the archive's names and links say, nothing
outside can be reached. Deletions become what an overlay file system reads as such: a whiteout is a character device
0/0, and an opaque folder has an extended attribute. Without root and without ranges of users, all files belong to the
user.
"""

import json
import os
import shutil
import stat
import sys
import tarfile
from decimal import Decimal

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
XATTR = "SCHILY.xattr."
REFUSED = (1, 22, 34, 95)
"""EPERM, EINVAL, ERANGE, EOPNOTSUPP: a file system that lacks such an attribute."""


def main() -> None:
    """Unpack standard input into a folder, or remove what the folder has. Arguments: task, folder, ranges of users."""
    task, folder, ranges = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    privileged = os.geteuid() == 0
    if not privileged:
        linux.enter_user_namespace(linux.CLONE_NEWNS, ranges)
    enter(folder)
    if task == "unpack":
        Unpacker(owners=privileged or bool(ranges)).unpack(sys.stdin.buffer)
    elif task == "remove":
        for name in os.listdir("/"):
            remove("/" + name)


def enter(folder: str) -> None:
    """Make a folder the root of this process."""
    os.chroot(folder)
    os.chdir("/")
    os.umask(0)


class Unpacker:
    """The state of one layer.

    Args:
        owners: Whether to keep owners.
    """

    def __init__(self, owners: bool) -> None:
        self.owners = owners
        self.folders: dict[str, tarfile.TarInfo] = {}

    def unpack(self, stream: "IO[bytes]") -> None:
        """Unpack every member; then set the modes and times of folders, which members below change."""
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                self.add(archive, member)
                archive.members.clear()  # type: ignore[attr-defined]  # not in typeshed; a layer may have millions
        for path, member in sorted(self.folders.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):  # later members may have replaced it
                self.set_status(path, member)
        while stream.read(1 << 20):
            pass  # padding after the archive's end, which the digest covers

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Add one member."""
        path = os.path.normpath("/" + member.name)
        folder, name = os.path.split(path)
        os.makedirs(folder, 0o755, exist_ok=True)
        if name == OPAQUE:
            set_attribute(folder, "trusted.overlay.opaque", b"y")  # for root's
            os.setxattr(folder, "user.overlay.opaque", b"y")  # for overlays in user namespaces
        elif name.startswith(WHITEOUT):
            path = os.path.join(folder, name[len(WHITEOUT) :])
            remove(path)
            try:
                os.mknod(path, stat.S_IFCHR, 0)
            except PermissionError:  # before Linux 5.8, which cannot mount the overlay either; see `Merge`
                os.mknod(os.path.join(folder, name))
        elif member.isdir():
            self.add_folder(path, member)
        else:
            remove(path)
            self.add_file(archive, path, member)

    def add_folder(self, path: str, member: tarfile.TarInfo) -> None:
        if not os.path.isdir(path) or os.path.islink(path):
            remove(path)
            os.mkdir(path)
        os.chmod(path, 0o700)
        self.folders[path] = member

    def add_file(self, archive: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> None:
        if member.islnk():
            os.link(os.path.normpath("/" + member.linkname), path, follow_symlinks=False)
            return
        if member.issym():
            os.symlink(member.linkname, path)
        elif member.isfifo():
            os.mkfifo(path)
        elif member.isdev():
            kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
            try:
                os.mknod(path, kind, os.makedev(member.devmajor, member.devminor))
            except PermissionError:
                return  # only the machine's root can make devices, and no sandbox could open them
        else:
            archive.makefile(member, path)  # holes of sparse files are kept
        self.set_status(path, member)

    def set_status(self, path: str, member: tarfile.TarInfo) -> None:
        """Set owner, attributes, mode and times, in this order: a change of owner clears setuid and capabilities."""
        if self.owners:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        for name, value in member.pax_headers.items():
            if name.startswith(XATTR) and ".overlay." not in name:  # no layer speaks for our file system
                set_attribute(path, name[len(XATTR) :], value.encode("utf-8", "surrogateescape"))
        if not member.issym():
            os.chmod(path, member.mode & 0o7777)
        time = int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 10**9)  # a float would round it
        os.utime(path, ns=(time, time), follow_symlinks=False)


def set_attribute(path: str, name: str, value: bytes) -> None:
    """Set an extended attribute, if the file system and this user's rights allow it."""
    try:
        os.setxattr(path, name, value, follow_symlinks=False)
    except OSError as error:
        if error.errno not in REFUSED:
            raise


def remove(path: str) -> None:
    """Remove what an earlier member left at a path."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


if __name__ == "__main__":
    main()
