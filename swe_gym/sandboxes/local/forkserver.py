"""The host's side of `launcher`: starts it once in a process, and asks it for sandboxes.

Forking from a small process of its own is what makes a sandbox start fast and share its memory with the others, and
never forks a trainer of many gigabytes and threads.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping

from ...errors import SandboxStartError
from ..channel import SocketStream

_LOCK = threading.Lock()
_SERVERS: dict[int, socket.socket] = {}
"""The launcher's socket, by our own pid: a forked copy of this process must not talk to its parent's launcher."""


class Supervisor:
    """The process that holds one sandbox, as seen from here."""

    def __init__(self, pid: int) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1

    def end(self, *, patience: float = 1.0) -> None:
        """Wait until nothing of the sandbox is left: `patience` seconds, then by signal. At most 9 s. Call it once."""
        if self._pidfd < 0:
            return
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        for order, seconds in ((None, patience), (signal.SIGTERM, 5.0), (signal.SIGKILL, 3.0)):
            if order is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, order)
            if poll.poll(seconds * 1000):
                break
        os.close(self._pidfd)


def launch(config: Mapping[str, object], deadline: float) -> tuple[SocketStream, Supervisor]:
    """Fork a sandbox; returns its runner's stream and its supervisor.

    Raises:
        SandboxStartError: It did not start, or not by the deadline; nothing of it is left.
    """
    ours, theirs = socket.socketpair()
    report, their_report = os.pipe()
    supervisor = None
    try:
        try:
            _send(json.dumps(config).encode(), [theirs.fileno(), their_report])
        finally:
            theirs.close()
            os.close(their_report)
        pid, _, _ = _read(report, b"\n", deadline).partition(b"\n")
        supervisor = Supervisor(int(pid or -1))
        problem = _read(report, b"", deadline).decode("utf-8", "replace").strip()
        if problem or not pid:
            raise SandboxStartError("the local sandbox did not start", reason="setup", detail=problem)
    except BaseException:
        ours.close()
        if supervisor:
            supervisor.end()
        raise
    finally:
        os.close(report)
    return SocketStream(ours), supervisor


def _read(fd: int, end: bytes, deadline: float) -> bytes:
    """What comes through a pipe until `end`, or until its end where `end` is empty."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    said = b""
    while not (end and said.endswith(end)):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise SandboxStartError("the local sandbox did not start in time", reason="timeout", retryable=True)
        data = os.read(fd, 1 if end else 1 << 16)
        if not data:
            break
        said += data
    return said


def _send(message: bytes, fds: list[int]) -> None:
    with _LOCK:
        for fresh in (False, True):  # a launcher that somebody killed is started anew, once
            server = _SERVERS.get(os.getpid()) if not fresh else None
            if server is None:
                server = _SERVERS[os.getpid()] = _start_launcher()
            try:
                socket.send_fds(server, [message], fds)
                return
            except (BrokenPipeError, ConnectionResetError):
                server.close()
        raise SandboxStartError("the launcher of local sandboxes ends as soon as it starts", reason="setup")


def _start_launcher() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30.0)
    atexit.register(ours.close)
    folder = os.path.dirname(__file__)
    code = f"import sys; sys.path[:0] = [{folder!r}, {os.path.dirname(folder)!r}]; import launcher; launcher.main()"
    python = getattr(sys, "_base_executable", None) or sys.executable  # a virtual environment has nothing it needs
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.posix_spawn(
            python,
            [python, "-I", "-S", "-c", code],
            {"LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
            ],
            setsid=True,  # Ctrl-C in our terminal is not for the sandboxes
        )
    finally:
        os.close(null)
        theirs.close()
    return ours
