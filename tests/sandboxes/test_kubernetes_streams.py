"""Websocket frames and their channels, from bytes in pieces."""

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_gym.sandboxes.channel import SocketStream

pytest.importorskip("kubernetes")

from swe_gym.sandboxes.kubernetes.api import AttachedStream, FrameReader, open_stream


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    head = opcode | (0x80 if final else 0)
    if len(payload) < 126:
        return struct.pack(">BB", head, len(payload)) + payload
    if len(payload) < 1 << 16:
        return struct.pack(">BBH", head, 126, len(payload)) + payload
    return struct.pack(">BBQ", head, 127, len(payload)) + payload


@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([b"x" * 126, b"y" * 65536, b""]), max_size=6),
    st.integers(1, 1000),
)
def test_frames_in_pieces_of_any_size(payloads: list[bytes], step: int) -> None:
    data = b"".join(frame(2, payload) for payload in payloads)
    step = max(step, len(data) // 2000)  # byte by byte for small inputs
    reader = FrameReader()
    found = [message for start in range(0, len(data), step) for message in reader.feed(data[start : start + step])]
    assert found == [(2, payload) for payload in payloads]


def test_a_fragmented_message_with_a_ping_between() -> None:
    data = frame(2, b"one ", final=False) + frame(9, b"ping") + frame(0, b"two ", final=False) + frame(0, b"three")
    assert list(FrameReader().feed(data)) == [(9, b"ping"), (2, b"one two three")]


@pytest.fixture
def pair() -> tuple[AttachedStream, socket.socket]:
    ours, theirs = socket.socketpair()
    return AttachedStream(SocketStream(ours)), theirs


def test_channels(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    server.sendall(frame(2, b"\x01") + frame(2, b"\x02oh") + frame(2, b"\x01out") + frame(2, b"\xff\x01"))
    assert stream.read(5.0) == b"out"
    server.sendall(frame(2, b"\x02 no") + frame(2, b'\x03{"status":"Failure","message":"it broke"}'))
    assert stream.read(5.0) == b""
    assert stream.read(5.0) == b"", "the stream stays at its end"
    assert stream.last_words() == "oh no\nit broke"
    stream.close()
    server.close()


def test_output_before_the_end_is_not_lost(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    server.sendall(frame(2, b"\x01last words") + frame(8, b""))
    assert stream.read(5.0) == b"last words"
    assert stream.read(5.0) == b""
    stream.close()
    server.close()


def test_a_ping_is_answered(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    server.sendall(frame(9, b"you there?") + frame(2, b"\x01x"))
    assert stream.read(5.0) == b"x"
    head = server.recv(6)
    mask = head[2:6]
    answered = bytes(byte ^ mask[index % 4] for index, byte in enumerate(server.recv(10)))
    assert (head[0] & 0x0F, answered) == (10, b"you there?")
    stream.close()
    server.close()


def test_a_silent_stream_times_out(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    with pytest.raises(TimeoutError):
        stream.read(0.01)
    stream.close()
    with pytest.raises(OSError, match="closed"):
        stream.read(1.0)
    server.close()


def test_close_wakes_a_read(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    results: list[bytes | OSError] = []

    def read() -> None:
        try:
            results.append(stream.read(30.0))
        except OSError as error:
            results.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    stream.close()
    reading.join(60)
    assert not reading.is_alive()
    assert results == [b""] or isinstance(results[0], OSError)
    server.close()


def test_large_writes_are_split_into_messages(pair: tuple[AttachedStream, socket.socket]) -> None:
    stream, server = pair
    data = bytes(range(256)) * 4096  # one mebibyte
    received = bytearray()

    def receive() -> None:
        while piece := server.recv(1 << 16):
            received.extend(piece)

    receiving = threading.Thread(target=receive)
    receiving.start()
    stream.write(data, 10.0)
    stream.close()
    receiving.join(60)
    server.close()
    assert unmasked(bytes(received)) == [
        b"\0" + data[start : start + (256 << 10)] for start in range(0, 1 << 20, 256 << 10)
    ]


def unmasked(data: bytes) -> list[bytes]:
    messages = []
    while data:
        (size,) = struct.unpack(">Q", data[2:10])
        mask, body = data[10:14], data[14 : 14 + size]
        key = (mask * (size // 4 + 1))[:size]
        messages.append((int.from_bytes(body, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big"))
        data = data[14 + size :]
    return messages


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_pair(tmp_path: Path) -> Iterator[tuple[SocketStream, ssl.SSLSocket]]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=test",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    ours, theirs = socket.socketpair()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.verify_mode = ssl.CERT_NONE
    accepted: list[ssl.SSLSocket] = []
    accepting = threading.Thread(target=lambda: accepted.append(server_side.wrap_socket(theirs, server_side=True)))
    accepting.start()
    stream = open_stream(client_side.wrap_socket(ours))
    accepting.join(60)
    yield stream, accepted[0]
    stream.close()
    accepted[0].close()


def test_tls_in_both_directions_at_once(tls_pair: tuple[SocketStream, ssl.SSLSocket]) -> None:
    stream, server = tls_pair
    data = bytes(range(256)) * 8192  # two mebibytes
    echoed = bytearray()

    def echo() -> None:
        left = len(data)
        while left:
            piece = server.recv(1 << 16)
            server.sendall(piece)
            left -= len(piece)

    def read() -> None:
        while len(echoed) < len(data):
            echoed.extend(stream.read(10.0))

    threads = [threading.Thread(target=work) for work in (echo, read)]
    for thread in threads:
        thread.start()
    stream.write(data, 20.0)
    for thread in threads:
        thread.join(60)
    assert bytes(echoed) == data


def test_a_silent_tls_stream_times_out_and_closes(tls_pair: tuple[SocketStream, ssl.SSLSocket]) -> None:
    stream, _ = tls_pair
    with pytest.raises(TimeoutError):
        stream.read(0.01)
    ended = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            assert stream.read(30.0) == b""
        ended.set()

    reading = threading.Thread(target=read)
    reading.start()
    stream.close()
    assert ended.wait(60)
    reading.join(60)
    with pytest.raises(OSError, match="closed"):
        stream.read(1.0)
