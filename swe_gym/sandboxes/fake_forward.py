"""Forwarded ports of a fake sandbox: ports of this machine's loopback interface, for clients in the test itself."""

import os
import socket
import threading

from ..guests.runner import forwards, loop
from .channel import RunnerChannel, SocketStream
from .runner_forward import SandboxForwards


def start_runner(name: str) -> tuple[RunnerChannel, SandboxForwards]:
    """Run the part of the runner that forwards ports in a thread, until the channel is closed."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=serve, args=[theirs], name=f"runner of {name}", daemon=True).start()
    channel = RunnerChannel(SocketStream(ours))
    return channel, SandboxForwards(channel, name)


def serve(stream: socket.socket) -> None:
    """Serve a stream to its end, and free everything."""
    sink = os.dup(stream.fileno())
    runner = loop.Loop(stream.fileno(), sink)
    ports = forwards.Forwards(runner)
    try:
        runner.run()
    finally:
        for number in list(ports.listeners):
            ports.forward_close({"forward": number}, b"")
        os.close(sink)
        stream.close()
