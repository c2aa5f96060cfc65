"""Forwarded ports at the runner's end, step by step: what takes too long or needs luck in a sandbox."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from swe_gym.guests.protocol import WINDOW, Decoder
from swe_gym.guests.runner.forwards import CROWDED, LINGER, PAUSE, STALLED, Forwards, Listener, Tunnel
from swe_gym.guests.runner.loop import Loop


class Port:
    """A forwarded port of a loop that the test turns itself, with `host` as the other end of its stream."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.host, stream = (stack.enter_context(end) for end in socket.socketpair())
        sink = os.dup(stream.fileno())
        stack.callback(os.close, sink)
        self.loop = Loop(stream.fileno(), sink)
        self.ports = Forwards(self.loop)
        self.number = self.ports.forward_open({"forward": 1, "port": 0, "max_connections": 2}, b"")[0]["port"]
        stack.callback(self.ports.forward_close, {"forward": 1}, b"")

    @property
    def listener(self) -> Listener:
        return self.ports.listeners[1]

    def dial(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.number), 10))

    def connect(self) -> tuple[socket.socket, Tunnel]:
        client = self.dial()
        self.ports.on_client(self.listener)
        return client, list(self.ports.tunnels.values())[-1]

    def polled(self, sock: socket.socket) -> bool:
        return sock.fileno() in self.loop.handlers


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def test_without_descriptors_it_accepts_later(port: Port) -> None:
    port.dial()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        port.ports.on_client(port.listener)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert port.ports.deadlines() == [port.listener.resume]
    assert not port.polled(port.listener.sock), "it would be polled in vain"
    port.ports.check(time.monotonic() + PAUSE)
    assert port.polled(port.listener.sock)
    port.ports.on_client(port.listener)
    assert len(port.ports.tunnels) == 1


def test_a_closed_connection_waits_for_a_client_that_reads_and_not_for_ever(port: Port) -> None:
    client, tunnel = port.connect()
    while not tunnel.pending:
        port.ports.forward_data({"connection": tunnel.number}, bytes(WINDOW))
    left = len(tunnel.pending)
    port.ports.forward_end({"connection": tunnel.number}, b"")
    now = time.monotonic()
    port.ports.check(now + STALLED / 2)
    assert tunnel.number in port.ports.tunnels
    while tunnel.pending:
        assert client.recv(1 << 20)
        port.ports.on_ready(tunnel, 0)
    assert left > 0
    port.ports.check(now + LINGER / 2)
    assert tunnel.number in port.ports.tunnels
    port.ports.check(time.monotonic() + LINGER)
    assert port.ports.tunnels == {}
    while client.recv(1 << 20):
        pass

    _, stalled = port.connect()
    while not stalled.pending:
        port.ports.forward_data({"connection": stalled.number}, bytes(WINDOW))
    port.ports.forward_end({"connection": stalled.number}, b"")
    port.ports.check(time.monotonic() + STALLED)
    assert port.ports.tunnels == {}


def test_the_limit_counts_connections_whose_client_is_gone_until_the_host_closes_them(port: Port) -> None:
    client, tunnel = port.connect()
    port.connect()
    assert not port.polled(port.listener.sock)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing it resets the connection
    client.close()
    port.ports.on_ready(tunnel, 0)
    assert tunnel.gone
    assert not port.polled(port.listener.sock)
    port.ports.forward_end({"connection": tunnel.number}, b"")
    assert port.polled(port.listener.sock)
    for op in (port.ports.forward_data, port.ports.forward_taken, port.ports.forward_end):
        op({"connection": tunnel.number, "size": 1}, b"late")


def test_nothing_is_read_while_much_waits_for_the_host(port: Port) -> None:
    client, tunnel = port.connect()
    client.sendall(b"hello")
    port.loop.send({"event": "test"}, bytes(2 * CROWDED))
    port.ports.watch(tunnel)
    assert not port.polled(tunnel.sock)
    decoder, found = Decoder(), []
    while port.loop.outgoing:
        found += decoder.feed(port.host.recv(1 << 20))
        port.loop.flush()
    port.ports.check(time.monotonic())
    assert port.polled(tunnel.sock)
    port.ports.on_ready(tunnel, 0)
    while len(found) < 3:
        found += decoder.feed(port.host.recv(1 << 20))
    assert found[-1] == ({"event": "forward", "connection": tunnel.number}, b"hello")
