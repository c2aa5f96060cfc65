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

from ... import guests
from ...errors import SandboxStartError
from ..channel import SocketStream

_LOCKS: dict[int, threading.Lock] = {}
_SERVERS: dict[int, socket.socket] = {}
"""The launcher's socket, by our own pid: a forked copy of this process must not talk to its parent's launcher,
and may find its parent's lock taken for ever."""


class Supervisor:
    """The process that holds one sandbox, as seen from here."""

    def __init__(self, pid: int) -> None:
        self._pidfds: list[int] = []
        with contextlib.suppress(ProcessLookupError):
            self._pidfds.append(os.pidfd_open(pid))

    def end(self, *, patience: float = 1.0) -> None:
        """Wait until nothing of the sandbox is left: `patience` seconds, then by signal. At most 9 s.

        Any thread may call it; the first one does it.
        """
        try:
            pidfd = self._pidfds.pop()
        except IndexError:
            return
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for order, seconds in ((None, patience), (signal.SIGTERM, 5.0), (signal.SIGKILL, 3.0)):
            if order is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, order)
            if poll.poll(seconds * 1000):
                break
        os.close(pidfd)


def launch(config: Mapping[str, object], deadline: float) -> tuple[SocketStream, Supervisor]:
    """Fork a sandbox; returns its runner's stream and its supervisor.

    Raises:
        SandboxStartError: It did not start, or not by the deadline; nothing of it is left.
        OSError: This process or machine is short of something.
    """
    for _ in range(2):  # the first time the launcher may turn out to have been killed
        started = _launch({**config, "host": os.getpid()}, deadline)
        if started:
            return started
    text = "the launcher of local sandboxes ended: killed, out of processes, or its Python does not run"
    raise SandboxStartError(text, reason="setup", retryable=True, detail=_python())


def _launch(config: Mapping[str, object], deadline: float) -> tuple[SocketStream, Supervisor] | None:
    """One attempt. None where the launcher ended before it forked."""
    launcher = _launcher()
    with contextlib.ExitStack() as always, contextlib.ExitStack() as on_failure:
        ours, theirs = socket.socketpair()
        on_failure.callback(ours.close)
        with theirs:
            report, their_report = os.pipe()
            always.callback(os.close, report)
            try:
                socket.send_fds(launcher, [json.dumps(config).encode()], [theirs.fileno(), their_report])
            except OSError:
                pass  # it is gone, as the end of the report will tell
            finally:
                os.close(their_report)
        pid, _, _ = _read(report, b"\n", deadline).partition(b"\n")
        if not pid:
            _forget(launcher)
            return None
        supervisor = Supervisor(int(pid))
        on_failure.callback(supervisor.end, patience=0.0)
        problem = _read(report, b"", deadline).decode("utf-8", "replace").strip()
        if problem:
            raise SandboxStartError("the local sandbox did not start", reason="setup", detail=problem)
        on_failure.pop_all()
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


def _launcher() -> socket.socket:
    """The launcher's socket; it is started where there is none."""
    with _LOCKS.setdefault(os.getpid(), threading.Lock()):
        if os.getpid() not in _SERVERS:
            _SERVERS[os.getpid()] = _start_launcher()
        return _SERVERS[os.getpid()]


def _forget(launcher: socket.socket) -> None:
    """Let the next call start another launcher, unless one did so already."""
    with _LOCKS[os.getpid()]:
        if _SERVERS.get(os.getpid()) is launcher:
            _SERVERS.pop(os.getpid()).close()


def _python() -> str:
    """The Python that runs the launcher: a virtual environment has nothing it needs."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _start_launcher() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            _spawn_launcher(theirs.fileno())
    except BaseException:
        ours.close()
        raise
    ours.settimeout(30.0)
    atexit.register(ours.close)
    os.register_at_fork(after_in_child=ours.close)  # a fork must not keep our launcher alive
    return ours


def _spawn_launcher(stream: int) -> None:
    package = os.path.dirname(os.path.dirname(guests.__file__))  # behind the standard library, which has a `types` too
    code = f"import sys; sys.path.append({package!r}); import guests.local.launcher; guests.local.launcher.main()"
    python = _python()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.posix_spawn(
            python,
            [python, "-I", "-S", "-c", code],
            {"LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stream, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
            ],
            setsid=True,  # Ctrl-C in our terminal is not for the sandboxes
            setsigmask=(),  # nor is what this thread blocks or this process ignores
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.close(null)
