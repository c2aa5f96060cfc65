"""A server on this machine that speaks E2B's protocol, control plane and sandboxes, with faults on demand.

    with E2BServer(tmp_path) as server:
        env = gymnasium.make("SWE/Toy-v0", backend="e2b", sandbox_options=server.sandbox_options())

For tests only: its sandboxes are folders, its processes ordinary processes of this machine, run as whoever runs the
server. **It isolates nothing.** It listens on the loopback interface and asks for the key and the tokens that the real
service asks for. Nothing but the standard library is needed; the client is E2B's own SDK.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import email
import fnmatch
import json
import os
import pwd
import queue
import secrets
import shutil
import signal
import struct
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ENVELOPE = struct.Struct(">BI")
LAST = 0x02
CHUNK = 32 * 1024
WAITING_EVENTS = 64
SWEEP_SECONDS = 2.0

Event = dict[str, Any]


@dataclasses.dataclass
class Fault:
    """Something that goes wrong with requests to a path.

    Attributes:
        path: Pattern (fnmatch) of the path, such as "/process.Process/Connect".
        method: "GET", "POST", "DELETE", or "*".
        times: How many requests it happens to; None is all from now on.
        skip: How many requests go well before.
        status: Answer with this HTTP status, and do nothing.
        headers: Of that answer, such as `{"Retry-After": "1"}`.
        message: Of that answer.
        hang: Take the request and never answer.
        delay: Do what is asked so many seconds later.
        lose_reply: Do what is asked and close the connection without an answer.
        cut_after: Close the connection after so many bytes of the answer's body.
    """

    path: str
    method: str = "*"
    times: int | None = 1
    skip: int = 0
    status: int | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    message: str = "a fault of the test server"
    hang: bool = False
    delay: float = 0.0
    lose_reply: bool = False
    cut_after: int | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that came.

    Attributes:
        method: As in "POST".
        path: Without the query.
        key: The API key that it carried.
        body: The JSON of it, or of its first message; None where it is something else.
    """

    method: str
    path: str
    key: str | None
    body: Any


class E2BServer:
    """The server. Start it with `with`.

    Args:
        folder: Where the sandboxes' folders lie.
        api_key: The only key that it takes.
        v2: Whether it knows `POST /v2/sandboxes`. AGS and older servers know `POST /sandboxes` only.
        templates: The templates that it knows; None is any.
        most: How many sandboxes may run; one more is answered with status 429.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        api_key: str = "e2b_0000000000000000000000000000000000000000",
        v2: bool = True,
        templates: set[str] | None = None,
        most: int = 1000,
    ) -> None:
        self.folder = Path(folder)
        self.api_key = api_key
        self.v2 = v2
        self.templates = templates
        self.most = most
        self.requests: list[Request] = []
        self.created = 0
        self.closing = threading.Event()
        self._machines: dict[str, _Machine] = {}
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._http = _HTTPServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="e2b-server", daemon=True)

    @property
    def url(self) -> str:
        """The address of both planes."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def running(self) -> list[str]:
        """The ids of the sandboxes that run."""
        with self._lock:
            return list(self._machines)

    def sandbox_options(self, **options: Any) -> dict[str, Any]:
        """`sandbox_options` for `gym.make`, or fields of `SandboxSpec`, that lead to this server.

        Its sandboxes have no file system of their own, so the workdir lies below their home folder; and they say that
        they isolate no more than a process does.

        Args:
            options: More options of the backend.
        """
        given: dict[str, Any] = {
            "api_key": self.api_key,
            "api_url": self.url,
            "sandbox_url": self.url,
            "domain": "e2b.invalid",
        }
        given |= {"isolation": "process", "workdir_in_home": True, "activate": ""}
        return {"options": {**given, **options}}

    def inject(self, path: str, **fault: Any) -> Fault:
        """Have something go wrong; see `Fault`. It is over after its `times`, or with `mend`."""
        made = Fault(path, **fault)
        with self._lock:
            self._faults.append(made)
        return made

    def mend(self) -> None:
        """End all faults; requests that hang stay as they are."""
        with self._lock:
            self._faults.clear()

    def expire(self, sandbox_id: str) -> None:
        """End a sandbox as if its time were over."""
        with self._lock:
            machine = self._machines.pop(sandbox_id, None)
        if machine:
            machine.kill()

    def paths(self) -> list[str]:
        """Method and path of each request that came, in order."""
        return [f"{request.method} {request.path}" for request in self.requests]

    def close(self) -> None:
        """End all sandboxes and the server."""
        self.closing.set()
        for sandbox_id in self.running:
            self.expire(sandbox_id)
        if self._thread.is_alive():
            self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what handlers use --------------------------------------------------------------------------------

    def fault_of(self, method: str, path: str) -> Fault | None:
        """The first fault that this request meets."""
        with self._lock:
            for fault in self._faults:
                if fault.method not in ("*", method) or not fnmatch.fnmatchcase(path, fault.path):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                return fault
        return None

    def create(self, body: Mapping[str, Any]) -> _Machine | None:
        """A new sandbox; None where there are enough."""
        machine = _Machine(self.folder, body, self.expire)
        with self._lock:
            if len(self._machines) >= self.most:
                return None
            self._machines[machine.id] = machine
            self.created += 1
        machine.renew(body.get("timeout") or 15)
        return machine

    def machine(self, sandbox_id: str) -> _Machine | None:
        """A sandbox that runs."""
        with self._lock:
            return self._machines.get(sandbox_id)

    def machines(self) -> list[_Machine]:
        """All that run."""
        with self._lock:
            return list(self._machines.values())


# --- sandboxes --------------------------------------------------------------------------------------------


class _Machine:
    """A sandbox: a folder, a token, and processes."""

    def __init__(self, folder: Path, body: Mapping[str, Any], expire: Callable[[str], None]) -> None:
        self.id = "i" + secrets.token_hex(9)
        self.template = str(body["templateID"])
        self.metadata = dict(body.get("metadata") or {})
        self.body = dict(body)
        self.token = secrets.token_hex(16)
        self.folder = folder.absolute() / self.id
        self.home = self.folder / "home"
        self.temporary = self.folder / "tmp"
        for path in (self.home, self.temporary):
            path.mkdir(parents=True)
        self.temporary.chmod(0o1777)
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": self.id,
            "E2B_TEMPLATE_ID": self.template,
            **(body.get("envVars") or {}),
        }
        self.processes: dict[int, _Process] = {}
        self.ends_at = 0.0
        self._expire = expire
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.gone = False

    def renew(self, seconds: float) -> None:
        """Live for so long from now."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
            if not self.gone:
                self.ends_at = time.time() + seconds
                self._timer = threading.Timer(seconds, self._expire, [self.id])
                self._timer.daemon = True
                self._timer.start()

    def add(self, process: _Process) -> None:
        with self._lock:
            self.processes[process.pid] = process

    def kill(self) -> None:
        """End all processes, cut all streams, remove the folder."""
        with self._lock:
            self.gone = True
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
        """Kill what was started from here, as far as its session or its environment tells; whether there was any."""
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
        """As the control plane tells of it."""
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
            "endAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.ends_at)),
        }


class _Process:
    """A process of a sandbox. What it prints goes to whoever listens, and is dropped where nobody does."""

    def __init__(self, config: Mapping[str, Any], machine: _Machine, user: str | None, stdin: bool) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._listeners: list[queue.Queue[Event | None]] = []
        self._end: Event | None = None
        self._cut = False
        identity: dict[str, Any] = {}
        env = dict(machine.env)
        if user and user != "root" and os.geteuid() == 0:
            entry = pwd.getpwnam(user)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            env["HOME"] = str(machine.home / user)
            os.makedirs(env["HOME"], exist_ok=True)
            os.chown(env["HOME"], entry.pw_uid, entry.pw_gid)
        self._popen = subprocess.Popen(
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
        self.pid = self._popen.pid
        self._writing = threading.Lock()

    def run(self) -> None:
        """Pass on what it prints; tell of its end when it and both pipes have ended, as the real daemon does."""
        readers = [
            threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            for name, pipe in (("stdout", self._popen.stdout), ("stderr", self._popen.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        status = self._popen.wait()
        if self._popen.stdin:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        end: Event = {"exited": status >= 0, "status": f"exit status {status}" if status >= 0 else "signal: killed"}
        if status:
            end["exitCode"] = status if status > 0 else -1
        if status < 0:
            end["error"] = "signal: killed"
        with self._lock:
            self._end = {"end": end}
        self._tell({"end": end})

    def _read(self, name: str, pipe: Any) -> None:
        with pipe:
            while data := pipe.read(CHUNK):
                self._tell({"data": {name: base64.b64encode(data).decode()}})

    def _tell(self, event: Event | None) -> None:
        """To every listener; one that is slow holds up all, as with the real daemon."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            while listener in self._listeners:
                with contextlib.suppress(queue.Full):
                    listener.put(event, timeout=0.1)
                    break

    @contextlib.contextmanager
    def listen(self) -> Iterator[queue.Queue[Event | None]]:
        """Events from now on; None says that the connection is to be cut."""
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
        """To its standard input, however long that takes."""
        if self._popen.stdin is None:
            raise OSError("stdin is not open")
        with self._writing:
            view = memoryview(data)
            while view:
                view = view[self._popen.stdin.write(view) :]

    def close_stdin(self) -> None:
        if self._popen.stdin:
            self._popen.stdin.close()

    def signal(self, number: int) -> None:
        """To the process itself, not to what it started."""
        self._popen.send_signal(number)

    def cut(self) -> None:
        """Kill it and drop its listeners."""
        with self._lock:
            self._cut = True
        with contextlib.suppress(OSError):
            self._popen.kill()
        self._tell(None)


# --- HTTP -------------------------------------------------------------------------------------------------


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: E2BServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error here."""


class _Answer(Exception):
    """Ends a request with a status and a JSON body."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers or {}


def _refuse(status: int, message: str) -> _Answer:
    return _Answer(status, {"code": status, "message": message})


def _rpc_error(status: int, code: str, message: str) -> _Answer:
    return _Answer(status, {"code": code, "message": message})


class _Drop(Exception):
    """Ends a request by closing the connection."""


class _Handler(BaseHTTPRequestHandler):
    """One connection: requests of both planes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HTTPServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self._budget: int | None = None
        try:
            self._meet(self._route)
        except _Answer as answer:
            self._reply(answer.status, answer.body, answer.headers)
        except _Drop:
            self._drop()

    def _meet(self, route: Callable[[str, bytes], None]) -> None:
        """Read the request, note it, let a fault happen, then do what is asked."""
        address = urllib.parse.urlsplit(self.path)
        self._query = dict(urllib.parse.parse_qsl(address.query))
        body = self._body()
        owner = self.server.owner
        self._asked = self._json(body)
        owner.requests.append(Request(self.command, address.path, self.headers.get("X-API-Key"), self._asked))
        fault = owner.fault_of(self.command, address.path)
        if fault is None:
            return route(address.path, body)
        if fault.status:
            raise _Answer(fault.status, {"code": fault.status, "message": fault.message}, fault.headers)
        if fault.hang:
            owner.closing.wait()
            raise _Drop
        owner.closing.wait(fault.delay)
        self._budget = fault.cut_after
        try:
            return route(address.path, body)
        except _Answer:
            if fault.lose_reply:
                raise _Drop from None
            raise

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _json(self, body: bytes) -> Any:
        kind = self.headers.get("Content-Type") or ""
        with contextlib.suppress(ValueError):
            if "connect+json" in kind:
                return json.loads(body[ENVELOPE.size :])
            if "json" in kind:
                return json.loads(body)
        return None

    def _reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if not isinstance(body, bytes) else "text/plain")
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Part of the body; as much as a fault lets through."""
        if self._budget is not None:
            cut, self._budget = len(data) > self._budget, self._budget - len(data)
            if cut:
                self.wfile.write(data[: max(0, self._budget + len(data))])
                raise _Drop
        self.wfile.write(data)
        self.wfile.flush()

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def _route(self, path: str, body: bytes) -> None:
        if path == "/health":
            self._machine()
            raise _Answer(204, None)
        if path == "/files":
            self._machine(token=True)
            return self._files(body)
        if path.startswith("/process.Process/"):
            return self._process(path.rpartition("/")[2])
        return self._control(path)

    # --- the control plane --------------------------------------------------------------------------------

    def _control(self, path: str) -> None:
        owner = self.server.owner
        if self.headers.get("X-API-Key") != owner.api_key:
            raise _refuse(401, "invalid API key")
        version2 = path.startswith("/v2/")
        parts = path.removeprefix("/v2").strip("/").split("/")
        if parts == ["sandboxes"] and self.command == "POST" and (owner.v2 or not version2):
            self._create()
        if parts == ["sandboxes"] and self.command == "GET":
            wanted = dict(urllib.parse.parse_qsl(self._query.get("metadata", "")))
            shown = [m.describe() for m in owner.machines() if wanted.items() <= m.metadata.items()]
            raise _Answer(200, shown)
        if parts[0] == "sandboxes" and len(parts) > 1 and not version2:
            self._one_sandbox(parts[1], parts[2:])
        raise _Answer(405 if version2 else 404, {"message": "no such call"})

    def _create(self) -> None:
        owner = self.server.owner
        wanted = self._asked
        if owner.templates is not None and wanted["templateID"] not in owner.templates:
            raise _refuse(404, f"template '{wanted['templateID']}' not found")
        machine = owner.create(wanted)
        if machine is None:
            raise _refuse(429, "you have reached the maximum number of concurrent sandboxes")
        raise _Answer(201, {**machine.describe(), "envdAccessToken": machine.token, "domain": None})

    def _one_sandbox(self, sandbox_id: str, rest: list[str]) -> None:
        owner = self.server.owner
        machine = owner.machine(sandbox_id)
        if machine is None:
            raise _refuse(404, f"sandbox {sandbox_id!r} not found")
        if self.command == "GET" and not rest:
            raise _Answer(200, machine.describe())
        if self.command == "DELETE" and not rest:
            owner.expire(sandbox_id)
            raise _Answer(204, None)
        if self.command == "POST" and rest == ["timeout"]:
            machine.renew(self._asked["timeout"])
            raise _Answer(204, None)
        raise _refuse(404, "no such call")

    # --- sandboxes ----------------------------------------------------------------------------------------

    def _machine(self, token: bool = False) -> _Machine:
        """The sandbox that is meant."""
        sandbox_id = self.headers.get("E2b-Sandbox-Id") or ""
        machine = self.server.owner.machine(sandbox_id)
        if machine is None:
            raise _Answer(502, {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502})
        if token and self.headers.get("X-Access-Token") != machine.token:
            raise _rpc_error(401, "unauthenticated", "access token is not valid")
        return machine

    def _files(self, body: bytes) -> None:
        """Read or write a file, whole."""
        path = Path(self._machine().home, self._query.get("path", ""))
        if self.command == "GET":
            if not path.is_file():
                raise _refuse(404 if not path.exists() else 400, f"path '{path}' is no file")
            raise _Answer(200, path.read_bytes())
        kind = self.headers.get("Content-Type") or ""
        if kind.startswith("multipart/"):
            message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
            body = b"".join(part.get_payload(decode=True) for part in message.walk() if not part.is_multipart())  # type: ignore[misc]  # bytes, as asked
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        raise _Answer(200, [{"path": str(path), "name": path.name, "type": "file"}])

    def _process(self, method: str) -> None:
        machine = self._machine(token=True)
        if method == "Start":
            return self._start(machine)
        if method == "List":
            rows = [{"pid": pid, "config": process.config} for pid, process in machine.processes.items()]
            raise _Answer(200, {"processes": rows})
        process = machine.processes.get(self._asked["process"].get("pid", 0))
        if process is None:
            raise _rpc_error(404, "not_found", "no such process")
        if method == "Connect":
            return self._stream(process, self._seconds())
        try:
            if method == "SendInput":
                process.write(base64.b64decode(self._asked["input"]["stdin"]))
            elif method == "CloseStdin":
                process.close_stdin()
            elif method == "SendSignal":
                process.signal(getattr(signal, self._asked["signal"].removeprefix("SIGNAL_")))
            else:
                raise _rpc_error(404, "unimplemented", f"no method {method}")
        except OSError as error:
            raise _rpc_error(500, "internal", f"error writing to stdin: {error}") from None
        raise _Answer(200, {})

    def _start(self, machine: _Machine) -> None:
        asked = self._asked
        authorization = base64.b64decode((self.headers.get("Authorization") or "").removeprefix("Basic ") or b"")
        user = authorization.decode().partition(":")[0] or None
        try:
            process = _Process(asked["process"], machine, user, bool(asked.get("stdin", True)))
        except (OSError, KeyError) as error:
            raise _rpc_error(400, "invalid_argument", f"cannot start: {error}") from None
        machine.add(process)
        listening = threading.Event()
        limit = self._seconds()

        def run() -> None:
            listening.wait()
            timer = threading.Timer(limit or 0, process.signal, [signal.SIGKILL])
            timer.daemon = True
            if limit is not None:
                timer.start()
            process.run()
            timer.cancel()
            machine.processes.pop(process.pid, None)

        threading.Thread(target=run, daemon=True).start()
        self._stream(process, None, listening)

    def _seconds(self) -> float | None:
        value = self.headers.get("Connect-Timeout-Ms")
        if value and not value.isdecimal():
            raise _rpc_error(400, "invalid_argument", f"timeout {value!r} is no whole number")
        return int(value) / 1000 if value else None

    def _stream(self, process: _Process, seconds: float | None, listening: threading.Event | None = None) -> None:
        """Send what a process says until it ends, its sandbox is gone, the client is, or the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            with process.listen() as events, contextlib.suppress(OSError):
                if listening:
                    listening.set()
                self.send_response(200)
                self.send_header("Content-Type", "application/connect+json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._send_event({"start": {"pid": process.pid}})
                self._send_events(events, deadline)
                self._write(b"0\r\n\r\n")
                return
        finally:
            if listening:
                listening.set()
        raise _Drop

    def _send_events(self, events: queue.Queue[Event | None], deadline: float | None) -> None:
        ping = float(self.headers.get("Keepalive-Ping-Interval") or 50)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                event = events.get(timeout=max(0.0, ping if left is None else min(ping, left)))
            except queue.Empty:
                if left is not None and left <= ping:
                    return self._send_frame(LAST, {"error": {"code": "deadline_exceeded", "message": "time is over"}})
                event = {"keepalive": {}}
            if event is None:
                raise _Drop
            self._send_event(event)
            if "end" in event:
                return self._send_frame(LAST, {})

    def _send_event(self, event: Event) -> None:
        self._send_frame(0, {"event": event})

    def _send_frame(self, flags: int, message: Event) -> None:
        data = json.dumps(message).encode()
        frame = ENVELOPE.pack(flags, len(data)) + data
        self._write(b"%x\r\n%s\r\n" % (len(frame), frame))
