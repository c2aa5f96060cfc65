"""A Kubernetes API server for tests: pods, watches and attached streams over loopback HTTP, with faults on demand.

    with KubernetesServer() as server:
        server.inject("*/pods", method="POST", status=429, headers={"Retry-After": "1"})
        options = {"kubeconfig": server.kubeconfig(folder), "default_image": "any"}
        sandbox = open_sandbox(SandboxSpec(options=options), "kubernetes")

Nothing runs in its pods. A client that attaches to one reaches a runner whose commands print their own arguments, which
is enough to tell a reply from a failure.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import itertools
import json
import queue
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swe_gym.guests.protocol import HELLO, OPERATIONS, Decoder, encode
from swe_gym.sandboxes.fake import empty_reply
from swe_gym.testing.loopback import Drop, Exchange, HttpAnswer, LoopbackServer

Object = dict[str, Any]

SCHEDULED: Object = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
CREATING: Object = {**SCHEDULED, "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
RUNNING: Object = {**SCHEDULED, "phase": "Running", "containerStatuses": [{"ready": True, "state": {"running": {}}}]}

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, PING, PONG = 2, 9, 10
HALF_DEAD_SECONDS = 60.0


class KubernetesServer(LoopbackServer):
    """The server. Use it as a context manager.

    Args:
        life: States (`status` of a pod) that a new pod passes through at once.
        protocol: Protocol of attached streams.

    Attributes:
        pods: Pods by name.
    """

    def __init__(
        self, life: Sequence[Object] = (SCHEDULED, CREATING, RUNNING), protocol: str = "v4.channel.k8s.io"
    ) -> None:
        super().__init__()
        self.life = list(life)
        self.protocol = protocol
        self.pods: dict[str, Object] = {}
        self._changing = threading.RLock()
        self._events: list[Object] = []
        self._versions = itertools.count(100)
        self._version = 100
        self._oldest = 0
        self._watches: list[queue.SimpleQueue[Object | None]] = []
        self._attached: dict[str, list[Exchange]] = {}
        self._pods_frozen = threading.Event()

    def close(self) -> None:
        """Stop the server and end all watches and attached streams."""
        self.closing.set()
        self.end_watches()
        for name in list(self._attached):
            self.cut(name)
        super().close()

    def kubeconfig(self, folder: Path) -> str:
        """Write a kubeconfig for this server and return its path."""
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

    # --- faults of watches --------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget all events: open watches, and new ones from an old version, fail with status 410."""
        with self._changing:
            self._oldest = self._version = next(self._versions)
            self._events.clear()
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            for watch in self._watches:
                watch.put({"type": "ERROR", "object": gone})
        self.end_watches()

    def freeze_watches(self) -> None:
        """Silence all open watches, like a half-open connection."""
        with self._changing:
            self._watches.clear()

    def end_watches(self) -> None:
        """End all open watches, as servers do now and then."""
        with self._changing:
            for watch in self._watches:
                watch.put(None)

    # --- events of pods ---------------------------------------------------------------------------------------

    def create(self, pod: Object) -> Object | None:
        """Create a pod; None if its name is taken."""
        with self._changing:
            name = pod["metadata"]["name"]
            if name in self.pods:
                return None
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["metadata"].update(uid=f"uid-{next(self._versions)}", creationTimestamp=now)
            created = self._change("ADDED", {**pod, "status": {"phase": "Pending"}})
            for status in self.life:
                self.set_status(name, status)
            return created

    def set_status(self, name: str, status: Object) -> None:
        """Set a pod's status and notify the watches."""
        with self._changing:
            pod = self.pods[name]
            status = json.loads(json.dumps(status))
            for container in status.get("containerStatuses", []):
                container.setdefault("name", pod["spec"]["containers"][0]["name"])
                container.setdefault("image", pod["spec"]["containers"][0]["image"])
            self._change("MODIFIED", {**pod, "status": status})

    def end(self, name: str, reason: str, exit_code: int = 137, **status: Any) -> None:
        """End a pod's container and its attached streams, as the node does."""
        ended = [{"state": {"terminated": {"reason": reason, "exitCode": exit_code}}}]
        with self._changing:  # the client deletes the pod once its streams end
            self.cut(name)
            self.set_status(name, {"phase": "Failed", "containerStatuses": ended, **status})

    def remove(self, name: str) -> None:
        """Delete a pod."""
        with self._changing:
            pod = self.pods.pop(name, None)
            if pod is not None:
                self._change("DELETED", pod, keep=False)
        self.cut(name)

    def freeze_pods(self) -> None:
        """Silence the runners in all pods; connections stay open, as with a hanging node."""
        self._pods_frozen.set()

    def cut(self, name: str) -> None:
        """Cut the attached streams of a pod."""
        with self._changing:
            exchanges = self._attached.pop(name, [])
        for exchange in exchanges:
            with contextlib.suppress(OSError):
                exchange.connection.shutdown(socket.SHUT_RDWR)

    # --- inside -----------------------------------------------------------------------------------------------

    def _change(self, kind: str, pod: Object, *, keep: bool = True) -> Object:
        with self._changing:
            self._version = next(self._versions)
            pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._version)}}
            if keep:
                self.pods[pod["metadata"]["name"]] = pod
            event = {"type": kind, "object": pod}
            self._events.append(event)
            for watch in self._watches:
                watch.put(event)
            return pod

    def _watch_from(self, version: int) -> queue.SimpleQueue[Object | None] | None:
        """Return a queue of the events after a version; None if that version is too old."""
        with self._changing:
            if version < self._oldest:
                return None
            watch: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
            for event in self._events:
                if int(event["object"]["metadata"]["resourceVersion"]) > version:
                    watch.put(event)
            self._watches.append(watch)
            return watch

    # --- the protocol -----------------------------------------------------------------------------------------------

    def error_body(self, status: int, message: str, reason: str = "") -> Object:
        """See `LoopbackServer.error_body`."""
        return {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}

    def answer(self, exchange: Exchange) -> None:
        """See `LoopbackServer.answer`."""
        asked = exchange.asked
        folder, _, name = asked.path.rpartition("/")
        if asked.method == "POST":
            self._post(asked.body)
        if asked.method == "DELETE":
            self._delete(name, (asked.body or {}).get("preconditions", {}).get("uid"))
        if name == "attach":
            self._attach(exchange, folder.rpartition("/")[2])
        if asked.query.get("watch"):
            return self._watch(exchange)
        if name == "pods":
            self._list(asked.query.get("labelSelector", ""))
        if name == "events":
            raise HttpAnswer(200, {"metadata": {}, "items": []})
        raise HttpAnswer(200, self._pod(name))

    def _refusal(self, status: int, reason: str, message: str) -> HttpAnswer:
        return HttpAnswer(status, self.error_body(status, message, reason))

    def _pod(self, name: str) -> Object:
        pod = self.pods.get(name)
        if pod is None:
            raise self._refusal(404, "NotFound", f"no pod {name}")
        return pod

    def _post(self, pod: Object) -> None:
        created = self.create(pod)
        if created is None:
            raise self._refusal(409, "AlreadyExists", "a pod with that name exists")
        raise HttpAnswer(201, created)

    def _delete(self, name: str, uid: str | None) -> None:
        pod = self._pod(name)
        if uid and uid != pod["metadata"]["uid"]:
            raise self._refusal(409, "Conflict", "the uid differs")
        self.remove(name)
        raise HttpAnswer(200, pod)

    def _list(self, selector: str) -> None:
        with self._changing:
            items = [pod for pod in self.pods.values() if selected(pod, selector)]
            raise HttpAnswer(200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})

    def _watch(self, exchange: Exchange) -> None:
        query = exchange.asked.query
        watch = self._watch_from(int(query.get("resourceVersion") or 0))
        if watch is None:
            raise self._refusal(410, "Expired", "too old resource version")
        with exchange.stream("application/json") as write:
            for event in until_end(watch, float(query.get("timeoutSeconds", "300"))):
                of_all = event["type"] == "ERROR"
                if watch in self._watches and (of_all or selected(event["object"], query.get("labelSelector", ""))):
                    write(json.dumps(event).encode() + b"\n")
            if watch not in self._watches:
                self.closing.wait(HALF_DEAD_SECONDS)  # silent, but open
                raise Drop
            self._watches.remove(watch)

    # --- attaching ----------------------------------------------------------------------------------------------

    def _attach(self, exchange: Exchange, name: str) -> None:
        if self._pod(name)["status"].get("phase") != "Running":
            raise self._refusal(400, "BadRequest", f"container of {name} is not running")
        with self._changing:
            self._attached.setdefault(name, []).append(exchange)
        exchange.upgrade(handshake(exchange, self.protocol))
        send_message(exchange, b"\x01")  # as real servers do
        with contextlib.suppress(struct.error):
            talk(exchange, self._pods_frozen)
        raise Drop


def handshake(exchange: Exchange, protocol: str) -> dict[str, str]:
    """Return the headers that upgrade a connection to a websocket."""
    key = exchange.asked.headers["sec-websocket-key"].encode()
    accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID, usedforsecurity=False).digest()).decode()
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept,
        "Sec-WebSocket-Protocol": protocol,
    }


def talk(exchange: Exchange, frozen: threading.Event) -> None:
    """Receive the program for the pod's first process, then answer as its runner until the client disconnects."""
    decoder, program = Decoder(), b""
    while True:
        opcode, payload = read_message(exchange)
        if opcode == PING:
            send_message(exchange, payload, PONG)
        if opcode != BINARY or payload[:1] != b"\0":
            continue
        data = payload[1:]
        missing = (8 + int(program[:8]) if program else 8 + int(data[:8])) - len(program)
        program, data = program + data[:missing], data[missing:]
        for request, content in () if frozen.is_set() else decoder.feed(data):
            for frame in answer(request, content):
                send_message(exchange, b"\x01" + frame)


def read_message(exchange: Exchange) -> tuple[int, bytes]:
    """Read the next websocket frame; raises `struct.error` at the end."""
    first, second = struct.unpack(">BB", exchange.rfile.read(2))
    size = second & 0x7F
    if size >= 126:
        form = struct.Struct(">H" if size == 126 else ">Q")
        (size,) = form.unpack(exchange.rfile.read(form.size))
    mask = exchange.rfile.read(4)
    data = exchange.rfile.read(size)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return first & 0x0F, (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")


def send_message(exchange: Exchange, payload: bytes, opcode: int = BINARY) -> None:
    """Send a frame to the client."""
    size = len(payload)
    head = struct.pack(">BB", 0x80 | opcode, size) if size < 126 else struct.pack(">BBQ", 0x80 | opcode, 127, size)
    exchange.wfile.write(head + payload)
    exchange.wfile.flush()


def selected(pod: Object, selector: str) -> bool:
    """Return whether a pod has all labels of a selector `name=value,name=value`."""
    labels = pod["metadata"].get("labels") or {}
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(name) == value for name, _, value in pairs)


def answer(request: Object, content: bytes) -> Iterator[bytes]:
    """Yield the runner's reply: a command prints its arguments, files and folders are empty."""
    reply: Object = {"id": request["id"]}
    if request["op"] == "exec":
        content = b"" if request["argv"][0] == "/bin/sh" else " ".join(request["argv"]).encode()
        reply |= {"exit_code": 0, "signal": None, "timed_out": False, "duration": 0.0}
        reply |= {"stdout": len(content), "stdout_dropped": 0, "stderr_dropped": 0}
        yield encode(reply, content)
    elif request["op"] == "hello":
        yield encode({**reply, **empty_reply(HELLO), "python": "3.11.0"})
    else:
        yield encode({**reply, **empty_reply(OPERATIONS[request["op"]])})


def until_end(watch: queue.SimpleQueue[Object | None], seconds: float) -> Iterator[Object]:
    """Yield the events of a watch until its end, or until it is silent for `seconds`."""
    with contextlib.suppress(queue.Empty):
        while (event := watch.get(timeout=seconds)) is not None:
            yield event
