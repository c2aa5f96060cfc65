"""Cases of forwarded ports: connections of processes in the sandbox that this process serves."""

import hashlib
import threading
from collections.abc import Callable
from functools import partial

from ...errors import ConnectionEnded, ConnectionTimeout, SandboxClosed, SandboxError, UsageError
from ...sandboxes import Connection, Forward, Sandbox
from .case import CANCEL_SECONDS, SLACK, Background, Opener, case, check_refused, eventually, ok, python, run_all

MUCH = 5 << 20
"""Bytes of a large transfer."""

BOUND = 16 << 20
"""Bytes that a connection may hold on its way: the windows, and the buffers of two sockets."""

DIAL = """
import hashlib, socket, sys, threading, time
def dial():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30)
def read_all(connection):
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))
"""

TALK = """
one = dial()
one.sendall(b"hello")
print(one.recv(100).decode(), end="")
"""

ONE_AFTER_THE_OTHER = """
for number in range(1000):
    with dial() as one:
        one.sendall(b"%d" % number)
        one.shutdown(socket.SHUT_WR)
        assert read_all(one) == b"%d" % number, number
"""

ALL_AT_ONCE = """
every = [dial() for _ in range(64)]
for number, one in enumerate(every):
    one.sendall(b"%d" % number)
for number, one in reversed(list(enumerate(every))):
    one.shutdown(socket.SHUT_WR)
    assert read_all(one) == b"%d" % number, number
"""

BOTH_WAYS = """
one = dial()
data = bytes(range(256)) * (int(sys.argv[2]) // 256)
def send():
    one.sendall(data)
    one.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
print(hashlib.sha256(read_all(one)).hexdigest(), end="")
"""

NEVER_READS = """
one = dial()
time.sleep(60)
"""

NEVER_READ = """
one = dial()
one.settimeout(1)
sent = 0
try:
    while True:
        sent += one.send(bytes(1 << 16))
except socket.timeout:
    print(sent, end="")
"""

FLOOD = """
one = dial()
def read():
    while one.recv(1 << 16):
        pass
threading.Thread(target=read, daemon=True).start()
while True:
    one.sendall(bytes(1 << 16))
"""

REFUSED = """
try:
    dial()
except ConnectionRefusedError:
    print("refused", end="")
"""


def echo(connection: Connection) -> None:
    """Send back what comes, to its end."""
    while data := connection.recv(1 << 16, timeout=30):
        connection.send(data, timeout=30)


def client(sandbox: Sandbox, forward: Forward, program: str, *arguments: object, timeout: float = 30.0) -> str:
    """Run a client in the sandbox and return what it prints."""
    return python(sandbox, DIAL + program, str(forward.port), *map(str, arguments), timeout=timeout)


def start_client(sandbox: Sandbox, forward: Forward, program: str) -> None:
    """Start a client that runs until the sandbox is closed."""
    run = ["sh", "-c", 'python3 -c "$0" "$1" & echo started', DIAL + program, str(forward.port)]
    ok(sandbox.exec(run))


def hold(sandbox: Sandbox, work: Callable[[Connection], object]) -> tuple[Forward, Background[object]]:
    """Forward a port, connect to it, and return it with the work on its only connection."""
    arrived: list[Connection] = []
    release = threading.Event()

    def handler(connection: Connection) -> None:
        arrived.append(connection)
        release.wait(60)

    forward = sandbox.forward(0, handler)
    start_client(sandbox, forward, NEVER_READS)
    eventually(lambda: bool(arrived), 20, "the client has connected")

    def use() -> object:
        try:
            return work(arrived[0])
        finally:
            release.set()

    return forward, Background(use)


def receive(connection: Connection) -> bytes:
    """Wait for bytes that do not come."""
    return connection.recv(1, timeout=60)


def send_for_ever(connection: Connection) -> None:
    """Send until it fails."""
    while True:
        connection.send(bytes(1 << 16), timeout=60)


@case("forward", "slow", budget=500.0)
def forwarded_connections(sandbox: Sandbox) -> None:
    """A thousand connections, one after the other, are served, and each is closed."""
    client(sandbox, sandbox.forward(0, echo), ONE_AFTER_THE_OTHER, timeout=180)


@case("forward", "threads")
def forwarded_connections_at_once(sandbox: Sandbox) -> None:
    """64 connections are served at once."""
    everyone = threading.Barrier(64)

    def handler(connection: Connection) -> None:
        everyone.wait(30)
        echo(connection)

    client(sandbox, sandbox.forward(0, handler), ALL_AT_ONCE)


@case("forward")
def forwarded_connections_beyond_the_limit(sandbox: Sandbox) -> None:
    """Connections beyond `max_connections` wait until others are closed."""
    open_now: list[Connection] = []
    most = []

    def handler(connection: Connection) -> None:
        open_now.append(connection)
        most.append(len(open_now))
        first = connection.recv(1 << 16, timeout=30)
        open_now.remove(connection)
        connection.send(first, timeout=30)

    program = ALL_AT_ONCE.replace("reversed(list(enumerate(every)))", "enumerate(every)")
    client(sandbox, sandbox.forward(0, handler, max_connections=2), program)
    assert max(most) <= 2, max(most)


@case("forward")
def forwarded_megabytes(sandbox: Sandbox) -> None:
    """5 MiB each way, at the same time, arrive byte for byte; an end of input does not end the output."""
    theirs, ours = bytes(range(256)) * (MUCH >> 8), bytes(reversed(range(256))) * (MUCH >> 8)
    received: list[str] = []

    def handler(connection: Connection) -> None:
        sending = Background(partial(connection.send, ours[:-1], timeout=30))
        data = b"".join(iter(lambda: connection.recv(1 << 16, timeout=30), b""))
        received.append(hashlib.sha256(data).hexdigest())
        sending.result(30)
        connection.send(ours[-1:], timeout=30)

    assert client(sandbox, sandbox.forward(0, handler), BOTH_WAYS, MUCH) == hashlib.sha256(ours).hexdigest()
    assert received == [hashlib.sha256(theirs).hexdigest()], "the handler received other bytes"


@case("forward")
def forwarded_client_that_never_reads(make: Opener, sandbox: Sandbox) -> None:
    """A client that never reads makes `send` wait to its timeout, holds few bytes, and delays nothing else."""
    sent: list[int] = []

    def send(connection: Connection) -> None:
        while sum(sent) < BOUND:
            connection.send(bytes(1 << 16), timeout=1)
            sent.append(1 << 16)

    _, sending = hold(sandbox, send)
    with make.within(1 + SLACK, "a command beside it"):
        assert client(sandbox, sandbox.forward(0, echo), TALK) == "hello"
    check_refused(ConnectionTimeout, lambda: sending.result(30), "sending to a client that never reads")
    assert sum(sent) < BOUND, sum(sent)


@case("forward")
def forwarded_handler_that_never_reads(make: Opener, sandbox: Sandbox) -> None:
    """A handler that never reads makes its client wait, holds few bytes, and delays nothing else."""
    done = threading.Event()

    def handler(_: Connection) -> None:
        done.wait(60)

    idle = sandbox.forward(0, handler)
    sending = Background(partial(client, sandbox, idle, NEVER_READ))
    with make.within(1 + SLACK, "a command beside it"):
        assert client(sandbox, sandbox.forward(0, echo), TALK) == "hello"
    assert int(sending.result(30)) < BOUND
    done.set()


@case("forward", "threads")
def forwarded_floods_delay_no_command(make: Opener, sandbox: Sandbox) -> None:
    """Commands are answered while four connections carry all that they can, each way."""
    started = threading.Semaphore(0)

    def handler(connection: Connection) -> None:
        started.release()
        Background(partial(send_for_ever, connection))
        while connection.recv(1 << 16, timeout=30):
            pass

    forward = sandbox.forward(0, handler)
    for _ in range(4):
        start_client(sandbox, forward, FLOOD)
    assert all(started.acquire(timeout=20) for _ in range(4)), "not all clients have connected"
    for _ in range(10):
        with make.within(SLACK, "a command beside floods"):
            ok(sandbox.exec("true"))


@case("forward")
def forwarded_client_is_killed(make: Opener, sandbox: Sandbox) -> None:
    """When its client is killed, a connection ends within a second, and another one works."""
    _, receiving = hold(sandbox, receive)
    sandbox.end_processes()
    with make.within(CANCEL_SECONDS, "receiving from a killed client"):
        assert receiving.result(20) == b""
    assert client(sandbox, sandbox.forward(0, echo), TALK) == "hello"
    _, sending = hold(sandbox, send_for_ever)
    assert not sending.wait(0.2), "sending did not wait"
    sandbox.end_processes()
    with make.within(CANCEL_SECONDS, "sending to a killed client"):
        check_refused(ConnectionEnded, lambda: sending.result(20), "sending to a killed client")


@case("forward")
def forwarded_handler_fails(sandbox: Sandbox) -> None:
    """When a handler returns or raises, the client has what was sent and then the end; the next connection works."""

    def handler(connection: Connection) -> None:
        if connection.recv(1 << 16, timeout=30) != b"hello":
            raise RuntimeError("raised by a case of the contract")
        connection.send(bytes(100_000), timeout=30)

    forward = sandbox.forward(0, handler)
    fails = 'one = dial(); one.sendall(b"bad"); print(len(read_all(one)), end="")'
    assert client(sandbox, forward, fails) == "0"
    assert client(sandbox, forward, fails.replace("bad", "hello")) == "100000"


@case("forward")
def forwarded_answer_before_the_end(sandbox: Sandbox) -> None:
    """A client that still sends when its connection is closed gets the answer first."""
    forward = sandbox.forward(0, lambda connection: connection.send(b"too long", timeout=30))
    program = 'one = dial(); one.sendall(bytes(3 << 20)); print(read_all(one).decode(), end="")'
    assert client(sandbox, forward, program) == "too long"


@case("forward", "threads")
def closing_a_forwarded_port(make: Opener, sandbox: Sandbox) -> None:
    """Closing a port, even twice, ends its connections within a second and frees the port; others live on."""
    other = sandbox.forward(0, echo)
    for work in (receive, send_for_ever):
        forward, waiting = hold(sandbox, work)
        assert not waiting.wait(0.2), "the call did not wait"
        with make.within(CANCEL_SECONDS, "a call on a closed port"):
            forward.close()
            forward.close()
            check_refused(ConnectionEnded, partial(waiting.result, 20), "a call on a closed port")
        assert client(sandbox, forward, REFUSED) == "refused"
        again = sandbox.forward(forward.port, echo)
        assert (again.port, client(sandbox, again, TALK)) == (forward.port, "hello")
    assert client(sandbox, other, TALK) == "hello"


@case("forward", "threads")
def closing_a_sandbox_with_connections(make: Opener) -> None:
    """Closing the sandbox ends waiting calls on connections within a second."""
    for work in (receive, send_for_ever):
        sandbox = make()
        forward, waiting = hold(sandbox, work)
        assert not waiting.wait(0.2), "the call did not wait"
        sandbox.close()
        with make.within(CANCEL_SECONDS, "a call on a connection of a closed sandbox"):
            check_refused(SandboxClosed, partial(waiting.result, 20), "a call of a closed sandbox")
        forward.close()


@case("forward")
def forwarded_ports_do_not_mix(sandbox: Sandbox) -> None:
    """Two ports have their own handlers. A port in use and invalid arguments are refused."""

    def answer(text: bytes, connection: Connection) -> None:
        connection.send(text, timeout=30)

    first, second = (sandbox.forward(0, partial(answer, text)) for text in (b"first", b"second"))
    found = run_all([partial(client, sandbox, forward, TALK) for forward in (first, second) * 3])
    assert found == ["first", "second"] * 3, found
    error = check_refused(SandboxError, lambda: sandbox.forward(first.port, echo), "a port in use")
    assert str(first.port) in str(error), error
    for port, limit in ((-1, 1), (65536, 1), (0, 0)):
        call = partial(sandbox.forward, port, echo, max_connections=limit)
        check_refused(UsageError, call, f"port {port} and max_connections={limit}")
