"""A sandbox of the E2B test server: a folder, a token, and ordinary processes of this machine."""

from __future__ import annotations

import base64
import contextlib
import os
import pwd
import queue
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

CHUNK = 32 * 1024
WAITING_EVENTS = 64
SWEEP_SECONDS = 2.0

Event = dict[str, Any]


class Machine:
    """A sandbox.

    Args:
        folder: Parent of the sandbox's folder.
        body: JSON of the creation request.
        expire: Called with the id at the end of the sandbox's lifetime.
    """

    def __init__(self, folder: Path, body: Mapping[str, Any], expire: Callable[[str], None]) -> None:
        self.id = "i" + secrets.token_hex(9)
        self.template = str(body["templateID"])
        self.metadata = dict(body.get("metadata") or {})
        self.token = secrets.token_hex(16)
        self.processes: dict[int, Process] = {}
        self.folder = folder.absolute() / self.id
        self.home = self.folder / "home"
        temporary = self.folder / "tmp"
        for path in (self.home, temporary):
            path.mkdir(parents=True)
        temporary.chmod(0o1777)
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": self.id,
            "E2B_TEMPLATE_ID": self.template,
            **(body.get("envVars") or {}),
        }
        self._expire = expire
        self._ends_at = 0.0
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._gone = False

    def renew(self, seconds: float) -> None:
        """Restart the lifetime."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
            if not self._gone:
                self._ends_at = time.time() + seconds
                self._timer = threading.Timer(seconds, self._expire, [self.id])
                self._timer.daemon = True
                self._timer.start()

    def start(self, config: Mapping[str, Any], user: str | None, stdin: bool) -> Process:
        """Start a process. It continues without listeners."""
        env = dict(self.env)
        identity: dict[str, Any] = {}
        if user and user != "root" and os.geteuid() == 0:
            entry = pwd.getpwnam(user)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            env["HOME"] = str(self.home / user)
            os.makedirs(env["HOME"], exist_ok=True)
            os.chown(env["HOME"], entry.pw_uid, entry.pw_gid)
        popen = subprocess.Popen(
            [config["cmd"], *config.get("args", [])],
            cwd=config.get("cwd") or env["HOME"],
            env={**env, "USER": user or "root", **(config.get("envs") or {})},
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            **identity,
        )
        with self._lock:
            self.processes[popen.pid] = process = Process(popen)
        return process

    def forget(self, process: Process) -> None:
        """Remove an ended process."""
        with self._lock:
            self.processes.pop(process.pid, None)

    def kill(self) -> None:
        """End all processes, cut all streams, remove the folder."""
        with self._lock:
            self._gone = True
            if self._timer:
                self._timer.cancel()
            processes = list(self.processes.values())
        for process in processes:
            process.cut()
        deadline = time.monotonic() + SWEEP_SECONDS
        while self._sweep() and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sweep(self) -> bool:
        """Kill processes of the sandbox, known by session or environment; return whether there were any."""
        sessions = set(self.processes)
        mark = os.fsencode(str(self.folder)) + b"/"
        found = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError):
                stat = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if stat[0] in b"ZX":
                    continue
                if int(stat[3]) in sessions or mark in Path("/proc", name, "environ").read_bytes():
                    os.kill(int(name), signal.SIGKILL)
                    found = True
        return found

    def describe(self) -> dict[str, Any]:
        """Return the control plane's description."""
        return {
            "sandboxID": self.id,
            "templateID": self.template,
            "clientID": "local",
            "alias": self.template,
            "metadata": self.metadata,
            "state": "running",
            "cpuCount": 1,
            "memoryMB": 512,
            "diskSizeMB": 512,
            "envdVersion": "0.6.13",
            "startedAt": "2020-01-01T00:00:00Z",
            "endAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._ends_at)),
        }


class Process:
    """A process of a sandbox. Its output goes to the listeners and is dropped without any."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._listeners: list[queue.Queue[Event | None]] = []
        self._end: Event | None = None
        self._cut = False

    def follow(self, seconds: float | None, ended: Callable[[Process], None]) -> None:
        """Forward the output in threads; kill the process after `seconds`; call `ended` at its end."""
        threading.Thread(target=self._follow, args=(seconds, ended), daemon=True).start()

    def _follow(self, seconds: float | None, ended: Callable[[Process], None]) -> None:
        """Wait until the process and both its pipes have ended, like the real daemon."""
        timer = threading.Timer(seconds or 0, self._popen.kill)
        timer.daemon = True
        if seconds is not None:
            timer.start()
        pipes = {"stdout": self._popen.stdout, "stderr": self._popen.stderr}
        readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pipes.items()]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        status = self._popen.wait()
        timer.cancel()
        if self._popen.stdin:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        end: Event = {"exited": status >= 0, "status": f"exit status {status}" if status >= 0 else "signal: killed"}
        if status:
            end["exitCode"] = max(status, -1)
        if status < 0:
            end["error"] = "signal: killed"
        with self._lock:
            self._end = {"end": end}
        self._tell(self._end)
        ended(self)

    def _read(self, name: str, pipe: Any) -> None:
        with pipe:
            while data := pipe.read(CHUNK):
                self._tell({"data": {name: base64.b64encode(data).decode()}})

    def _tell(self, event: Event | None) -> None:
        """Send an event to every listener; a slow one delays all, as with the real daemon."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            while listener in self._listeners:
                with contextlib.suppress(queue.Full):
                    listener.put(event, timeout=0.1)
                    break

    @contextlib.contextmanager
    def listen(self) -> Iterator[queue.Queue[Event | None]]:
        """Yield a queue of later events; None means that the connection is to be cut."""
        listener: queue.Queue[Event | None] = queue.Queue(WAITING_EVENTS)
        with self._lock:
            self._listeners.append(listener)
            if self._cut:
                listener.put(None)
            elif self._end:
                listener.put(self._end)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def write(self, data: bytes) -> None:
        """Write to standard input without a deadline."""
        if self._popen.stdin is None:
            raise OSError("stdin is not open")
        with self._writing:
            view = memoryview(data)
            while view:
                view = view[self._popen.stdin.write(view) :]

    def drop(self) -> None:
        """Cut the connections of the listeners."""
        self._tell(None)

    def cut(self) -> None:
        """Kill it and drop its listeners."""
        with self._lock:
            self._cut = True
        with contextlib.suppress(OSError):
            self._popen.kill()
        self.drop()
