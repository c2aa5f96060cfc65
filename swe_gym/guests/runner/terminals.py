"""Terminals: a process on a pseudo-terminal, reads that wait for a marker, writes that wait for room."""

import errno
import fcntl
import itertools
import os
import select
import shutil
import signal
import sys
import termios
import time

from ..protocol import PTY_CLOSE, PTY_OPEN, PTY_READ, PTY_SIGNAL, PTY_WRITE
from .loop import read_some
from .processes import Leader, Reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol import Nothing, OpenRequest, PtyReadRequest, PtyReply, PtyRequest, PtySignalRequest
    from .loop import Answer, Loop

PTY_KEEP = 1 << 20


class Terminal(Leader):
    """One process on a pseudo-terminal, and what it printed.

    Attributes:
        pending: Bytes to write once the terminal takes them.
        searched: Bytes of `buffer` in which the marker was looked for.
        read: The read that waits: its request, marker and deadline.
    """

    def __init__(self, terminals: "Terminals", request: "OpenRequest") -> None:
        Leader.__init__(self)
        self.terminals = terminals
        self.buffer = bytearray()
        self.pending = bytearray()
        self.searched = 0
        self.read: tuple[PtyReadRequest, bytes, float] | None = None
        self.pid, self.fd = terminals.fork(request)
        os.set_blocking(self.fd, False)

    def on_end(self) -> None:
        while len(self.buffer) <= 4 * PTY_KEEP:
            data = read_some(self.fd)
            if not data:
                break
            self.buffer += data
        self.terminals.answer_if_found(self)

    def exit_code(self) -> "int | None":
        """Return the exit code, minus a signal's number, or None while the process runs."""
        if self.status is None:
            return None
        return -os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)


class Terminals:
    """The open terminals, by number."""

    def __init__(self, loop: "Loop", reaper: Reaper, forkpty: "Callable[[], tuple[int, int]]") -> None:
        self.loop = loop
        self.reaper = reaper
        self.forkpty = forkpty
        self.open: dict[int, Terminal] = {}
        self.numbers = itertools.count(1)
        loop.timed.append(self)
        loop.offer(PTY_OPEN, self.pty_open)
        loop.offer(PTY_READ, self.pty_read)
        loop.offer(PTY_WRITE, self.pty_write)
        loop.offer(PTY_SIGNAL, self.pty_signal)
        loop.offer(PTY_CLOSE, self.pty_close)

    def deadlines(self) -> "list[float]":
        return [terminal.read[2] for terminal in self.open.values() if terminal.read]

    def check(self, now: float) -> None:
        for terminal in self.open.values():
            if terminal.read and now >= terminal.read[2]:
                self.answer_read(terminal, found=False)

    # --- operations -------------------------------------------------------------------------------------

    def pty_open(self, request: "OpenRequest", _: bytes) -> "Answer[PtyReply]":
        if not os.path.isdir(request["cwd"]) or not shutil.which(request["argv"][0], path=request["env"].get("PATH")):
            raise FileNotFoundError(errno.ENOENT, "no such directory or command")
        terminal = Terminal(self, request)
        number = next(self.numbers)
        self.open[number] = self.reaper.leaders[terminal.pid] = terminal
        self.watch(terminal)
        return {"pty": number}, b""

    def pty_read(self, request: "PtyReadRequest", marker: bytes) -> None:
        terminal = self.open[request["pty"]]
        if terminal.read:
            raise OSError(errno.EBUSY, "another call reads from this terminal")
        terminal.read = (request, marker, time.monotonic() + request["timeout"])
        terminal.searched = 0
        self.answer_if_found(terminal)

    def pty_write(self, request: "PtyRequest", data: bytes) -> "Answer[Nothing]":
        terminal = self.open[request["pty"]]
        terminal.pending += data
        self.feed(terminal)
        return {}, b""

    def pty_signal(self, request: "PtySignalRequest", _: bytes) -> "Answer[Nothing]":
        terminal = self.open[request["pty"]]
        if terminal.status is None:
            # No group is in the foreground once the leader let go of its terminal; group 0 would be our own.
            os.killpg(os.tcgetpgrp(terminal.fd) or terminal.pid, request["signal"])
        return {}, b""

    def pty_close(self, request: "PtyRequest", _: bytes) -> "Answer[Nothing]":
        terminal = self.open.pop(request["pty"], None)
        if terminal:
            if terminal.read:
                self.answer_read(terminal, found=False)
            self.loop.unwatch(terminal.fd)
            os.close(terminal.fd)
            self.reaper.forget(terminal)
            self.reaper.kill_tree(terminal)
        return {}, b""

    # --- starting ---------------------------------------------------------------------------------------

    def fork(self, request: "OpenRequest") -> "tuple[int, int]":
        """Start the process, and wait until its echo is off: what is typed sooner would be echoed."""
        ends = os.pipe()
        with open(ends[0], "rb", 0) as ready, open(ends[1], "wb", 0) as starting:
            pid, fd = self.reaper.spawn(self.forkpty)
            if pid == 0:
                become_terminal_process(request)
            starting.close()
            ready.read(1)  # returns at the end of the pipe: `exec` closes the process's copy
        return pid, fd

    # --- input and output -------------------------------------------------------------------------------

    def watch(self, terminal: Terminal, also: int = 0) -> None:
        self.loop.watch(terminal.fd, select.POLLIN | also, lambda _: self.on_ready(terminal))

    def on_ready(self, terminal: Terminal) -> None:
        self.on_output(terminal)
        if terminal.pending:
            self.feed(terminal)

    def on_output(self, terminal: Terminal) -> None:
        data = read_some(terminal.fd)
        if data is None:
            return
        if not data:
            self.loop.unwatch(terminal.fd)
            self.reaper.reap()  # the end of the output and the end of the process come in either order
        terminal.buffer += data
        if len(terminal.buffer) > 2 * PTY_KEEP:
            cut = len(terminal.buffer) - PTY_KEEP
            del terminal.buffer[:cut]
            terminal.searched = max(0, terminal.searched - cut)
        self.answer_if_found(terminal)

    def feed(self, terminal: Terminal) -> None:
        """Write what is pending; if the terminal takes no more, continue once it does."""
        try:
            while terminal.pending and terminal.status is None:
                sent = os.write(terminal.fd, terminal.pending[:1024])
                del terminal.pending[:sent]
        except BlockingIOError:
            self.watch(terminal, select.POLLOUT)
            return
        except OSError:
            terminal.pending.clear()
        if terminal.status is None:
            self.watch(terminal)

    def answer_if_found(self, terminal: Terminal) -> None:
        """Answer a waiting read if its marker came or the process ended."""
        if not terminal.read:
            return
        marker = terminal.read[1]
        position = terminal.buffer.find(marker, max(0, terminal.searched - len(marker) + 1))
        if position >= 0:
            self.answer_read(terminal, found=True, end=position + len(marker))
        elif terminal.status is not None:
            self.answer_read(terminal, found=False)
        else:
            terminal.searched = len(terminal.buffer)

    def answer_read(self, terminal: Terminal, found: bool, end: "int | None" = None) -> None:
        assert terminal.read
        request, terminal.read = terminal.read[0], None
        end = len(terminal.buffer) if end is None else end
        data = bytes(terminal.buffer[max(0, end - PTY_KEEP) : end])
        del terminal.buffer[:end]
        terminal.searched = 0
        self.loop.reply(request, {"found": found, "exit_code": terminal.exit_code()}, data)


def become_terminal_process(request: "OpenRequest") -> None:
    """Turn a process that was forked on a terminal into the requested one. Does not return."""
    try:
        attributes = termios.tcgetattr(0)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, attributes)
        size = b"".join(number.to_bytes(2, sys.byteorder) for number in (request["rows"], request["columns"], 0, 0))
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    finally:
        os._exit(127)
