"""A Kubernetes API server for tests: pods, watches and attached streams over loopback HTTP, and every fault on command.

    with KubernetesServer() as server:
        server.fail("POST", "/pods$", status=429, headers={"Retry-After": "1"})
        options = {"kubeconfig": server.kubeconfig(folder), "default_image": "any"}
        sandbox = open_sandbox(SandboxSpec(options=options), "kubernetes")

Nothing runs in its pods. Who attaches to one talks to a runner that answers every command with its own words: enough
to tell a reply from a failure. It needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import http.server
import itertools
import json
import queue
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from ..sandboxes.protocol import Decoder, encode

Object = dict[str, Any]
Reply = tuple[int, Object]

SCHEDULED: Object = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
CREATING: Object = {**SCHEDULED, "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
RUNNING: Object = {**SCHEDULED, "phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]}

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclasses.dataclass
class Fault:
    """What goes wrong with the next requests that match.

    Attributes:
        method: Of the requests, as in "POST".
        path: A regular expression that is searched in the path.
        times: How many requests it hits.
        status: The HTTP status of the reply; 0 cuts the connection without one.
        reason: The reason in the reply.
        message: The message in the reply.
        headers: Of the reply.
        carried_out: Whether the request has its effect all the same.
        stall: Seconds before the reply, or until the server ends.
    """

    method: str
    path: str
    times: int = 1
    status: int = 500
    reason: str = ""
    message: str = "a fault of the test"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    carried_out: bool = False
    stall: float = 0.0


class KubernetesServer:
    """The server; a context manager.

    Args:
        life: The states that a new pod goes through at once, as `status` of a pod.
        protocol: The protocol of attached streams.

    Attributes:
        requests: "METHOD path" of every request, in order.
        pods: The pods by name.
    """

    def __init__(
        self, life: Sequence[Object] = (SCHEDULED, CREATING, RUNNING), protocol: str = "v4.channel.k8s.io"
    ) -> None:
        self.life = list(life)
        self.protocol = protocol
        self.requests: list[str] = []
        self.pods: dict[str, Object] = {}
        self._lock = threading.RLock()
        self._faults: list[Fault] = []
        self._events: list[Object] = []
        self._versions = itertools.count(100)
        self._version = 100
        self._oldest = 0
        self._watches: list[queue.SimpleQueue[Object | None]] = []
        self._attached: dict[str, list[Handler]] = {}
        self._ended = threading.Event()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.end_watches()
        for name in list(self._attached):
            self.cut(name)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def kubeconfig(self, folder: Path) -> str:
        """Write a kubeconfig that leads here; returns its path."""
        path = folder / "kubeconfig"
        cluster = {"name": "fake", "cluster": {"server": self.url}}
        context = {"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "tests"}}
        user = {"name": "fake", "user": {"token": "a-token"}}
        everything = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [user],
            "current-context": "fake",
        }
        path.write_text(json.dumps(everything))
        return str(path)

    # --- faults -----------------------------------------------------------------------------------------------

    def fail(self, method: str, path: str, **fields: Any) -> Fault:
        """Have the next requests that match fail; see `Fault`."""
        fault = Fault(method, path, **fields)
        with self._lock:
            self._faults.append(fault)
        return fault

    def compact(self) -> None:
        """Forget all that happened: whoever watches is told 410, as is who comes back with an old version."""
        with self._lock:
            self._oldest = self._version = next(self._versions)
            self._events.clear()
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            for watch in self._watches:
                watch.put({"type": "ERROR", "object": gone})
        self.end_watches()

    def freeze_watches(self) -> None:
        """Have every open watch stay open and say nothing more, as over a connection that is half dead."""
        with self._lock:
            self._watches.clear()

    def end_watches(self) -> None:
        """End every open watch, as the server does now and then."""
        with self._lock:
            for watch in self._watches:
                watch.put(None)

    # --- what happens to pods -----------------------------------------------------------------------------------

    def set_status(self, name: str, status: Object) -> None:
        """Give a pod a status, and tell it to whoever watches."""
        with self._lock:
            pod = self.pods[name]
            status = json.loads(json.dumps(status))
            for container in status.get("containerStatuses", []):
                container.setdefault("name", pod["spec"]["containers"][0]["name"])
                container.setdefault("image", pod["spec"]["containers"][0]["image"])
            self._change("MODIFIED", {**pod, "status": status})

    def end(self, name: str, reason: str, exit_code: int = 137, **status: Any) -> None:
        """End a pod's container, as the node does, with whoever is attached to it."""
        ended = [{"state": {"terminated": {"reason": reason, "exitCode": exit_code}}}]
        self.cut(name)
        self.set_status(name, {"phase": "Failed", "containerStatuses": ended, **status})

    def remove(self, name: str) -> None:
        """Delete a pod, as somebody else might."""
        with self._lock:
            pod = self.pods.pop(name, None)
            if pod is not None:
                self._change("DELETED", pod, keep=False)
        self.cut(name)

    def cut(self, name: str) -> None:
        """Cut the connections of whoever is attached to a pod."""
        with self._lock:
            handlers = self._attached.pop(name, [])
        for handler in handlers:
            handler.cut()

    # --- inside -----------------------------------------------------------------------------------------------

    def _change(self, kind: str, pod: Object, *, keep: bool = True) -> Object:
        with self._lock:
            self._version = next(self._versions)
            pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._version)}}
            if keep:
                self.pods[pod["metadata"]["name"]] = pod
            event = {"type": kind, "object": pod}
            self._events.append(event)
            for watch in self._watches:
                watch.put(event)
            return pod

    def _create(self, pod: Object) -> Object | None:
        """The new pod; None where there is one of that name."""
        with self._lock:
            name = pod["metadata"]["name"]
            if name in self.pods:
                return None
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["metadata"].update(uid=f"uid-{next(self._versions)}", creationTimestamp=now)
            created = self._change("ADDED", {**pod, "status": {"phase": "Pending"}})
            for status in self.life:
                self.set_status(name, status)
            return created

    def _hit(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self._faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def _watch_from(self, version: int) -> queue.SimpleQueue[Object | None] | None:
        """What happens from a version on; None where that is too long ago."""
        with self._lock:
            if version < self._oldest:
                return None
            watch: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
            for event in self._events:
                if int(event["object"]["metadata"]["resourceVersion"]) > version:
                    watch.put(event)
            self._watches.append(watch)
            return watch


class Server(http.server.ThreadingHTTPServer):
    """Holds the way back to its owner."""

    daemon_threads = True
    owner: KubernetesServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    @property
    def owner(self) -> KubernetesServer:
        """The server with the pods."""
        return self.server.owner

    def do_GET(self) -> None:
        """Get or list pods, watch them, attach to one."""
        self._serve(lambda _: self._get())

    def do_POST(self) -> None:
        """Create a pod."""
        self._serve(self._post)

    def do_DELETE(self) -> None:
        """Delete a pod."""
        self._serve(self._delete)

    def _serve(self, work: Callable[[bytes], Reply | None]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner._hit(self.command, self.path)
        if fault is None:
            reply = work(body)
            if reply is not None:
                self._reply(*reply)
            return
        if fault.carried_out:
            work(body)
        if fault.stall:
            self.owner._ended.wait(fault.stall)
        if fault.status:
            self._reply(*refusal(fault.status, fault.reason, fault.message), fault.headers)
        else:
            self.cut()

    def cut(self) -> None:
        """Cut the connection."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _reply(self, status: int, body: Object, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # --- the verbs: each gives a reply, or None where it has sent one -----------------------------------------------

    def _post(self, body: bytes) -> Reply:
        pod = self.owner._create(json.loads(body))
        return refusal(409, "AlreadyExists", "there is a pod of that name") if pod is None else (201, pod)

    def _delete(self, body: bytes) -> Reply:
        name = urlsplit(self.path).path.rpartition("/")[2]
        pod = self.owner.pods.get(name)
        uid = json.loads(body or b"{}").get("preconditions", {}).get("uid")
        if pod is None:
            return refusal(404, "NotFound", f"no pod {name}")
        if uid and uid != pod["metadata"]["uid"]:
            return refusal(409, "Conflict", "the uid is another one")
        self.owner.remove(name)
        return 200, pod

    def _get(self) -> Reply | None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        folder, _, name = parts.path.rpartition("/")
        if name == "attach":
            return self._attach(folder.rpartition("/")[2])
        if query.get("watch"):
            return self._watch(query)
        if name == "pods":
            return self._list(query)
        if name == "events":
            return 200, {"metadata": {}, "items": []}
        pod = self.owner.pods.get(name)
        return (200, pod) if pod is not None else refusal(404, "NotFound", f"no {parts.path}")

    def _list(self, query: Mapping[str, str]) -> Reply:
        with self.owner._lock:
            items = [pod for pod in self.owner.pods.values() if selected(pod, query.get("labelSelector", ""))]
            return 200, {"metadata": {"resourceVersion": str(self.owner._version)}, "items": items}

    def _watch(self, query: Mapping[str, str]) -> Reply | None:
        watch = self.owner._watch_from(int(query.get("resourceVersion") or 0))
        if watch is None:
            return refusal(410, "Expired", "too old resource version")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in until_end(watch, float(query.get("timeoutSeconds", "300"))):
            of_all = event["type"] == "ERROR"
            if watch in self.owner._watches and (of_all or selected(event["object"], query.get("labelSelector", ""))):
                self._send_chunk(json.dumps(event).encode() + b"\n")
        if watch in self.owner._watches:
            self.owner._watches.remove(watch)
            self._send_chunk(b"")
        else:
            self.owner._ended.wait(60)  # half dead: neither a word nor an end
            self.close_connection = True
        return None

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    # --- attaching ----------------------------------------------------------------------------------------------

    def _attach(self, name: str) -> Reply | None:
        pod = self.owner.pods.get(name)
        if pod is None or pod["status"].get("phase") != "Running":
            return refusal(400, "BadRequest", f"container of {name} is not running")
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID, usedforsecurity=False).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.send_header("Sec-WebSocket-Protocol", self.owner.protocol)
        self.end_headers()
        self.close_connection = True
        with self.owner._lock:
            self.owner._attached.setdefault(name, []).append(self)
        self._send_message(b"\x01")  # as real servers do
        with contextlib.suppress(OSError, struct.error):
            self._talk()
        return None

    def _talk(self) -> None:
        decoder, program = Decoder(), b""
        while True:
            opcode, payload = self._read_message()
            if opcode == 9:
                self._send_message(payload, 10)
            if opcode != 2 or payload[:1] != b"\0":
                continue
            data = payload[1:]
            missing = (8 + int(program[:8]) if program else 8 + int(data[:8])) - len(program)
            program, data = program + data[:missing], data[missing:]
            for request, content in decoder.feed(data):
                for frame in answer(request, content):
                    self._send_message(b"\x01" + frame)

    def _read_message(self) -> tuple[int, bytes]:
        first, second = struct.unpack(">BB", self.rfile.read(2))
        size = second & 0x7F
        if size >= 126:
            (size,) = (
                struct.unpack(">H", self.rfile.read(2)) if size == 126 else struct.unpack(">Q", self.rfile.read(8))
            )
        mask = self.rfile.read(4)
        data = self.rfile.read(size)
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return first & 0x0F, (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")

    def _send_message(self, payload: bytes, opcode: int = 2) -> None:
        size = len(payload)
        head = struct.pack(">BB", 0x80 | opcode, size) if size < 126 else struct.pack(">BBQ", 0x80 | opcode, 127, size)
        self.wfile.write(head + payload)
        self.wfile.flush()


def refusal(status: int, reason: str, message: str) -> Reply:
    """A reply that says no, as the API says it."""
    return status, {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}


def selected(pod: Object, selector: str) -> bool:
    """Whether a pod has all the labels of a selector of the form `name=value,name=value`."""
    labels = pod["metadata"].get("labels") or {}
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(name) == value for name, _, value in pairs)


def answer(request: Object, content: bytes) -> Iterator[bytes]:
    """What the runner of these pods says: a command prints its own words, a file holds nothing."""
    reply: Object = {"id": request["id"]}
    if request["op"] == "exec":
        content = b"" if request["argv"][0] == "/bin/sh" else " ".join(request["argv"]).encode()
        reply |= {"exit_code": 0, "signal": None, "timed_out": False, "duration": 0.0}
        reply |= {"stdout": len(content), "stdout_dropped": 0, "stderr_dropped": 0}
        yield encode(reply, content)
    elif request["op"] == "hello":
        yield encode({**reply, "python": "3.11.0"})
    else:
        yield encode(reply)


def until_end(watch: queue.SimpleQueue[Object | None], seconds: float) -> Iterator[Object]:
    """Events of a watch until its end, or until nothing has come for so long."""
    with contextlib.suppress(queue.Empty):
        while (event := watch.get(timeout=seconds)) is not None:
            yield event
