"""The tiers without a root of their own: a supervisor, a runner below it, and Landlock rules for "landlock".

The supervisor is a subreaper: whatever the sandbox leaves running becomes its child, so it can find and kill it all.
It also creates and removes the sandbox's folder.
"""

import errno
import functools
import os
import shutil
import signal
import socket
import struct
from typing import Callable, Iterator, NoReturn

from ..runner.processes import below_us, children, processes, send_signal
from ..seccomp import restrict_calls
from . import linux
from .layers import copy_tree
from .linux import PR_SET_CHILD_SUBREAPER, check, die_with_parent, drop_privileges, let_go, libc, prctl, wait_for_end

SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
SCOPES = 0b11  # abstract unix sockets, signals
READABLE = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /proc /sys/devices/system/cpu".split()
READABLE_ETC = (
    "passwd group hosts hostname ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf mime.types services protocols "
    "bash.bashrc alternatives ssl/certs ca-certificates terminfo fonts magic resolv.conf"
).split()
DEVICES = "null zero full random urandom tty fd".split()


def enter(config: linux.Config) -> "tuple[Callable[[], tuple[int, int]], tuple[int, ...]]":
    """Become the runner of a new sandbox.

    Returns, in the new process only, its `forkpty` and the descriptors that it needs.
    """
    make_root(config)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        supervise(child, config, ours)
    die_with_parent(parent)
    if config["tier"] == "landlock":
        confine(config)
    return functools.partial(fork_on_terminal, theirs), (theirs.fileno(),)


def make_root(config: linux.Config) -> None:
    """Create the folder that stands for the root. The supervisor creates and removes it, so none is ever left."""
    os.mkdir(config["root"], 0o700)
    try:
        for name in ("tmp", "root"):
            os.mkdir(f"{config['root']}/{name}")
        if config["workspace"]:
            copy_tree(config["workspace"], config["workdir"])
        os.makedirs(config["workdir"], exist_ok=True)
    except BaseException:
        remove(config["root"])
        raise


def fork_on_terminal(supervisor: socket.socket) -> "tuple[int, int]":
    """Do `os.forkpty` on a terminal that the supervisor opens: a sandbox that may open one may open all of the user."""
    supervisor.send(b"?")
    _, ends, _, _ = socket.recv_fds(supervisor, 1, 2)
    if not ends:
        raise OSError(errno.ENOSPC, "no terminal is left")
    terminal, inside = ends
    try:
        os.set_inheritable(terminal, False)
        pid = os.fork()
    except OSError:
        os.close(terminal)
        os.close(inside)
        raise
    if pid:
        os.close(inside)
    else:
        try:
            os.login_tty(inside)
        except OSError:
            os._exit(127)
    return pid, terminal


def supervise(child: int, config: linux.Config, asked: socket.socket) -> "NoReturn":
    """Open terminals for the runner until it ends, kill what it left, remove the sandbox's folder, end."""
    signal.signal(signal.SIGTERM, lambda *_: send_signal([child], signal.SIGKILL))
    let_go(asked.fileno())
    wait_for_end(child, [config["host"]], asked, open_terminal)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the runner's pid may be reused from now on
    for _ in range(1000):
        send_signal(below_us(processes()), signal.SIGKILL)
        send_signal(children(os.getpid()), signal.SIGKILL)  # a chain of forks ends before a look is over
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    remove(config["root"])
    os._exit(0)


def open_terminal(asked: socket.socket) -> bool:
    """Send the two ends of a new terminal, or nothing if none is left. Return False at the end of the requests."""
    if not asked.recv(1):
        return False
    try:
        ends: tuple[int, ...] = os.openpty()
    except OSError:
        ends = ()
    socket.send_fds(asked, [b"!"], ends)
    for end in ends:
        os.close(end)
    return True


def remove(root: str) -> None:
    """Remove a sandbox's folder, even if the sandbox took away the permission to."""
    shutil.rmtree(root, ignore_errors=True)
    if not os.path.exists(root):
        return
    os.chmod(root, 0o700)
    for folder, folders, _ in os.walk(root):  # what is left; a folder is unlocked before it is listed
        for name in folders:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), 0o700)
    shutil.rmtree(root, ignore_errors=True)


def confine(config: linux.Config) -> None:
    """Apply Landlock to this process and all that it starts."""
    version = landlock_version()
    handled = (1 << 13) - 1
    handled |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0) | (IOCTL_DEV if version >= 5 else 0)
    ruleset = make_ruleset(version, handled)
    files_only = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
    for path, rights in rules(config):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # this system has no such place
        rights &= handled if os.path.isdir(path) else handled & files_only
        landlock(SYS_ADD_RULE, ruleset, RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
        os.close(fd)
    drop_privileges(kept=())
    landlock(SYS_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    families = [socket.AF_NETLINK, *([socket.AF_INET, socket.AF_INET6] if config["network"] else [])]
    restrict_calls(families, ipc=False)


def landlock_version() -> int:
    """Return the kernel's version of Landlock, from 1. Raises OSError if it has none."""
    return landlock(SYS_CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)


def make_ruleset(version: int, files: int) -> int:
    """Return a descriptor of a ruleset that refuses these rights unless a rule grants them."""
    attributes = struct.pack("QQQ", files, 0, SCOPES)  # between them: TCP, which `restrict_calls` closes with the rest
    return landlock(SYS_CREATE_RULESET, attributes, 24 if version >= 6 else 8, 0)


def landlock(number: int, *arguments: object) -> int:
    return check(libc.syscall(number, *arguments), "landlock")


def rules(config: linux.Config) -> "Iterator[tuple[str, int]]":
    """Yield (path, rights) for all that the sandbox may reach."""
    everything = (1 << 16) - 1
    yield config["root"], everything & ~(MAKE_CHAR | MAKE_BLOCK)
    for path in (*READABLE, *config["read_only"]):
        yield path, READ
    for name in READABLE_ETC:
        yield "/etc/" + name, READ
    for name in DEVICES:
        yield "/dev/" + name, DEVICE | READ_DIR
