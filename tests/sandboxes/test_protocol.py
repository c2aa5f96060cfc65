import ast
import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_gym.errors import SandboxClosed, SandboxError, SandboxLost
from swe_gym.guests.protocol import (
    HEADER,
    HELLO,
    MAGIC,
    MAX_OBJECT,
    MAX_PAYLOAD,
    WINDOW,
    Decoder,
    Operation,
    ProtocolError,
    encode,
)
from swe_gym.sandboxes import Sandbox, SandboxSpec
from swe_gym.sandboxes.channel import ByteStream, RunnerChannel, SocketStream
from swe_gym.sandboxes.fake import empty_reply
from swe_gym.sandboxes.runner_sandbox import RunnerSandbox, SandboxForwards, runner_source
from swe_gym.types import Capabilities

ANY_TEXT = st.text(st.characters(), max_size=30).map(lambda text: str(json.loads(json.dumps(text))))
"""Lone surrogates too: names of files have them. JSON joins pairs of them."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)
MESSAGES = st.dictionaries(ANY_TEXT, JSON, max_size=5)
FRAMES = st.lists(st.tuples(MESSAGES, st.binary(max_size=300)), max_size=5)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at the given places, some of them beyond its end or in the same place."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def decode(chunks: list[bytes]) -> list[tuple[dict[str, Any], bytes]]:
    decoder = Decoder()
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


# --- frames -------------------------------------------------------------------------------------------


@given(FRAMES, st.lists(st.integers(0, 3000), max_size=20))
def test_any_chunking_gives_the_same_frames(frames: list[tuple[dict[str, Any], bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode(message, payload) for message, payload in frames)
    assert decode(pieces(stream, cuts)) == frames


@settings(max_examples=30)
@given(FRAMES)
def test_byte_by_byte_each_frame_comes_with_its_last_byte(frames: list[tuple[dict[str, Any], bytes]]) -> None:
    decoder = Decoder()
    for message, payload in frames:
        data = encode(message, payload)
        for byte in data[:-1]:
            assert decoder.feed(bytes([byte])) == []
        assert decoder.feed(data[-1:]) == [(message, payload)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_garbage_is_incomplete_or_a_protocol_error(data: bytes, cuts: list[int]) -> None:
    try:
        frames = decode(pieces(data, cuts))
    except ProtocolError:
        return
    assert frames == []
    assert data[:4] == MAGIC[: len(data)], "what does not start as a frame must be refused at once"


@given(FRAMES.filter(bool), st.integers(0, 10_000), st.integers(1, 255), st.lists(st.integers(0, 3000), max_size=5))
def test_a_damaged_stream_gives_frames_or_an_error_of_the_protocol(
    frames: list[tuple[dict[str, Any], bytes]], place: int, change: int, cuts: list[int]
) -> None:
    stream = bytearray(b"".join(encode(message, payload) for message, payload in frames))
    stream[place % len(stream)] ^= change
    with suppress(ProtocolError):
        for message, payload in decode(pieces(bytes(stream), cuts)):
            assert isinstance(message, dict)
            assert isinstance(payload, bytes)


@pytest.mark.parametrize("sizes", [(MAX_OBJECT + 1, 0), (2, MAX_PAYLOAD + 1), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_a_frame_that_is_too_large_is_refused_by_its_header(sizes: tuple[int, int]) -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError):
        decoder.feed(HEADER.pack(MAGIC, *sizes))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"null", b'"x"', b"{", b"{}{}", b'{"a":\xff}', b'{"a":' + b"[" * 200_000, b"9" * 5000]
)
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(HEADER.pack(MAGIC, len(body), 0) + body)


def test_large_payloads_are_put_together_from_small_pieces() -> None:
    payload = bytes(range(256)) * 20_000
    stream = encode({"id": 1}, payload)
    chunks = [stream[start : start + 4096] for start in range(0, len(stream), 4096)]
    assert decode(chunks) == [({"id": 1}, payload)]


def test_the_runner_is_python_3_6() -> None:
    ast.parse(runner_source(), feature_version=(3, 6))


def test_a_python_without_ctypes_says_that_the_runner_is_not_protected() -> None:
    program = f"import sys\nsys.modules['ctypes'] = None\n{runner_source()}"
    hello = encode({"id": 1, "op": "hello", "limits": {}, "memory": 0, "ttl": 60})
    command = [sys.executable, "-I", "-S", "-c", program]
    said = subprocess.run(command, input=hello, stdout=subprocess.PIPE, check=True, timeout=30).stdout
    [(reply, _)] = decode([said])
    assert "ctypes" in reply["unprotected"]


# --- the host's end, against a runner that is not ours ------------------------------------------------------

PING = Operation("ping", {}, {})
ECHO = Operation("echo", {"word": "str"}, {"word": "str"})


@contextmanager
def channel_to(answer: Callable[[socket.socket], None]) -> Iterator[RunnerChannel]:
    """A channel whose other end is served by `answer` in a thread."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, suppress(OSError, ProtocolError):
            answer(theirs)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    channel = RunnerChannel(SocketStream(ours))
    yield channel
    channel.close()
    thread.join(60)
    assert not thread.is_alive()


def requests(sock: socket.socket) -> Iterator[dict[str, Any]]:
    decoder = Decoder()
    while data := sock.recv(1 << 16):
        for message, _ in decoder.feed(data):
            yield message


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=100))
def test_a_runner_that_sends_garbage_loses_the_sandbox_without_a_hang(garbage: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1000):
            pass

    with channel_to(answer) as channel, pytest.raises(SandboxLost):
        channel.request(PING, {}, timeout=5)


def test_replies_in_any_order_reach_the_thread_that_asked() -> None:
    def answer(sock: socket.socket) -> None:
        waiting = []
        for message in requests(sock):
            waiting.append(message)
            if len(waiting) == 8:
                for other in reversed(waiting):
                    sock.sendall(encode({"id": other["id"], "word": other["word"]}))
                waiting.clear()

    seen: dict[int, str] = {}
    with channel_to(answer) as channel:

        def ask(number: int) -> None:
            for turn in range(20):
                seen[number] = channel.request(ECHO, {"word": f"{number}.{turn}"}, timeout=10)[0]["word"]
                assert seen[number] == f"{number}.{turn}"

        threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert seen == {number: f"{number}.19" for number in range(8)}


def test_an_unexpected_reply_is_dropped() -> None:
    def answer(sock: socket.socket) -> None:
        for message in requests(sock):
            for odd in ({"id": message["id"] + 1}, {"id": None}, {"id": [1]}, {"id": {}}, {"event": "other"}, {}):
                sock.sendall(encode(odd, b"not for you"))
            sock.sendall(encode({"id": message["id"]}, b"for you"))

    with channel_to(answer) as channel:
        assert [channel.request(PING, {}, timeout=5)[1] for _ in range(3)] == [b"for you"] * 3


def test_a_late_reply_does_not_answer_the_next_request() -> None:
    late = threading.Event()

    def answer(sock: socket.socket) -> None:
        for message in requests(sock):
            late.wait(5)
            sock.sendall(encode({"id": message["id"]}, b"late"))

    with channel_to(answer) as channel:
        with pytest.raises(SandboxLost) as caught:
            channel.request(PING, {}, timeout=0.05)
        late.set()
        assert caught.value.reason == "unresponsive"
        with pytest.raises(SandboxLost):
            channel.request(PING, {}, timeout=5)


def test_closing_ends_every_waiting_request() -> None:
    ends: list[type] = []
    asked = threading.Semaphore(0)

    def answer(sock: socket.socket) -> None:
        for _ in requests(sock):
            asked.release()

    with channel_to(answer) as channel:

        def ask() -> None:
            try:
                channel.request(PING, {}, timeout=30)
            except SandboxError as error:
                ends.append(type(error))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert asked.acquire(timeout=5)
        channel.close()
        for thread in threads:
            thread.join(60)
    assert ends == [SandboxClosed] * 5


class StrangeSandbox(RunnerSandbox):
    """A sandbox whose runner answers every request after the first with the same strange reply."""

    name = "strange"
    slack = 0.5
    reply: dict[str, Any] = {}

    def _connect(self, deadline: float) -> ByteStream:
        assert deadline > 0
        ours, theirs = socket.socketpair()
        self.thread = threading.Thread(target=self.serve, args=[theirs], daemon=True)
        self.thread.start()
        return SocketStream(ours)

    def serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            for message in requests(sock):
                strange = empty_reply(HELLO) if message["op"] == "hello" else self.reply
                sock.sendall(encode({**strange, "id": message["id"]}, b"payload"))

    def _disconnect(self) -> None:
        self.thread.join(60)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(backend=self.name, isolation="none")


def use_everything(sandbox: Sandbox) -> Iterator[Callable[[], object]]:
    yield lambda: sandbox.exec("true", timeout=1)
    yield lambda: sandbox.read_file("x")
    yield lambda: sandbox.write_file("x", b"")
    yield lambda: sandbox.get_tar("")
    yield lambda: sandbox.put_tar("", b"")
    yield lambda: sandbox.manifest()
    yield lambda: sandbox.open_pty("true").read_until(b"x", timeout=1)
    yield lambda: sandbox.forward(0, print)


NAMES = ("exit_code", "signal", "timed_out", "stdout", "stdout_dropped", "stderr_dropped", "duration", "entries",
         "error", "found")  # fmt: skip
STRANGE = st.dictionaries(st.sampled_from(NAMES), JSON)


@settings(max_examples=100)
@given(STRANGE)
def test_an_invalid_reply_is_a_sandbox_error(reply: dict[str, Any]) -> None:
    for index in range(8):
        sandbox = StrangeSandbox(SandboxSpec())
        sandbox.reply = reply
        with sandbox.start():
            call = list(use_everything(sandbox))[index]
            with suppress(SandboxError):
                call()


def test_a_reply_without_its_fields_loses_the_sandbox() -> None:
    with StrangeSandbox(SandboxSpec()).start() as sandbox:
        with pytest.raises(SandboxLost) as caught:
            sandbox.exec("true", timeout=1)
        assert caught.value.reason == "protocol"
        assert "exit_code" in str(caught.value.detail)
        assert sandbox.closed


@pytest.mark.parametrize("word", [1, None, ["x"], {}, True])
def test_a_reply_with_a_value_of_another_type_is_refused_by_its_field(word: object) -> None:
    def answer(sock: socket.socket) -> None:
        for message in requests(sock):
            sock.sendall(encode({"id": message["id"], "word": word}))

    with channel_to(answer) as channel, pytest.raises(SandboxLost) as caught:
        channel.request(ECHO, {"word": ""}, timeout=5)
    assert (caught.value.reason, caught.value.detail) == ("protocol", "echo: word")


Frame = tuple[dict[str, Any], bytes]
OPENED = {"forward": 1, "connection": 7}
EXCESS = {
    "no-connection": [({"forward": 1}, b"")],
    "not-a-number": [({"connection": []}, b"")],
    "too-many-connections": [({**OPENED, "connection": number}, b"") for number in range(3)],
    "a-connection-twice": [(OPENED, b""), (OPENED, b"")],
    "more-than-the-window": [(OPENED, b""), ({"connection": 7}, bytes(WINDOW)), ({"connection": 7}, b"x")],
    "more-taken-than-sent": [(OPENED, b""), ({"connection": 7, "taken": 1}, b"")],
    "taken-is-not-a-number": [(OPENED, b""), ({"connection": 7, "taken": "x"}, b"")],
}


@pytest.mark.parametrize("events", EXCESS.values(), ids=EXCESS)
def test_a_runner_that_exceeds_the_limits_of_a_port_loses_the_sandbox(events: list[Frame]) -> None:
    def answer(sock: socket.socket) -> None:
        for request in requests(sock):
            if request["op"] == "forward_open":
                sock.sendall(encode({"id": request["id"], "port": 80, "unsupported": ""}))
                sock.sendall(b"".join(encode({"event": "forward", **event}, payload) for event, payload in events))

    done = threading.Event()
    with channel_to(answer) as channel:
        SandboxForwards(channel, "a test").open(80, lambda _: str(done.wait(10)), 2)
        with pytest.raises(SandboxLost, match="invalid event") as caught:
            channel.request(PING, {}, timeout=5)
        assert caught.value.reason == "protocol"
    done.set()
