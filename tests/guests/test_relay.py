"""The relay between a service's daemon and the runner, with pipes in the place of both."""

import base64
import os
import threading
from collections.abc import Iterator

import pytest

from swe_gym.guests.relay import GREETING, LINE_BYTES, LINE_MARK, Relay, encode_line


class Ends:
    """The far ends of a relay's four pipes."""

    def __init__(self) -> None:
        source, self.to_relay = os.pipe()
        self.from_relay, sink = os.pipe()
        from_runner, self.runner_output = os.pipe()
        self.runner_input, to_runner = os.pipe()
        self.lines = os.fdopen(self.from_relay, "rb")
        self.relay = Relay(source, sink, from_runner, to_runner)
        self.fds = [source, sink, from_runner, self.runner_input]

    def send(self, place: int, confirmed: int, data: bytes = b"") -> None:
        os.write(self.to_relay, encode_line(f"{LINE_MARK} {place} {confirmed}", data))

    def line(self) -> tuple[int, bytes]:
        mark, place, data = self.lines.readline().decode().rstrip("\n").split(" ")
        assert mark == LINE_MARK
        return int(place), base64.b64decode(data)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    thread = threading.Thread(target=ends.relay.run)
    thread.start()
    assert ends.lines.readline() == f"{GREETING}\n".encode()
    yield ends
    os.close(ends.to_relay)  # the host is gone: the runner's input ends
    assert os.read(ends.runner_input, 1) == b""
    os.close(ends.runner_output)
    thread.join(60)
    assert not thread.is_alive()
    ends.lines.close()
    for fd in ends.fds:
        os.close(fd)


def test_input_that_comes_twice_is_taken_once(ends: Ends) -> None:
    ends.send(0, 0, b"hello")
    ends.send(0, 0, b"hello")
    ends.send(3, 0, b"lo world")
    ends.send(99, 0, b"too early")
    received = b""
    while len(received) < 11:
        received += os.read(ends.runner_input, 100)
    assert received == b"hello world"


def test_output_is_kept_until_it_is_confirmed(ends: Ends) -> None:
    os.write(ends.runner_output, b"first")
    assert ends.line() == (0, b"first")
    ends.send(0, 0)  # asks for all that it lacks
    assert ends.line() == (0, b"first")
    ends.send(0, 3)
    assert ends.line() == (3, b"st")


def test_long_output_comes_in_lines(ends: Ends) -> None:
    data = os.urandom(LINE_BYTES + 100)
    os.write(ends.runner_output, data)
    received = b""
    while len(received) < len(data):
        place, part = ends.line()
        assert place == len(received)
        received += part
    assert received == data
