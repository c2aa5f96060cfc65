"""Measure forwarded ports: round trips and throughput, next to a server in the same sandbox.

    python benchmarks/forward.py [--backend docker --image IMAGE]

The client is the same program in the sandbox. The other server echoes over plain sockets, also in the sandbox.
"""

import argparse
import json

from common import show

from swe_gym.sandboxes import Connection, Sandbox, SandboxSpec, open_sandbox

SIZES = {1_000: 500, 10_000: 500, 100_000: 200}
"""Bytes of a message -> round trips."""

STREAM = 100 << 20
BAR_MS, BAR_SIZE = 3.0, 10_000

SERVER = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0), backlog=100)
print(listener.getsockname()[1], flush=True)
def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    connection.close()
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""

CLIENT = """
import json, socket, sys, threading, time
port, sizes, stream = json.loads(sys.argv[1])
def dial():
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
def take(connection, size):
    while size:
        size -= len(connection.recv(min(size, 1 << 16)))
found = {}
with dial() as connection:
    for size, rounds in sizes:
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            connection.sendall(bytes(size))
            take(connection, size)
            times.append((time.perf_counter() - started) * 1000)
        times.sort()
        found[size] = times[rounds // 2], times[rounds * 99 // 100]
    started = time.perf_counter()
    threading.Thread(target=connection.sendall, args=[bytes(stream)]).start()
    take(connection, stream)
    found["stream"] = stream / (time.perf_counter() - started) / 1e6
print(json.dumps(found))
"""


def echo(connection: Connection) -> None:
    """Send back what comes."""
    while data := connection.recv(1 << 16, timeout=60):
        connection.send(data, timeout=60)


def measure(sandbox: Sandbox, port: int) -> dict[str, list[float]]:
    """Return [p50, p99] in milliseconds for each size, and the MB/s of a long echo."""
    result = sandbox.exec(["python3", "-c", CLIENT, json.dumps([port, list(SIZES.items()), STREAM])], timeout=300)
    assert result.ok, result.error_text
    found: dict[str, list[float]] = json.loads(result.text)
    return found


def main() -> int:
    """Measure, and fail if the median of the middle size exceeds the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--image")
    options = parser.parse_args()
    with open_sandbox(SandboxSpec(image=options.image), options.backend) as sandbox:
        server = sandbox.open_pty(["python3", "-c", SERVER])
        direct = measure(sandbox, int(server.read_until(b"\n", timeout=10)[0]))
        forwarded = measure(sandbox, sandbox.forward(0, echo).port)
    rows = []
    for size in SIZES:
        ours, theirs = forwarded[str(size)], direct[str(size)]
        bar = f"p50 {BAR_MS:g} ms" if size == BAR_SIZE else ""
        rows.append((f"{size:,} B", *(f"{value:.2f} ms" for value in (*ours, *theirs)), bar))
    rows.append(("echo of 100 MiB", f"{forwarded['stream']:.0f} MB/s", "", f"{direct['stream']:.0f} MB/s", "", ""))
    columns = ("round trip", "forwarded p50", "p99", "direct p50", "p99", "bar")
    show(f"Forwarded ports, backend {options.backend}", columns, rows)
    return int(forwarded[str(BAR_SIZE)][0] > BAR_MS)


if __name__ == "__main__":
    raise SystemExit(main())
