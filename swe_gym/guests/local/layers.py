"""The files of a sandbox: workspace, temporary folder and everything else on one file system.

Renames and hard links work only within one mount, and programs use them between a repository and `/tmp`. Everything
lies on a tmpfs, so nothing outlives the last process of the sandbox. The layers of an image are the lower layers of one
overlay, the sandbox's whole root. A workspace gets there in one of three ways:

- The machine's root mounts an overlay as the sandbox's whole root, with the workspace as its lower layer. Renaming a
  folder of a lower layer needs `redirect_dir`, which needs attributes ("trusted.*") that no other user may set. So this
  happens before the sandbox's user namespace is entered, and is passed on as a detached mount.
- For another user, a small workspace is copied.
- For another user, a large workspace is a lower layer; its files can be renamed, but not the folders it came with.

Where the kernel mounts no overlay in a user namespace, an image's root is made by FUSE or as a copy (`Merge`), in the
sandbox's user namespace, before its other namespaces. What serves or holds it is a process that no sandbox can see,
and ends with the supervisor, also if that is killed. File systems that can share blocks (Btrfs, XFS) share those of a
copy. The layers are never linked, so that a sandbox cannot change them. Devices are left out of a copy: no sandbox
could open them.
"""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import stat
import time

from . import linux
from .linux import (
    CLONE_NEWNS,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    Config,
    check,
    libc,
    mount,
)

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


def copy_tree(source: str, target: str) -> None:
    """Copy a folder of files, folders and links, with their modes and times, into another folder, which may exist."""
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_dir():
                copy_tree(entry.path, path)
            else:
                copy_file(entry.path, path)
    copy_status(os.stat(source), target)


def copy_file(source: str, target: str) -> None:
    """Copy one file within the kernel."""
    ours = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    theirs = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while os.sendfile(theirs, ours, None, 1 << 30):
            pass
        copy_status(os.fstat(ours), theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def copy_status(status: os.stat_result, target: "str | int") -> None:
    """Set the mode and times of a file, given by path or descriptor, to another file's."""
    os.chmod(target, status.st_mode & 0o7777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


BASE = "/tmp"
"""Mount point of the tmpfs during the construction; only this process sees it."""
ROOT = BASE + "/root"
"""The sandbox's root."""
LAYERS = BASE + "/.layers"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ONE_DEVICE = "xino=on"
"""Files of both layers have the device of their folders, and keep their inode when they are written to."""
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
OPEN_TREE_CLONE, AT_FDCWD, AT_RECURSIVE, MOVE_MOUNT_F_EMPTY_PATH = 1, -100, 0x8000, 4


def make_as_root(config: Config) -> "tuple[int | None, int | None]":
    """Return the files and the devices that only the machine's root can make, as detached mounts for `attach`.

    It leaves the machine's root in a mount namespace of its own. What fails here fails again in `make`, with its error.
    """
    if os.geteuid() or libc.unshare(CLONE_NEWNS):
        return None, None
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    wanted = config["layers"] and config["overlay"] == "kernel"
    return make_files(config) if wanted else None, make_devices()


def make_files(config: Config) -> "int | None":
    """Return an overlay on which folders of its lower layers can be renamed."""
    lowers = [os.open(layer, os.O_PATH | os.O_CLOEXEC) for layer in config["layers"]]
    mount_tmpfs(config["disk_mb"])
    try:
        os.setxattr(LAYERS, "trusted.swe_gym", b"")  # if that is refused, an overlay silently does without
        mount_overlay(lowers, ROOT, f"{ONE_DEVICE},redirect_dir=on")
        return detach()
    except OSError:
        return None
    finally:
        for lower in lowers:
            os.close(lower)
        check(libc.umount2(os.fsencode(BASE), MNT_DETACH), "umount")


def make_devices() -> "int | None":
    """Return a folder of devices: locks on the machine's own, and their use, are seen by everyone."""
    mount("tmpfs", BASE, "tmpfs", MS_NOSUID | MS_NOEXEC, "size=1m,nr_inodes=1024,mode=755")
    try:
        for name in DEVICES:
            os.mknod(f"{BASE}/{name}", stat.S_IFCHR, os.stat("/dev/" + name).st_rdev)
            os.chmod(f"{BASE}/{name}", 0o666)
        return detach()
    except OSError:
        return None  # this root may make none: it is that of a container
    finally:
        check(libc.umount2(os.fsencode(BASE), MNT_DETACH), "umount")


def detach() -> int:
    """Return the mounts at `BASE` without a place."""
    flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
    return check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(BASE), flags), "open_tree")


def attach(mounts: int, place: str = BASE) -> None:
    """Mount what `make_as_root` returned."""
    check(
        libc.syscall(SYS_MOVE_MOUNT, mounts, b"", AT_FDCWD, os.fsencode(place), MOVE_MOUNT_F_EMPTY_PATH), "move_mount"
    )
    os.close(mounts)


def make(config: Config, lowers: "list[int]", workspace: "int | None") -> None:
    """Make the files as any user; `lowers` and `workspace` are descriptors, or nothing without a workspace."""
    mount_tmpfs(config["disk_mb"])
    if workspace is not None and config["copied"]:
        copy_tree(f"/proc/self/fd/{workspace}", ROOT + config["workdir"])
    if lowers and not config["copied"]:
        try:
            mount_overlay(lowers, ROOT, f"{ONE_DEVICE},userxattr")
            return
        except OSError:
            if workspace is None:
                raise
            copy_tree(f"/proc/self/fd/{workspace}", ROOT + config["workdir"])
    mount(ROOT, ROOT, flags=MS_BIND)  # only a mount can become the root


def mount_tmpfs(disk_mb: int) -> None:
    """Mount the place of all that the sandbox writes."""
    options = f"size={disk_mb}m,nr_inodes={disk_mb * 256},mode=755"  # empty files take memory too
    mount("tmpfs", BASE, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.mkdir(LAYERS)
    os.mkdir(ROOT)


def make_folder(name: str) -> str:
    """Make a folder outside of the root, on the same file system."""
    os.mkdir(f"{LAYERS}/{name}", 0o755)
    return f"{LAYERS}/{name}"


def mount_overlay(lowers: "list[int]", target: str, how: str) -> None:
    """Mount folders, given as descriptors from top to bottom, as one, copy-on-write."""
    number = len(os.listdir(LAYERS)) // 2
    upper, work = (make_folder(f"{number}{name}") for name in ("u", "w"))
    folders = ":".join(f"/proc/self/fd/{lower}" for lower in lowers)
    options = f"lowerdir={folders},upperdir={upper},workdir={work},{how}"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def mount_below(folder: str, target: str) -> None:
    """Mount a folder read-only, as the lower layer of an overlay, which gives its files inodes of their own."""
    os.makedirs(LAYERS + "/none", exist_ok=True)  # there must be two layers
    lower = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        options = f"lowerdir=/proc/self/fd/{lower}:{LAYERS}/none,userxattr"
        mount("overlay", target, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options)
    finally:
        os.close(lower)


READY_SECONDS, REMOVE_SECONDS, PAUSE = 20.0, 60.0, 0.05


def make_without_overlay(config: Config, owners: bool) -> None:
    """Make the root at `layers.ROOT`."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    lowers = [os.open(layer, os.O_PATH | os.O_CLOEXEC) for layer in config["layers"]]
    copy = None if config["overlay"] == "fuse" else make_copy_folder(config["copies"])
    mount_tmpfs(config["disk_mb"])
    if copy is None:
        serve(config["fuse"], lowers)
    else:
        Merge(owners).copy([f"/proc/self/fd/{lower}/." for lower in lowers], f"/proc/self/fd/{copy}/.")
        os.chmod(copy, 0o755)  # as that of an overlay
        mount(f"/proc/self/fd/{copy}", ROOT, flags=MS_BIND)
        kept = os.statvfs(ROOT).f_flag & MS_NOEXEC  # it is locked and must be repeated
        mount("", ROOT, flags=MS_BIND | linux.MS_REMOUNT | MS_NOSUID | MS_NODEV | kept)
    for lower in lowers:
        os.close(lower)


def serve(program: str, lowers: "list[int]") -> None:
    """Mount folders, given as descriptors from top to bottom, by fuse-overlayfs."""
    places = []
    for number, lower in enumerate(lowers):  # it looks for the paths of its folders, which /tmp may hide by now
        places.append(make_folder(f"{number}l"))
        mount(f"/proc/self/fd/{lower}", places[-1], flags=MS_BIND | MS_REC)
    upper, work = make_folder("fu"), make_folder("fw")
    options = f"lowerdir={':'.join(places)},upperdir={upper},workdir={work}"
    with open("/proc/self/mountinfo") as mounts:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                linux.die_with_parent(parent)
                linux.let_go()
                os.execv(program, [program, "-f", "-o", options, ROOT])
            finally:
                os._exit(127)
        wait_for_mount(mounts.fileno(), child, program)


def wait_for_mount(mounts: int, child: int, program: str) -> None:
    """Wait until the mount is there, of which the kernel tells those who poll the list of mounts."""
    events = select.poll()
    events.register(mounts, select.POLLPRI)
    end = os.pidfd_open(child)
    events.register(end, select.POLLIN)
    deadline = time.monotonic() + READY_SECONDS
    while os.stat(BASE).st_dev == os.stat(ROOT).st_dev:
        if os.waitpid(child, os.WNOHANG)[0] or time.monotonic() > deadline:
            raise OSError(errno.EIO, f"{program} did not mount the image: it needs /dev/fuse")
        events.poll(1000)
    os.close(end)


def make_copy_folder(folder: str) -> int:
    """Make a folder for a copy, and start the process that removes it. Return its descriptor, which holds its lock.

    Folders that others left behind, because all of their processes were killed, are removed.
    """
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(parent, fcntl.LOCK_EX)  # a folder is made and locked in one step
    left = [held for held in map(lock, os.scandir(folder)) if held]
    name = f"{os.getpid()}-{time.time_ns()}"
    os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    fcntl.flock(parent, fcntl.LOCK_UN)
    supervisor = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            linux.let_go(parent, supervisor, descriptor, *(held for _, held in left))
            for other, _ in left:
                remove(other, parent)
            select.select([supervisor], [], [])
            remove(name, parent)
        finally:
            os._exit(0)
    for held in (supervisor, parent, *(held for _, held in left)):
        os.close(held)
    return descriptor


def lock(entry: "os.DirEntry[str]") -> "tuple[str, int] | None":
    """Lock a folder that no process holds."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # its own process has just removed it
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return entry.name, descriptor


def remove(name: str, parent: int) -> None:
    """Remove a folder. The last processes of its sandbox may still write for a moment."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            shutil.rmtree(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(PAUSE)
