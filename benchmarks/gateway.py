"""Measure what the gateway adds to a model's time, with a sampler that answers at once.

The clients run on this machine, and in local sandboxes without a network.

python benchmarks/gateway.py
"""

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from common import show

from swe_gym.gateway.calls import Answer, Call
from swe_gym.gateway.history import CallPlace
from swe_gym.gateway.session import Limits, Session
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.trajectories.trajectory import PolicyInfo, Usage

SESSIONS = 64
CLIENT = """
import http.client, json, sys, time
port, size, calls = map(int, sys.argv[1:])
door = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
messages = [{"role": "user", "content": "x" * size}]
times = []
for number in range(calls):
    body = json.dumps({"model": "m", "messages": messages})
    started = time.perf_counter()
    door.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = json.loads(door.getresponse().read())
    times.append(time.perf_counter() - started)
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
print(json.dumps(times))
"""


class Instant:
    """A sampler that answers at once."""

    model, settings, info = "m", frozenset[str](), PolicyInfo(name="agent")

    def sample(self, call: Call, place: CallPlace, *, seed: int | None) -> Answer:  # noqa: ARG002  always the same
        """Return an answer."""
        message = {"role": "assistant", "content": "ok"}
        return Answer(message=message, text="ok", finish="stop", usage=Usage(calls=1))

    def count(self, call: Call) -> int:  # noqa: ARG002  always the same
        """Return a number."""
        return 1


class OverSocket:
    """A connection over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def recv(self, size: int, *, timeout: float) -> bytes:
        """Receive."""
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(size)
        except BlockingIOError as error:
            raise TimeoutError from error

    def send(self, data: bytes, *, timeout: float) -> None:
        """Send."""
        self._socket.settimeout(timeout)
        self._socket.sendall(data)

    def close(self) -> None:
        """Close."""
        self._socket.close()


def here(session: Session, size: int, calls: int) -> list[float]:
    """Return the seconds of calls from a process on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session.handle(OverSocket(sock))

        thread = threading.Thread(target=accept)
        thread.start()
        command = [sys.executable, "-c", CLIENT, str(listener.getsockname()[1]), str(size), str(calls)]
        output = subprocess.run(command, capture_output=True, check=True, timeout=600).stdout
        thread.join()
    return list(json.loads(output))


def in_a_sandbox(session: Session, size: int, calls: int) -> list[float]:
    """Return the seconds of calls from a sandbox without a network."""
    with contextlib.closing(open_sandbox(SandboxSpec(network="none"), "local")) as sandbox:
        door = sandbox.forward(0, session.handle)
        result = sandbox.exec(["python3", "-c", CLIENT, str(door.port), str(size), str(calls)], timeout=600)
    if not result.ok:
        raise RuntimeError(result.error_text)
    return list(json.loads(result.text))


def measured(where: Callable[[Session, int, int], list[float]], size: int, calls: int, sessions: int) -> list[str]:
    """Return a row of the table."""

    def one(_: int) -> list[float]:
        session = Session(Instant(), limits=Limits(calls=None))
        with contextlib.closing(session):
            return where(session, size, calls)

    started = time.perf_counter()
    with ThreadPoolExecutor(sessions) as pool:
        times = sorted(second for seconds in pool.map(one, range(sessions)) for second in seconds)
    spent = time.perf_counter() - started
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    name = where.__name__.replace("_", " ")
    return [name, f"{size:,}", str(sessions), f"{1000 * p50:.2f}", f"{1000 * p99:.2f}", f"{len(times) / spent:.0f}"]


def main() -> None:
    """Measure several sizes, and many sessions at once."""
    rows = []
    for where in (here, in_a_sandbox):
        rows += [measured(where, size, calls, 1) for size, calls in ((10_000, 200), (100_000, 100), (5_000_000, 10))]
        rows.append(measured(where, 10_000, 20, SESSIONS))
    show("Gateway", ("client", "bytes of the issue", "sessions", "p50 ms", "p99 ms", "calls/s"), rows)


if __name__ == "__main__":
    main()
