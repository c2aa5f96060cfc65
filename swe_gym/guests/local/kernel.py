"""What a namespace sandbox sees and may change of the kernel: /proc, /sys and its switches."""

import os
import struct

from ..masks import MASKED
from . import linux, users
from .linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC, libc, mount

SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SWITCHES = ("sys", "bus", "fs", "irq")
"""Names in /proc of what root may change by writing."""
EMPTY = "/dev/shm/.empty"
"""File of this sandbox; /dev/null may be the host's."""
OWN_PID_MAX = (6, 14)
"""First Linux on which each PID namespace has a `pid_max` of its own."""


def set_read_only(target: str, *, wanted: bool = True, recursive: bool = True) -> bool:
    """Make mounts read-only, or writable again; return whether this kernel can (Linux 5.12)."""
    changes = (MOUNT_ATTR_RDONLY, 0) if wanted else (0, MOUNT_ATTR_RDONLY)
    attributes = struct.pack("QQQQ", *changes, 0, 0)
    depth = AT_RECURSIVE if recursive else 0
    path = os.fsencode(target)
    return not libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, depth, attributes, len(attributes))


def make_read_only(target: str) -> None:
    """Make a mount and the mounts below it read-only. Raises OSError if the kernel refuses."""
    if set_read_only(target):
        return
    flags = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # these are locked and must be repeated
    mount("", target, flags=MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | flags)


def limit(pids: int, disk_mb: int) -> None:
    """Forbid further user namespaces; cap processes and System V's shared memory, which no file system counts.

    Every user may listen on every port, as container engines set it.

    RLIMIT_NPROC does not bind the host's root, so the PID namespace is capped too. The kernel gives out numbers below
    300 only once, so a sandbox that has used them has `pids` left.
    """
    limits = {"user/max_user_namespaces": 0, "kernel/shmall": disk_mb * 256, "net/ipv4/ip_unprivileged_port_start": 0}
    if release() >= OWN_PID_MAX:  # before, it is the machine's
        limits["kernel/pid_max"] = 300 + pids
    for name, value in limits.items():
        try:
            with open("/proc/sys/" + name, "w") as file:
                file.write(str(value))
        except OSError:
            pass  # an older kernel; see `capabilities.notes`


def release() -> "tuple[int, ...]":
    """Return the first two numbers of the kernel's version."""
    return tuple(int(part) for part in os.uname().release.replace("-", ".").split(".")[:2] if part.isdigit())


def protect_host() -> None:
    """Hide what in /proc and /sys tells of the host, and freeze what reaches it: the host's root is root here."""
    frozen = {name for name in SWITCHES if os.path.exists("/proc/" + name)}
    if users.is_host_root():
        frozen |= files_of_all()
    for name in frozen:
        mount("/proc/" + name, "/proc/" + name, flags=MS_BIND | MS_REC)
    mask()
    if set_read_only("/proc"):
        set_read_only("/proc", wanted=False, recursive=False)
    else:
        for name in frozen:
            make_read_only("/proc/" + name)


def mask() -> None:
    """Mount an empty file or folder over what `MASKED` names."""
    with open(EMPTY, "x"):
        pass
    for path in MASKED:
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", linux.MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k")
        elif os.path.exists(path):
            mount(EMPTY, path, flags=MS_BIND)
    os.unlink(EMPTY)


def files_of_all() -> "set[str]":
    """Return the names in /proc of which the kernel keeps one mode for all sandboxes."""
    masked = {path.split("/")[2] for path in MASKED if path.count("/") == 2}
    with os.scandir("/proc") as entries:
        return {entry.name for entry in entries if not (entry.name.isdigit() or entry.is_symlink())} - masked
