"""A local server with E2B's protocol, control plane and sandboxes, with faults on demand.

    with E2BServer(tmp_path) as server:
        env = gymnasium.make("SWE/Toy-v0", backend="e2b", sandbox_options=server.sandbox_options())

For tests only: its sandboxes are folders and its processes ordinary processes of the server's user. **It isolates
nothing.** It listens on the loopback interface and requires the keys and tokens of the real service. Of the sandbox
API, it has the calls of processes and their streams.
"""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from swe_gym.testing.loopback import Drop, Exchange, HttpAnswer, LoopbackServer

from .e2b_machine import Event, Machine, Process

ENVELOPE = struct.Struct(">BI")
LAST = 0x02


class E2BServer(LoopbackServer):
    """The server. Use it as a context manager.

    Args:
        folder: Parent of the sandboxes' folders.
        api_key: The only accepted API key.
        v2: Whether `POST /v2/sandboxes` exists. AGS and older servers have only `POST /sandboxes`.
        templates: Known templates; None is any.
        most: Maximum number of sandboxes; one more is refused with status 429.

    Attributes:
        created: Number of sandboxes ever created.
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
        super().__init__()
        self.folder = Path(folder)
        self.api_key = api_key
        self.v2 = v2
        self.templates = templates
        self.most = most
        self.created = 0
        self._machines: dict[str, Machine] = {}
        self._counting = threading.Lock()

    @property
    def running(self) -> list[str]:
        """Ids of the running sandboxes."""
        with self._counting:
            return list(self._machines)

    def sandbox_options(self, **options: Any) -> dict[str, Any]:
        """Return `sandbox_options` for `gym.make`, or fields of `SandboxSpec`, that select this server.

        The sandboxes share the host's file system, so the workdir lies below their home folder, and their declared
        isolation is "process". `options` are more options of the backend.
        """
        there = {"api_key": self.api_key, "api_url": self.url, "sandbox_url": self.url, "domain": "e2b.invalid"}
        given = {**there, "isolation": "process", "workdir_in_home": True, "activate": ""}
        return {"options": {**given, **options}}

    def expire(self, sandbox_id: str) -> None:
        """End a sandbox as at the end of its lifetime."""
        with self._counting:
            machine = self._machines.pop(sandbox_id, None)
        if machine:
            machine.kill()

    def cut_streams(self) -> None:
        """Cut all streams of all processes, like a gateway that restarts."""
        with self._counting:
            machines = list(self._machines.values())
        for process in [process for machine in machines for process in list(machine.processes.values())]:
            process.drop()

    def close(self) -> None:
        """End all sandboxes and the server."""
        self.closing.set()
        for sandbox_id in self.running:
            self.expire(sandbox_id)
        super().close()

    # --- the protocol -----------------------------------------------------------------------------------------

    def decode(self, content_type: str, raw: bytes) -> Any:
        """See `LoopbackServer.decode`; a request for a stream has one message in an envelope."""
        return super().decode(content_type, raw[ENVELOPE.size :] if "connect+json" in content_type else raw)

    def answer(self, exchange: Exchange) -> None:
        """See `LoopbackServer.answer`."""
        path = exchange.asked.path
        if path == "/health":
            self._machine_of(exchange)
            raise HttpAnswer(204)
        if path.startswith("/process.Process/"):
            return self._process(exchange, path.rpartition("/")[2])
        return self._control(exchange, path)

    # --- the control plane ------------------------------------------------------------------------------------

    def _control(self, exchange: Exchange, path: str) -> None:
        asked = exchange.asked
        if asked.key != self.api_key:
            raise self.refuse(401, "invalid API key")
        version2 = path.startswith("/v2/")
        kind, *rest = path.removeprefix("/v2").strip("/").split("/")
        if kind == "sandboxes" and not rest and asked.method == "POST" and (self.v2 or not version2):
            self._create(asked.body)
        if kind == "sandboxes" and not rest and asked.method == "GET":
            wanted = dict(parse_qsl(asked.query.get("metadata", "")))
            with self._counting:
                found = [machine for machine in self._machines.values() if wanted.items() <= machine.metadata.items()]
            raise HttpAnswer(200, [machine.describe() for machine in found])
        if kind == "sandboxes" and rest and not version2:
            self._one_sandbox(exchange, *rest)
        raise HttpAnswer(405 if version2 else 404, {"message": "no such call"})

    def _create(self, wanted: dict[str, Any]) -> None:
        if self.templates is not None and wanted["templateID"] not in self.templates:
            raise self.refuse(404, f"template '{wanted['templateID']}' not found")
        with self._counting:
            if len(self._machines) >= self.most:
                raise self.refuse(429, "you have reached the maximum number of concurrent sandboxes")
            machine = Machine(self.folder, wanted, self.expire)
            self._machines[machine.id] = machine
            self.created += 1
        machine.renew(wanted.get("timeout") or 15)
        raise HttpAnswer(201, {**machine.describe(), "envdAccessToken": machine.token, "domain": None})

    def _one_sandbox(self, exchange: Exchange, sandbox_id: str, *rest: str) -> None:
        with self._counting:
            machine = self._machines.get(sandbox_id)
        if machine is None:
            raise self.refuse(404, f"sandbox {sandbox_id!r} not found")
        match (exchange.asked.method, *rest):
            case ("GET",):
                raise HttpAnswer(200, machine.describe())
            case ("DELETE",):
                self.expire(sandbox_id)
                raise HttpAnswer(204)
            case ("POST", "timeout"):
                machine.renew(exchange.asked.body["timeout"])
                raise HttpAnswer(204)
        raise self.refuse(404, "no such call")

    # --- sandboxes --------------------------------------------------------------------------------------------

    def _machine_of(self, exchange: Exchange) -> Machine:
        """Return the sandbox of a request."""
        sandbox_id = exchange.headers.get("E2b-Sandbox-Id") or ""
        with self._counting:
            machine = self._machines.get(sandbox_id)
        if machine is None:
            raise HttpAnswer(502, {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502})
        return machine

    def _process(self, exchange: Exchange, method: str) -> None:
        machine, asked = self._machine_of(exchange), exchange.asked.body
        if exchange.headers.get("X-Access-Token") != machine.token:
            raise _rpc_error(401, "unauthenticated", "access token is not valid")
        if method == "Start":
            return _start(exchange, machine)
        process = machine.processes.get(asked["process"].get("pid", 0))
        if process is None:
            raise _rpc_error(404, "not_found", "no such process")
        if method == "Connect":
            with process.listen() as events:
                return _stream(exchange, process, events, _seconds(exchange))
        if method != "SendInput":
            raise _rpc_error(404, "unimplemented", f"no method {method}")
        try:
            process.write(base64.b64decode(asked["input"]["stdin"]))
        except OSError as error:
            raise _rpc_error(500, "internal", f"error writing to stdin: {error}") from None
        raise HttpAnswer(200, {})


def _rpc_error(status: int, code: str, message: str) -> HttpAnswer:
    return HttpAnswer(status, {"code": code, "message": message})


def _seconds(exchange: Exchange) -> float | None:
    """Return the timeout of a stream, or of the process that it starts."""
    value = exchange.headers.get("Connect-Timeout-Ms")
    if value and not value.isdecimal():
        raise _rpc_error(400, "invalid_argument", f"timeout {value!r} is not a whole number")
    return int(value) / 1000 if value else None


def _start(exchange: Exchange, machine: Machine) -> None:
    asked, seconds = exchange.asked.body, _seconds(exchange)
    basic = (exchange.headers.get("Authorization") or "").removeprefix("Basic ")
    user = base64.b64decode(basic).decode().partition(":")[0] or None
    try:
        process = machine.start(asked["process"], user, bool(asked.get("stdin", True)))
    except (OSError, KeyError) as error:
        raise _rpc_error(400, "invalid_argument", f"cannot start: {error}") from None
    with process.listen() as events:
        process.follow(seconds, machine.forget)
        _stream(exchange, process, events, None)


def _stream(exchange: Exchange, process: Process, events: queue.Queue[Event | None], seconds: float | None) -> None:
    """Send the output of a process until its end, the timeout, or the loss of sandbox or client."""
    deadline = time.monotonic() + (threading.TIMEOUT_MAX if seconds is None else seconds)
    ping = float(exchange.headers.get("Keepalive-Ping-Interval") or 50)
    with exchange.stream("application/connect+json") as write:
        _send(write, {"event": {"start": {"pid": process.pid}}})
        while (left := deadline - time.monotonic()) > 0:
            event: Event | None = {"keepalive": {}}
            with contextlib.suppress(queue.Empty):
                event = events.get(timeout=min(ping, left))
            if event is None:
                raise Drop
            _send(write, {"event": event})
            if "end" in event:
                _send(write, {}, LAST)
                return
        _send(write, {"error": {"code": "deadline_exceeded", "message": "time is over"}}, LAST)


def _send(write: Callable[[bytes], None], message: Event, flags: int = 0) -> None:
    data = json.dumps(message).encode()
    write(ENVELOPE.pack(flags, len(data)) + data)
