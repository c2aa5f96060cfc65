"""The files of a sandbox: workspace, temporary folder and everything else on one file system.

Renames and hard links work only within one mount, and programs use them between a repository and `/tmp`. Everything
lies on a tmpfs, so nothing outlives the last process of the sandbox. The workspace gets there in one of three ways:

- The machine's root mounts an overlay as the sandbox's whole root, with the workspace as its lower layer. Renaming a
  folder of a lower layer needs `redirect_dir`, which needs attributes ("trusted.*") that no other user may set. So this
  happens before the sandbox's user namespace is entered, and is passed on as a detached mount.
- For another user, a small workspace is copied.
- For another user, a large workspace is a lower layer; its files can be renamed, but not the folders it came with.
"""

import os
from typing import Any

from .linux import CLONE_NEWNS, MNT_DETACH, MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, check, libc, mount
from .trees import copy_tree

BASE = "/tmp"
"""Mount point of the tmpfs during the construction; only this process sees it."""
ROOT = BASE + "/root"
"""The sandbox's root."""
LAYERS = BASE + "/.layers"
ONE_DEVICE = "xino=on"
"""Files of both layers have the device of their folders, and keep their inode when they are written to."""
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
OPEN_TREE_CLONE, AT_FDCWD, AT_RECURSIVE, MOVE_MOUNT_F_EMPTY_PATH = 1, -100, 0x8000, 4


def make_as_root(config: "dict[str, Any]") -> "int | None":
    """Return the files as a detached mount for `attach`, or None if this process is not the machine's root.

    It leaves this process in a mount namespace of its own. What fails here fails again, with its error, in `make`.
    """
    if os.geteuid() or not config["layer"] or libc.unshare(CLONE_NEWNS):
        return None
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    layer = os.open(config["layer"], os.O_PATH | os.O_CLOEXEC)
    mount_tmpfs(config["disk_mb"])
    try:
        os.setxattr(LAYERS, "trusted.swe_gym", b"")  # if that is refused, an overlay silently does without
        mount_overlay(layer, ROOT, f"{ONE_DEVICE},redirect_dir=on")
        flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
        return check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(BASE), flags), "open_tree")
    except OSError:
        return None
    finally:
        os.close(layer)
        check(libc.umount2(os.fsencode(BASE), MNT_DETACH), "umount")


def attach(files: int) -> None:
    """Mount the result of `make_as_root`."""
    check(libc.syscall(SYS_MOVE_MOUNT, files, b"", AT_FDCWD, os.fsencode(BASE), MOVE_MOUNT_F_EMPTY_PATH), "move_mount")
    os.close(files)


def make(config: "dict[str, Any]", layer: "int | None", workspace: "int | None") -> None:
    """Make the files as any user; `layer` and `workspace` are descriptors, or None without a workspace."""
    mount_tmpfs(config["disk_mb"])
    if workspace is not None and config["copied"]:
        copy_tree(f"/proc/self/fd/{workspace}", ROOT + config["workdir"])
    if layer is not None and not config["copied"]:
        mount_overlay(layer, ROOT, f"{ONE_DEVICE},userxattr")
    else:
        mount(ROOT, ROOT, flags=MS_BIND)  # only a mount can become the root


def mount_tmpfs(disk_mb: int) -> None:
    """Mount the place of all that the sandbox writes."""
    options = f"size={disk_mb}m,nr_inodes={disk_mb * 256},mode=755"  # empty files take memory too
    mount("tmpfs", BASE, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.mkdir(LAYERS)
    os.mkdir(ROOT)


def mount_overlay(lower: int, target: str, how: str) -> None:
    """Mount a folder, given as a descriptor, copy-on-write."""
    number = len(os.listdir(LAYERS)) // 2
    upper, work = (f"{LAYERS}/{number}{name}" for name in ("u", "w"))
    os.mkdir(upper)
    os.mkdir(work)
    options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},{how}"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
