"""The host's side of `launcher`: starts it once per process, and asks it for sandboxes.

Forks of a small process start fast and share their memory. A trainer with gigabytes and threads is never forked.
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
from typing import Any

from ... import guests
from ...errors import SandboxStartError
from ..channel import SocketStream

_LOCKS: dict[int, threading.Lock] = {}
_SERVERS: dict[int, socket.socket] = {}
"""The launcher's socket, by our pid: a fork of this process must not use its parent's launcher, or its parent's lock,
which may be held for ever."""


class Supervisor:
    """A handle of the process that holds one sandbox."""

    def __init__(self, pid: int) -> None:
        self._pidfds: list[int] = []
        with contextlib.suppress(ProcessLookupError):
            self._pidfds.append(os.pidfd_open(pid))

    def end(self, *, patience: float = 1.0) -> None:
        """Wait `patience` seconds for the sandbox to end, then end it by signals. Takes at most 9 s.

        Any thread may call it; the first call does the work.
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


def layers_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lower layers of a sandbox's root, top first, if the kernel mounts them."""
    return tuple(config["layers"]) if config["tier"] == "namespace" and config["overlay"] == "kernel" else ()


def launch(config: Mapping[str, object], deadline: float) -> tuple[SocketStream, Supervisor]:
    """Fork a sandbox; return its runner's stream and its supervisor.

    Raises:
        SandboxStartError: The sandbox did not start by the deadline; nothing of it is left.
        OSError: This process or machine lacks a resource, such as file descriptors.
    """
    for _ in range(2):  # the launcher may have been killed before the first attempt
        started = _launch({**config, "host": os.getpid()}, deadline)
        if started:
            return started
    text = "the launcher of local sandboxes ended: it was killed, found no free process, or its Python does not run"
    raise SandboxStartError(text, reason="setup", retryable=True, detail=_python())


def _launch(config: Mapping[str, object], deadline: float) -> tuple[SocketStream, Supervisor] | None:
    """Try once; return None if the launcher ended before it forked."""
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
                pass  # it is gone, as the end of the report shows
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
    """Read a pipe until `end`, or to its end if `end` is empty."""
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
    """Return the launcher's socket; start a launcher if there is none."""
    with _LOCKS.setdefault(os.getpid(), threading.Lock()):
        if os.getpid() not in _SERVERS:
            _SERVERS[os.getpid()] = _start_launcher()
        return _SERVERS[os.getpid()]


def _forget(launcher: socket.socket) -> None:
    """Let the next call start another launcher, unless one has."""
    with _LOCKS[os.getpid()]:
        if _SERVERS.get(os.getpid()) is launcher:
            _SERVERS.pop(os.getpid()).close()


def _python() -> str:
    """Return the Python for the launcher: the base installation, since it needs no packages."""
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
    os.register_at_fork(after_in_child=ours.close)  # a fork must not keep the launcher alive
    return ours


def _spawn_launcher(stream: int) -> None:
    package = os.path.dirname(os.path.dirname(guests.__file__))  # after the standard library, which has a `types` too
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
            setsid=True,  # Ctrl-C in our terminal does not reach the sandboxes
            setsigmask=(),  # they inherit neither blocked nor ignored signals
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.close(null)
