"""The terminal as a channel of requests and replies.

Requests and replies are lines of JSON. Every request brings a fresh random nonce, and the reply stands between two
marks made of it, so no output of the program can be taken for a reply. The terminal is moved to a descriptor of its
own; the program finds an empty standard input.
"""

import contextlib
import fcntl
import json
import os
import sys
import termios
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .prompt import Told


class DebuggerChannel:
    """The connection to the host, and the state that all debuggers of this process share.

    Attributes:
        lines: Lines of the current request that are not run yet.
        dropped: Lines that an interrupt took away.
        told: Breakpoints and commands to come, as the host knows them.
        waiting: Whether no request is being worked on, so that an interrupt comes too late or too early.
        interrupted: Whether the current request was interrupted already; once is enough.
        prompting: Thread that runs the commands of the current request, None while the program runs.
    """

    def __init__(self, nonce: str) -> None:
        self.fd = own_descriptor()
        self.screen = os.fdopen(own_descriptor(), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self.nonce = nonce
        self.unread = b""
        self.lines: list[str] = []
        self.dropped: list[str] = []
        self.told: Told | None = None
        self.waiting = True
        self.interrupted = False
        self.prompting: int | None = None
        self.lock = threading.RLock()

    def request(self) -> "dict[str, Any]":
        """Return the next request. The end of the terminal ends the process."""
        while b"\n" not in self.unread:
            data = os.read(self.fd, 1 << 16)
            if not data:
                os._exit(1)
            self.unread += data
        line, self.unread = self.unread.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line.decode("ascii"))
        self.nonce, self.lines = request["nonce"], request["lines"]
        self.interrupted = self.waiting = False
        self.dropped = []
        return request

    def reply(self, **block: object) -> None:
        """Write one reply in one piece, after everything that was printed before."""
        self.waiting = True  # an interrupt now would tear the reply
        flush()
        self.screen.flush()
        self.set_raw()
        data = "<{0}:{1}:{0}>".format(self.nonce, json.dumps(block)).encode("ascii")
        while data:
            data = data[os.write(self.fd, data) :]
        self.waiting = block.get("state") != "running"

    def set_raw(self) -> None:
        """Set the terminal to no echo, no line length limit, no translation, whatever the program did to it."""
        mode = termios.tcgetattr(self.fd)
        mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ECHONL | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)


def own_descriptor() -> int:
    """Return the terminal under a number that programs, and the children that they start, leave alone."""
    return fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 100)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have replaced it
            stream.flush()


class Typed:
    """The debugger's standard input: requests. A statement typed at the prompt finds it empty."""

    encoding = "utf-8"

    def __init__(self, next_line: "Callable[[], str]") -> None:
        self.readline = next_line

    def isatty(self) -> bool:
        return False
