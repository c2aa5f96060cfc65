"""System calls that Python has no function for, and user namespaces: which users of the machine are which inside.

The machine's root maps all users to themselves. Another user maps itself to root, and the ranges that the machine's
administrator grants it (/etc/subuid, /etc/subgid) to all others, if there are any.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import select
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    Ranges = Sequence[tuple[str, int, int]]
    Config = dict[str, Any]  # the description of a sandbox, read from JSON
else:
    Config = dict

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
CAPABILITY_VERSION_3 = 0x20080522
MOST_DESCRIPTORS = 1024
"""More than processes of the launcher have."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def check(result: int, what: str) -> int:
    """Return the result of a C call; raise OSError with `what` if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    """Set a process attribute."""
    check(libc.prctl(option, value, 0, 0, 0), f"prctl({option}, {value})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system. Raises an OSError that names the target."""
    arguments = [os.fsencode(text) if text else None for text in (source, target, kind)]
    check(libc.mount(*arguments, flags, os.fsencode(data) if data else None), f"mount {kind or 'bind'} on {target}")


def die_with_parent(parent: int) -> None:
    """Die when the parent ends, or now if it has ended. The parent must have a single thread."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (parent, 0):  # 0: the parent is outside of our PID namespace
        os._exit(1)


def close_all_but(*kept: int) -> None:
    """Close descriptors of the host: one left open is a way out, because the runner follows links to /proc/self/fd."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that `listdir` used
                os.close(int(name))


def let_go(*kept: int) -> None:
    """Keep only `kept` and standard error (/dev/null): the end of a sandbox's streams is how others notice its own.

    It needs no file: once PID 1 of a sandbox has changed the root, its supervisor has the root of the sandbox too.
    """
    for fd in (0, 1):
        os.dup2(2, fd)
    edges = [2, *sorted(kept), MOST_DESCRIPTORS]
    for below, above in itertools.pairwise(edges):
        os.closerange(below + 1, above)


def wait_for_end(
    child: int,
    others: "Collection[int]",
    asked: "socket.socket | None" = None,
    answer: "Callable[[socket.socket], bool] | None" = None,
) -> None:
    """Wait for a child to end; kill it if one of the processes `others` ends first. Meanwhile `answer` what is `asked`.

    The end of the child's streams does not show the end of the host process: forks of that hold them open.
    """
    events = select.poll()
    if asked:
        events.register(asked, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):  # one is gone already
        ends = {os.pidfd_open(pid) for pid in (child, *others)}
        for end in ends:
            events.register(end, select.POLLIN)
        while ends.isdisjoint(fd for fd, _ in events.poll()):
            if asked and answer and not answer(asked):
                events.unregister(asked)
    os.kill(child, signal.SIGKILL)  # harmless if it ended: it keeps its pid until it is waited for


def drop_privileges(kept: "Collection[int]") -> None:
    """Drop all capabilities but `kept`, here and in all that this process starts, and close its memory to them."""
    if os.geteuid() == 0:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for capability in set(range(last + 1)) - set(kept):
            prctl(PR_CAPBSET_DROP, capability)
        mask = sum(1 << capability for capability in kept)
        low, high = mask & 0xFFFFFFFF, mask >> 32
        header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
        check(libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)


CLONE_NEWUSER = 0x10000000
MAPS = ("uid_map", "gid_map")


def enter_user_namespace(flags: int, ranges: "Ranges", everyone: bool = True) -> None:
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
