"""User namespaces: which users of the machine are which inside.

The machine's root maps all users to themselves. Another user maps itself to root, and the ranges that the machine's
administrator grants it (/etc/subuid, /etc/subgid) to all others, if there are any.
"""

import contextlib
import errno
import os

from .linux import check, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Ranges = Sequence[tuple[str, int, int]]

CLONE_NEWUSER = 0x10000000
MAPS = ("uid_map", "gid_map")


def enter(flags: int, ranges: "Ranges", everyone: bool = True) -> None:
    """Enter a new user namespace, in which our user is root, and those of `flags`.

    Args:
        flags: Other namespaces to enter.
        ranges: (program, first, count) that map our ranges of users and of groups; empty without ranges.
        everyone: Whether to map more users than our own.
    """
    user, group = os.geteuid(), os.getegid()
    if everyone and (user == 0 or ranges):
        with mapped_from_outside(user, group, ranges):
            check(libc.unshare(flags | CLONE_NEWUSER), "unshare")
        return
    check(libc.unshare(flags | CLONE_NEWUSER), "unshare")
    write_map("self", "setgroups", "deny")
    write_map("self", "uid_map", f"0 {user} 1")
    write_map("self", "gid_map", f"0 {group} 1")


@contextlib.contextmanager
def mapped_from_outside(user: int, group: int, ranges: "Ranges") -> "Iterator[None]":
    """Map users in the user namespace that this process enters within the block.

    Only a process outside of the namespace may: a child that is forked before.
    """
    maps = {}
    for name in MAPS:
        with open(f"/proc/self/{name}") as file:
            maps[name] = "".join(f"{first} {first} {count}\n" for first, _, count in map(str.split, file))
    ready, entered = os.pipe()
    parent = str(os.getpid())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(entered)
            os.read(ready, 1)
            for number, (program, first, count) in enumerate(ranges):
                numbers = map(str, (0, (user, group)[number], 1, 1, first, count))
                if os.spawnv(os.P_WAIT, program, [program, parent, *numbers]):
                    os._exit(1)
            for name, text in () if ranges else maps.items():
                write_map(parent, name, text)
            status = 0
        finally:
            os._exit(status)
    os.close(ready)
    try:
        yield
    finally:
        os.close(entered)
        _, status = os.waitpid(child, 0)
    if status:
        raise OSError(errno.EPERM, "the users of the image cannot be mapped")


def write_map(process: str, name: str, text: str) -> None:
    try:
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)
    except OSError as error:  # how Ubuntu refuses them
        raise OSError(error.errno, f"{name}: {error.strerror}") from error


def has_one_user() -> bool:
    """Return whether root is the only user of this namespace."""
    with open("/proc/self/uid_map") as file:
        return [line.split()[2] for line in file] == ["1"]


def is_host_root() -> bool:
    """Return whether the machine's root is a user of this namespace, who may change the modes of the kernel's files.

    Numbers do not tell in a namespace within another one: the machine's root has any number there.
    """
    with open("/proc/sys/kernel/overflowuid") as file:
        return os.stat("/proc/version").st_uid != int(file.read())
