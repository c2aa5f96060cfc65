"""The program inside every sandbox: runs commands, reads and writes files, holds terminals.

It speaks the frames of `protocol` over its standard input and output, is a single thread around one poll loop, and
needs nothing but Python >= 3.6. At the end of its standard input it kills whatever runs, and ends.
"""

import os
import resource
import sys
import time

from ..protocol import (
    END_PROCESSES,
    GET_TAR,
    HELLO,
    MANIFEST,
    MARK,
    PUT_TAR,
    READ_FILE,
    RESTORE,
    SNAPSHOT,
    WRITE_FILE,
)
from .commands import Commands
from .files import get_tar, list_files, put_tar, read_file, write_file
from .forwards import Forwards
from .loop import Loop
from .processes import Memory, Reaper
from .snapshots import Snapshots
from .terminals import Terminals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol import EndReply, EndRequest, HelloReply, HelloRequest
    from .loop import Answer


class Runner:
    """All operations on one loop."""

    def __init__(self, source: int, sink: int, forkpty: "Callable[[], tuple[int, int]]", unprotected: str) -> None:
        self.unprotected = unprotected
        self.loop = Loop(source, sink)
        self.reaper = Reaper(self.loop)
        self.memory = Memory(self.loop)
        Commands(self.loop, self.reaper)
        Terminals(self.loop, self.reaper, forkpty)
        Forwards(self.loop)
        self.loop.offer(HELLO, self.hello)
        self.loop.offer(END_PROCESSES, self.end_processes)
        self.loop.offer(READ_FILE, read_file)
        self.loop.offer(WRITE_FILE, write_file)
        self.loop.offer(PUT_TAR, put_tar)
        self.loop.offer(GET_TAR, get_tar)
        self.loop.offer(MANIFEST, list_files)
        snapshots = Snapshots()
        self.loop.offer(MARK, snapshots.mark)
        self.loop.offer(SNAPSHOT, snapshots.snapshot)
        self.loop.offer(RESTORE, snapshots.restore)

    def hello(self, request: "HelloRequest", _: bytes) -> "Answer[HelloReply]":
        self.memory.limit = request["memory"]
        for name, value in request["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        self.loop.expires = time.monotonic() + request["ttl"]
        environment = b"\0".join(b"%s=%s" % pair for pair in os.environb.items())
        return {"python": "%d.%d.%d" % sys.version_info[:3], "unprotected": self.unprotected}, environment

    def end_processes(self, request: "EndRequest", _: bytes) -> "Answer[EndReply]":
        return {"left": not self.reaper.kill_strays(leaders=request["commands"])}, b""


def take_charge() -> None:
    """Become the parent of what commands daemonise, as PID 1 is anyway, and close our memory and files to them."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: without CAP_SYS_PTRACE nobody opens /proc/<us>/fd or /mem
    except (ImportError, OSError, AttributeError):
        pass  # not Linux: process groups must do


def why_refused(protect: "Callable[[], None]") -> str:
    """Call `protect`; return why it failed, or an empty text."""
    try:
        protect()
    except (ImportError, OSError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def serve_standard_streams(
    forkpty: "Callable[[], tuple[int, int]]" = os.forkpty, protect: "Callable[[], None] | None" = None
) -> None:
    """Move the stream to descriptors that no command inherits, and serve it to its end.

    `protect` keeps commands from limiting this process; if it fails, the host is told why.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    take_charge()
    runner = Runner(source, sink, forkpty, why_refused(protect) if protect else "")
    try:
        runner.loop.run()
    finally:
        runner.reaper.kill_strays(leaders=True)
