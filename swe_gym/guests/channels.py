"""Both ends of channels between two sandboxes: a program that tries to send a bit past their walls.

Arguments: an order, channels with commas between them (of devices: "devices:CHANNEL"), a number and a token. `send`
starts a process for each channel, which signals until it is killed, and prints their ids, with commas, once they do.
`clear` kills them and removes what they leave. `receive` prints, as JSON, numbers by channel and name that a signal
would change. Each number is another signal on the same channel; the token is a name that both ends know.
"""

import ctypes
import fcntl
import json
import os
import platform
import pty
import select
import signal
import socket
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator

    Numbers = dict[str, int]
    Send = Callable[[int, str], "Callable[[], None] | None"]
    Receive = Callable[[int, str], Numbers]

MOUNT = "/opt/channel"
"""Where both sandboxes have a folder of this machine, if the backend can mount one."""
DEVICES, DEVICE_NAMES = "devices", ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
FILES_TO_TRY, ENTRIES_TO_TRY = 3, 400
WATCH_SECONDS = 0.2
F_OFD_GETLK, F_OFD_SETLK, F_SETLEASE = 36, 37, 1024
KEY_OF_USER, KEYCTL_INVALIDATE, KEYCTL_SEARCH = -4, 21, 10
IPC_CREAT, IPC_RMID = 0o1000, 0
PORT = 41041
KEY_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219), "riscv64": (217, 219)}
IO_SETUP = {"x86_64": 206, "aarch64": 0, "riscv64": 0}
SOCKETS, TERMINALS, EVENTS = 2000, 20, 20000
COUNTERS = """
/proc/sys/fs/file-nr /proc/sys/fs/inode-nr /proc/sys/fs/inode-state /proc/sys/fs/dentry-state /proc/sys/fs/aio-nr
/proc/sys/kernel/pty/nr /proc/key-users /proc/locks
""".split()

KERNEL_FILES = """
/proc/cmdline /proc/cpuinfo /proc/devices /proc/diskstats /proc/filesystems /proc/meminfo /proc/swaps /proc/vmstat
""".split()

libc = ctypes.CDLL(None, use_errno=True)
held: "list[object]" = []
"""What a sender keeps."""
scope: "list[str]" = []
"""`DEVICES`, or nothing for files."""


# --- places that two sandboxes may share ------------------------------------------------------------------


def places() -> "list[str]":
    """Return the devices, or files and folders: some of each mount, and what every program uses."""
    if scope == [DEVICES]:
        return ["/dev/" + name for name in DEVICE_NAMES if is_usable("/dev/" + name)]
    found = {"/", "/bin/sh", "/usr/bin/env", "/etc/passwd", "/proc/version", os.path.realpath(sys.executable)}
    found |= {os.__file__, os.path.dirname(os.__file__)}
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            point = line.split()[4].encode().decode("unicode_escape")
            found |= {point, *some_files(point)}
    return sorted(path for path in found if is_usable(path) and path.split("/")[-1] not in DEVICE_NAMES)


def some_files(folder: str) -> "Iterator[str]":
    """Yield a few files of a folder."""
    left, files = ENTRIES_TO_TRY, FILES_TO_TRY
    for place, folders, names in os.walk(folder):
        if place == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        for name in sorted(names)[:files]:
            yield os.path.join(place, name)
        files -= len(names[:files])
        left -= len(names) + len(folders)
        if left < 0 or files <= 0:
            return


def is_usable(path: str) -> bool:
    """Return whether to open a path: not a link, not a pipe, not a terminal that would block."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)


def opened() -> "Iterator[tuple[str, int]]":
    """Yield each place with a descriptor of it, which stays open."""
    for path in places():
        try:
            yield path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue


def numbers(probe: "Callable[[int], int]") -> "Numbers":
    """Return what a probe says of each place."""
    found = {}
    for path, descriptor in opened():
        found[path] = probe(descriptor)
        os.close(descriptor)
    return found


def failed(call: "Callable[[], object]") -> int:
    """Return the errno of a call, or 0."""
    try:
        call()
    except OSError as error:
        return error.errno or -1
    return 0


def attempt(call: "Callable[[], object]") -> None:
    """Call, whatever comes of it."""
    failed(call)


# --- locks ------------------------------------------------------------------------------------------------


def send_flock(number: int, token: str) -> None:
    held.extend(lock(descriptor) for _, descriptor in opened())


def receive_flock(number: int, token: str) -> "Numbers":
    return numbers(lock)


def lock(descriptor: int) -> int:
    return failed(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))


def lock_of(kind: int) -> bytes:
    """Return a struct flock of a whole file."""
    return struct.pack("hhqqi4x", kind, 0, 0, 0, 0)


def send_lock(command: int) -> "Send":
    def send(number: int, token: str) -> None:
        held.extend(take(descriptor) for _, descriptor in opened())

    def take(descriptor: int) -> int:
        return failed(lambda: fcntl.fcntl(descriptor, command, lock_of(fcntl.F_RDLCK)))

    return send


def receive_lock(command: int) -> "Receive":
    def kind_of(descriptor: int) -> int:
        try:
            found = fcntl.fcntl(descriptor, command, lock_of(fcntl.F_WRLCK))
        except OSError:
            return -1
        return int(struct.unpack("hhqqi4x", found)[0])

    return lambda number, token: numbers(kind_of)


def send_open(number: int, token: str) -> None:
    list(opened())


def receive_lease(number: int, token: str) -> "Numbers":
    return numbers(lambda descriptor: failed(lambda: fcntl.fcntl(descriptor, F_SETLEASE, fcntl.F_WRLCK)))


# --- what is seen of files --------------------------------------------------------------------------------


def send_reads(number: int, token: str) -> "Callable[[], None]":
    """Return what opens and reads all places, again and again."""
    return read_all


def read_all() -> None:
    numbers(read)


def read(descriptor: int) -> int:
    return failed(lambda: os.read(descriptor, 1))


def receive_events(number: int, token: str) -> "Numbers":
    """Watch all places for a while."""
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    names = {libc.inotify_add_watch(watcher, os.fsencode(path), 0xFFF): path for path in places()}
    names.pop(-1, None)  # those that it may not watch
    found = {path: 0 for path in names.values()}
    select.select([], [], [], WATCH_SECONDS)
    try:
        data = os.read(watcher, 1 << 20)
    except OSError:
        data = b""
    while data:
        watch, length = struct.unpack("i8xI", data[:16])
        found[names[watch]] = 1
        data = data[16 + length :]
    return found


def mounted(number: int) -> str:
    return "%s/%d" % (MOUNT, number)


def send_access(number: int, token: str) -> None:
    attempt(lambda: open(mounted(number), "rb").read())
    attempt(lambda: os.listdir(mounted(number) + ".d"))


def receive_access(number: int, token: str) -> "Numbers":
    paths = [mounted(number), mounted(number) + ".d"]
    return {"access to " + path[-2:]: os.stat(path).st_atime_ns > 10**18 for path in paths if os.path.exists(path)}


def change_mode(path: str, writable: int) -> None:
    attempt(lambda: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~0o020 | writable))


def send_mode(number: int, token: str) -> None:
    change_mode(KERNEL_FILES[number], 0o020)


def clear_mode(number: int, token: str) -> None:
    change_mode(KERNEL_FILES[number], 0)


def receive_mode(number: int, token: str) -> "Numbers":
    """Return a bit of a file that was never looked at: a sandbox keeps the mode that it saw first."""
    return {"mode": os.stat(KERNEL_FILES[number]).st_mode & 0o020}


# --- names ------------------------------------------------------------------------------------------------


def bind(family: int, address: object) -> int:
    """Bind a socket and keep it; return the errno, or 0."""

    def call() -> None:
        held.append(socket.socket(family, socket.SOCK_STREAM))
        held[-1].bind(address)  # type: ignore[attr-defined]  # it is a socket

    return failed(call)


def abstract(token: str) -> int:
    return bind(socket.AF_UNIX, "\0" + token)


def vsock(number: int) -> int:
    return bind(getattr(socket, "AF_VSOCK", 40), (0xFFFFFFFF, PORT + number))


def send_abstract(number: int, token: str) -> None:
    abstract(token)


def receive_abstract(number: int, token: str) -> "Numbers":
    return {"abstract socket": abstract(token)}


def send_vsock(number: int, token: str) -> None:
    vsock(number)


def receive_vsock(number: int, token: str) -> "Numbers":
    return {"vsock": vsock(number)}


def system_v(flags: int, token: str) -> "dict[str, int]":
    """Return ids of shared memory, semaphores and messages, by the call that removes them."""
    key = int(token, 16) & 0x7FFFFFFF
    return {
        "shmctl": libc.shmget(key, 4096 if flags else 0, flags),
        "semctl": libc.semget(key, 1 if flags else 0, flags),
        "msgctl": libc.msgget(key, flags),
    }


def send_system_v(number: int, token: str) -> None:
    system_v(IPC_CREAT | 0o666, token)


def receive_system_v(number: int, token: str) -> "Numbers":
    return {name: found >= 0 for name, found in system_v(0, token).items()}


def clear_system_v(number: int, token: str) -> None:
    found = system_v(0, token)
    libc.shmctl(found["shmctl"], IPC_RMID, None)
    libc.semctl(found["semctl"], 0, IPC_RMID)
    libc.msgctl(found["msgctl"], IPC_RMID, None)


def queue(flags: int, token: str) -> int:
    library = libc if hasattr(libc, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
    return int(library.mq_open(("/" + token).encode(), flags, 0o666, None))


def send_queue(number: int, token: str) -> None:
    queue(os.O_CREAT | os.O_RDWR, token)


def receive_queue(number: int, token: str) -> "Numbers":
    return {"message queue": queue(os.O_RDONLY, token) >= 0}


def clear_queue(number: int, token: str) -> None:
    library = libc if hasattr(libc, "mq_unlink") else ctypes.CDLL("librt.so.1")
    library.mq_unlink(("/" + token).encode())


def key_call(which: int, *arguments: object) -> int:
    """Do add_key (0) or keyctl (1)."""
    return int(libc.syscall(KEY_CALLS[platform.machine()][which], *arguments))


def send_key(number: int, token: str) -> None:
    key_call(0, b"user", token.encode(), b"x", 1, KEY_OF_USER)


def find_key(token: str) -> int:
    return key_call(1, KEYCTL_SEARCH, KEY_OF_USER, b"user", token.encode(), 0)


def receive_key(number: int, token: str) -> "Numbers":
    return {"key": find_key(token) > 0}


def clear_key(number: int, token: str) -> None:
    key_call(1, KEYCTL_INVALIDATE, find_key(token))


# --- counters ---------------------------------------------------------------------------------------------


def send_counts(number: int, token: str) -> None:
    """Take many of what the kernel counts."""
    attempt(lambda: held.extend(socket.socket() for _ in range(SOCKETS)))
    attempt(lambda: held.extend(pty.openpty() for _ in range(TERMINALS)))
    libc.syscall(IO_SETUP[platform.machine()], EVENTS, ctypes.byref(ctypes.c_ulong(0)))
    lock = os.open(".", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)


def receive_counts(number: int, token: str) -> "Numbers":
    return dict(map(count, COUNTERS))


def count(path: str) -> "tuple[str, int]":
    """Return the first number of a file, or its number of lines if it is a table."""
    try:
        with open(path) as file:
            words = [line.split() for line in file]
    except OSError:
        return path, -1
    return path, int(words[0][0]) if len(words) == 1 and words[0][0].isdigit() else len(words)


def nothing(number: int, token: str) -> None:
    """Leave nothing."""


CHANNELS = {
    "flock": (send_flock, receive_flock, nothing),
    "posix": (send_lock(fcntl.F_SETLK), receive_lock(fcntl.F_GETLK), nothing),
    "ofd": (send_lock(F_OFD_SETLK), receive_lock(F_OFD_GETLK), nothing),
    "lease": (send_open, receive_lease, nothing),
    "events": (send_reads, receive_events, nothing),
    "access": (send_access, receive_access, nothing),
    "modes": (send_mode, receive_mode, clear_mode),
    "abstract": (send_abstract, receive_abstract, nothing),
    "vsock": (send_vsock, receive_vsock, nothing),
    "system_v": (send_system_v, receive_system_v, clear_system_v),
    "queue": (send_queue, receive_queue, clear_queue),
    "key": (send_key, receive_key, clear_key),
    "counts": (send_counts, receive_counts, nothing),
}  # type: dict[str, tuple[Send, Receive, Send]]


def choose(channel: str) -> "tuple[Send, Receive, Send]":
    """Return what sends, receives and clears; from now on `places` are those of this channel."""
    *scope[:], name = channel.split(":")
    return CHANNELS[name]


def send(channel: str, number: int, token: str) -> int:
    """Start a process that signals; return its id once it does."""
    start = choose(channel)[0]
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            further = start(number, token)
            os.write(started, b"1")
            while True:
                (further or signal.pause)()
        finally:
            os._exit(1)
    os.close(started)
    if not os.read(ready, 1):
        sys.exit("nothing was sent")
    return child


def clear(channel: str, number: int, token: str, sender: int) -> None:
    """End a sender and what it leaves."""
    os.kill(sender, signal.SIGKILL)
    while not failed(lambda: os.kill(sender, 0)):
        select.select([], [], [], 0.001)
    choose(channel)[2](number, token)


def main(order: str, names: str, number: str, token: str, senders: str = "") -> None:
    channels = names.split(",")
    if order == "send":
        sys.stdout.write(",".join(str(send(channel, int(number), token)) for channel in channels))
    elif order == "receive":
        sys.stdout.write(json.dumps({channel: choose(channel)[1](int(number), token) for channel in channels}))
    else:
        for channel, sender in zip(channels, senders.split(",")):  # noqa: B905  Python 3.6
            clear(channel, int(number), token, int(sender))


if __name__ == "__main__":
    main(*sys.argv[1:])
