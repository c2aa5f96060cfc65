"""The files of a sandbox: workspace, temporary folder and everything else on one file system.

Renames and hard links work only within one mount, and programs use them between a repository and `/tmp`. Everything
lies on a tmpfs, so nothing outlives the last process of the sandbox. The layers of an image are the lower layers of one
overlay, the sandbox's whole root. A workspace gets there in one of three ways:

- The machine's root mounts an overlay as the sandbox's whole root, with the workspace as its lower layer. Renaming a
  folder of a lower layer needs `redirect_dir`, which needs attributes ("trusted.*") that no other user may set. So this
  happens before the sandbox's user namespace is entered, and is passed on as a detached mount.
- For another user, a small workspace is copied.
- For another user, a large workspace is a lower layer; its files can be renamed, but not the folders it came with.
"""

import os
import stat

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
from .trees import copy_tree

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
