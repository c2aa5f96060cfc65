"""Links to worker processes.

Each is a fresh interpreter, never a fork. It ends when its link is closed, and when the parent dies, however it dies.
"""

import contextlib
import functools
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection

from .link import END_TIMEOUT, START_TIMEOUT, Host, NodeLost, load_program

SEND_TIMEOUT = 30
"""Seconds in which a process must read a request. One that does not has stopped, and is killed."""

PARENT_EVERY = 1.0
"""Seconds between two looks whether the parent is alive: a fork of it may hold the connection open."""

NUMBER = 8
"""Bytes of the serial number before a request and its reply."""

CODE = (
    "import sys; sys.path[:] = {path!r}; from swe_gym.remote.process import main; main({socket}, {parent}, {program!r})"
)


class ProcessLauncher:
    """Starts programs in processes of this machine."""

    @property
    def places(self) -> int:
        """The number of cores."""
        return len(os.sched_getaffinity(0))

    def open(self, program: str) -> "ProcessLink":
        """Start a program."""
        return ProcessLink(program)


class ProcessLink:
    """A link to a process.

    Args:
        program: As in `Launcher.open`.
    """

    patience = START_TIMEOUT

    def __init__(self, program: str) -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT, 0))
        path = [entry or os.getcwd() for entry in sys.path]
        code = CODE.format(path=path, socket=theirs.fileno(), parent=os.getpid(), program=program)
        with theirs:
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.name = f"worker process {self._process.pid}"
        self.alive = True
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # held for as long as the process does not read
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, data: bytes, timeout: float | None) -> bytes:
        """Send a request and wait for the reply."""
        future: Future[bytes] = Future()
        with self._lock:
            if not self.alive:
                raise NodeLost(f"{self.name} has ended", reason="killed")
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            with self._sending:
                self._connection.send_bytes(number.to_bytes(NUMBER) + data)
        except OSError:  # it has ended, or does not read
            self._process.kill()
        try:
            return future.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.name} did not answer within {timeout:g} s") from None

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._end()

    def _end(self) -> int | None:
        """Wait for the end of the process, whose connection is closed, and return its status."""
        for _ in range(2):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(END_TIMEOUT)
            self._process.kill()
        return None

    def _read(self) -> None:
        """Hand replies to those who wait until the connection ends. Then the process is dead."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                reply = self._connection.recv_bytes()
                self._waiting.pop(int.from_bytes(reply[:NUMBER])).set_result(reply[NUMBER:])
        status = self._end()
        with self._lock:
            self.alive = False
        with self._sending:
            self._connection.close()
        self._socket.close()
        for future in self._waiting.values():
            future.set_exception(NodeLost(f"{self.name} ended with status {status}", reason="killed"))


def main(descriptor: int, parent: int, program: str) -> None:
    """Run a program until the parent's end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    connection, host, sending = Connection(descriptor), Host(load_program(program)), threading.Lock()
    host.end_when(lambda: os.getppid() != parent, PARENT_EVERY)

    def send(number: bytes, reply: bytes) -> None:
        with sending, contextlib.suppress(OSError):
            connection.send_bytes(number + reply)

    with contextlib.suppress(EOFError, OSError):
        while True:
            data = connection.recv_bytes()
            host.handle(data[NUMBER:], functools.partial(send, data[:NUMBER]))
    host.end()
