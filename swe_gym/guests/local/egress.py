"""The network of a sandbox that may connect outwards: pasta, a network stack in user mode.

The sandbox has a network namespace of its own with one interface. pasta (https://passt.top) serves it, and makes each
connection of the sandbox once more, as a program of the host's user: that needs no root. It runs where no sandbox sees
it, and ends with the supervisor, also if that is killed.
"""

import contextlib
import errno
import os
import re
import select
import signal
import time

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SECONDS = 20.0
RESOLVER = "169.254.1.1"
"""Address of the host's resolver in a sandbox, if that is on the host's loopback, and so out of reach."""
OPTIONS = (
    "--quiet --foreground --config-net --no-map-gw --tcp-ports none --udp-ports none --tcp-ns none --udp-ns none "
    "--pid /proc/self/fd/2"
).split()
"""No port is forwarded, and the gateway's address is not the host's loopback. Its pid, after errors, means ready."""


@contextlib.contextmanager
def connected(program: str) -> "Iterator[tuple[int, ...]]":
    """Connect the network namespace that this process enters within the block. Without a `program`, do nothing.

    Yields the pid of pasta. It must come from outside of the namespace, so its process is forked before.
    """
    if not program:
        yield ()
        return
    entered, enter = os.pipe()
    errors, report = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            linux.die_with_parent(parent)
            linux.let_go(entered, report)
            if os.read(entered, 1):
                os.dup2(report, 2)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # pasta ignores it, and takes it amiss if it was ignored
                os.execv(program, [program, *OPTIONS, *choices(), str(parent)])
        finally:
            os._exit(127)
    for fd in (entered, report):
        os.close(fd)
    yield (child,)
    os.write(enter, b"1")
    wait_until_ready(errors, program)
    for fd in (enter, errors):
        os.close(fd)


def choices() -> "list[str]":
    """Return the options of pasta that depend on the machine."""
    as_root = [] if os.geteuid() else ["--runas", "0"]  # the user nobody may not enter the namespaces of root
    return as_root + (["--dns-forward", RESOLVER] if RESOLVER in resolvers() else [])


def wait_until_ready(errors: int, program: str) -> None:
    """Wait until pasta tells its pid. Raises OSError with what it said instead."""
    events = select.poll()
    events.register(errors, select.POLLIN)
    deadline = time.monotonic() + READY_SECONDS
    said = ""
    while not re.search(r"^\d+$", said, re.MULTILINE):
        more = os.read(errors, 1 << 16) if events.poll(max(0.0, deadline - time.monotonic()) * 1000) else b""
        if not more:
            reasons = [line for line in said.splitlines() if line and "syslog" not in line]
            raise OSError(errno.ENETUNREACH, f"{program}: {'; '.join(reasons) or 'it does not answer'}")
        said += more.decode("utf-8", "replace")


def resolvers() -> str:
    """Return the host's resolv.conf; if its first resolver is on the host's loopback, with `RESOLVER` in its place."""
    try:
        with open("/etc/resolv.conf") as file:
            text = file.read()
    except OSError:
        return ""
    first = re.search(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
    if first and first[1].startswith("127."):
        return text[: first.start(1)] + RESOLVER + text[first.end(1) :]
    return text
