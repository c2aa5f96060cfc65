"""Clients that break the protocol, on purpose or not, get an error or an end, and cost nothing."""

import contextlib
import json
import random
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_parts import TOOLS, Feed, SocketConnection, asked, post, tokens

from swe_gym.gateway.http import HttpLimits, HttpRequest, HttpResponse, serve
from swe_gym.gateway.session import REFUSED, Limits, Session

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def session() -> Session:
    sampler, _ = tokens(str)
    return Session(sampler)


def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, len(request.take_body()))


def exchange(sent: bytes, **limits: Any) -> bytes:
    feed = Feed(sent)
    serve(feed, echo, HttpLimits(**limits))
    assert feed.closed
    return feed.received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ff\r\n" + b"x" * 255 + b"\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 17), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
        (bytes(1 << 17), 400),
        (b"POST / HT", 400),  # half a request
        (post("/", b"abc")[:-1], 400),
    ],
)
def test_what_is_not_a_request_gets_an_error(sent: bytes, status: int) -> None:
    received = exchange(sent, body=200)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_requests_in_a_row_share_a_connection() -> None:
    chunked = (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    )
    received = exchange(post("/", b"abc") + chunked + b"HEAD / HTTP/1.0\r\n\r\n")
    assert received.count(b"HTTP/1.1 200") == 3
    assert b"\r\n\r\n3HTTP" in received


def test_slow_clients_are_dropped() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(post("/", b"abc")[:-1])
    serve(SocketConnection(theirs), echo, HttpLimits(receive=0.05))
    assert ours.recv(99).startswith(b"HTTP/1.1 408 ")
    ours.close()
    idle, theirs = socket.socketpair()
    serve(SocketConnection(theirs), echo, HttpLimits(idle=0.01))
    assert idle.recv(99) == b""
    idle.close()
    deaf, theirs = socket.socketpair()
    deaf.sendall(post("/", b"abc"))
    serve(SocketConnection(theirs), lambda _: HttpResponse(200, "x" * (8 << 20)), HttpLimits(send=0.05))
    deaf.close()


def test_a_large_request_passes(session: Session) -> None:
    status, answer = asked(session, CHAT, {"messages": [{"role": "user", "content": "x" * (5 << 20)}]})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


JUNK: list[Any] = [
    None,
    True,
    -1,
    1e308,
    "x",
    [],
    {},
    [[]],
    [None],
    {"type": []},
    "\ud800",
    [{"type": "text", "text": 5}],
]


def broken(draw: random.Random) -> object:
    """Return a request of which something is wrong, perhaps."""
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": "{"}}
    messages: list[Any] = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    block = {"type": "tool_use", "id": "a", "name": "b", "input": {}}
    items: list[Any] = [
        {"role": "assistant", "content": [block]},
        {"type": "function_call", "name": "b", "call_id": "c"},
    ]
    body: dict[str, Any] = {
        "messages": messages + items[:1],
        "tools": TOOLS,
        "max_tokens": 5,
        "input": messages + items,
    }
    place: Any = json.loads(json.dumps(body))
    body = place
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.3:
            place[key] = draw.choice(JUNK)
            return body
        place = place[key]


@pytest.mark.slow
def test_broken_bodies_are_refused_within_bounds() -> None:
    draw = random.Random(0)
    limits = Limits(calls=None)
    sampler, _ = tokens(str)
    tracemalloc.start()
    statuses = set()
    for number in range(2_000):
        if number % 500 == 0:
            session = Session(sampler, limits=limits)
        body = draw.choice(
            [b"", b"{", b"[" * 5000, b"\xff", b'{"messages": NaN}', b'"\\ud800"', broken(draw), broken(draw)]
        )
        status, answer = asked(session, draw.choice([CHAT, MESSAGES, RESPONSES, "/v1/x"]), body)
        statuses.add(status)
        assert status == 200 or answer["error"]["message"]
        assert session.failure is None, (body, session.failure)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert statuses == {200, 400, 404}
    assert peak < 64 << 20


def test_the_door_shuts_on_a_flood(session: Session) -> None:
    for _ in range(REFUSED + 1):
        asked(session, CHAT, b"{")
    feed = Feed(post(CHAT, {"messages": HI}))
    session.handle(feed)
    assert (feed.received, feed.closed) == (b"", True)
    assert session.failure is None


@contextlib.contextmanager
def connected(session: Session, sent: bytes) -> Iterator[socket.socket]:
    """Connect to a session and send bytes; check at the end that the connection is served no more."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=session.handle, args=(SocketConnection(theirs),))
    thread.start()
    ours.settimeout(60)
    ours.sendall(sent)
    yield ours
    ours.close()
    thread.join(60)
    assert not thread.is_alive()


GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


def test_connections_beyond_the_limit_are_closed_if_none_is_idle() -> None:
    sampler, _ = tokens(str)
    session = Session(sampler, limits=Limits(connections=2))
    half = post(CHAT, {"messages": HI})[:-1]
    with connected(session, GET + half) as one, connected(session, GET + half) as two:
        for client in (one, two):
            assert client.recv(9999)  # it is served now
        third = Feed(GET)
        session.handle(third)
        assert (third.received, third.closed) == (b"", True)
        session.close()


def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    sampler, _ = tokens(str)
    session = Session(sampler, limits=Limits(connections=3))
    with connected(session, GET) as oldest, connected(session, GET) as newer:
        for client in (oldest, newer):
            assert client.recv(9999)
        newer.sendall(GET)  # now `oldest` is idle for longer, whichever was served first
        assert newer.recv(9999)
        for _ in range(3):
            with connected(session, GET) as more:
                assert more.recv(9999)
        assert oldest.recv(9999) == b""
        newer.sendall(GET)
        assert newer.recv(9999)
        session.close()


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("value", [b"{}", b"0", b'""', b"[[]]"])
def test_a_body_of_many_values_is_refused_within_bounds(session: Session, value: bytes) -> None:
    body = b'{"messages": [' + b",".join([value] * ((16 << 20) // (len(value) + 1) - 9)) + b"]}"
    tracemalloc.start()
    status, answer = asked(session, CHAT, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (status, "more than 100000 values" in answer["error"]["message"]) == (400, True)
    assert peak < 4 * len(body)


def test_a_body_is_not_kept_while_the_model_answers() -> None:
    held: list[int] = []

    def say(_: int) -> str:
        held.append(tracemalloc.get_traced_memory()[0])
        return "ok"

    sampler, _ = tokens(say)
    session = Session(sampler)
    feed = Feed(post(CHAT, {"messages": HI, "padding": "x" * (8 << 20)}))
    tracemalloc.start()
    session.handle(feed)
    tracemalloc.stop()
    assert feed.received.startswith(b"HTTP/1.1 200")
    assert held[0] < 4 << 20
