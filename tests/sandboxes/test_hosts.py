"""The proxy of sandboxes that may reach some hosts only, and what gets past it: nothing."""

import contextlib
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from swe_gym.errors import Unsupported, UsageError
from swe_gym.sandboxes import SandboxSpec, make_spec, open_sandbox
from swe_gym.sandboxes.hosts import HostProxy, Refused, dial_public, is_public, proxy_variables, read_server_name
from swe_gym.types import check_host

HOSTS = ("pypi.org", "*.pythonhosted.org")


class SocketConnection:
    """A connection over a socket, as a sandbox forwards one."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def recv(self, size: int, *, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        return self.socket.recv(size)

    def send(self, data: bytes, *, timeout: float) -> None:
        self.socket.settimeout(timeout)
        self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Internet:
    """Hosts behind the proxy: it answers each connection, and keeps what came."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") -> None:
        self.dialled: list[tuple[str, int]] = []
        self.received = b""
        self._answer = answer
        self._threads: list[threading.Thread] = []

    def dial(self, host: str, port: int) -> socket.socket:
        self.dialled.append((host, port))
        near, far = socket.socketpair()
        self._threads.append(threading.Thread(target=self._serve, args=(far,), daemon=True))
        self._threads[-1].start()
        return near

    def _serve(self, far: socket.socket) -> None:
        with far, contextlib.suppress(OSError):
            far.settimeout(10)
            self.received += far.recv(1 << 16)
            far.sendall(self._answer)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def internet() -> Internet:
    return Internet()


def ask(internet: Internet, data: bytes, *more: bytes) -> bytes:
    """Return everything that the proxy answers. `more` follows after the answers so far."""
    near, far = socket.socketpair()
    server = threading.Thread(
        target=HostProxy(HOSTS, dial=internet.dial).serve, args=(SocketConnection(far),), daemon=True
    )
    server.start()
    with near:
        near.settimeout(10)
        near.sendall(data)
        found = near.recv(1 << 16) if more else b""
        with contextlib.suppress(OSError):  # a proxy that refuses does not wait for more
            for part in more:
                near.sendall(part)
            if more or b"\r\n\r\n" not in data:  # the end of a plain request's client ends the request
                near.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while data := near.recv(1 << 16):
                found += data
    server.join(60)
    assert not server.is_alive()
    internet.wait()
    return found


def greeting(host: str) -> bytes:
    """Return how a TLS client starts when it asks for a host."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_a_request_reaches_its_host_under_its_own_name(internet: Internet) -> None:
    answer = ask(
        internet,
        b"GET http://PyPI.org/simple/?a=1 HTTP/1.1\r\nHost: evil.example\r\nProxy-Connection: keep-alive\r\n"
        b"Accept: */*\r\n\r\n",
    )
    assert answer.endswith(b"hi")
    assert internet.dialled == [("pypi.org", 80)]
    assert internet.received == (
        b"GET /simple/?a=1 HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    )


def test_a_body_is_passed_on_and_nothing_after_it(internet: Internet) -> None:
    second = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    head = b"POST http://pypi.org:80 HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
    ask(internet, head + b"abc" + second)
    assert b"evil" not in internet.received
    assert internet.received.startswith(b"POST / HTTP/1.1\r\nHost: pypi.org\r\n")


def test_a_tunnel_carries_bytes_to_the_host_that_tls_asks_for(internet: Internet) -> None:
    hello = greeting("files.pythonhosted.org")
    answer = ask(internet, b"CONNECT files.pythonhosted.org:443 HTTP/1.1\r\n\r\n", hello)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert internet.dialled == [("files.pythonhosted.org", 443)]
    assert internet.received == hello


@pytest.mark.parametrize(
    "sent",
    [
        greeting("evil.example"),
        greeting("pypi.org.evil.example"),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff" + b"\x01\x00\xff\xfb" + bytes(70_000),
        b"",
    ],
)
def test_a_tunnel_for_another_name_or_without_tls_is_closed(internet: Internet, sent: bytes) -> None:
    ask(internet, b"CONNECT pypi.org:443 HTTP/1.1\r\n\r\n", sent)
    assert internet.received == b""


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("CONNECT evil.example:443", 403),
        ("CONNECT evil-pypi.org:443", 403),
        ("CONNECT pythonhosted.org:443", 403),
        ("CONNECT evilpythonhosted.org:443", 403),
        ("CONNECT pypi.org.evil.example:443", 403),
        ("CONNECT 151.101.0.223:443", 403),
        ("CONNECT 2540109023:443", 403),
        ("CONNECT [::1]:443", 403),
        ("CONNECT localhost:443", 403),
        ("CONNECT pypi.org:80", 403),
        ("CONNECT pypi.org:22", 403),
        ("CONNECT pypi.org:53", 403),
        ("CONNECT pypi.org", 403),
        ("CONNECT a..pythonhosted.org:443", 403),
        ("CONNECT a_b.pythonhosted.org:443", 403),
        ("GET http://evil.example/", 403),
        ("GET http://127.0.0.1/", 403),
        ("GET http://169.254.169.254/latest", 403),
        ("GET http://pypi.org:8080/", 403),
        ("GET http://pypi.org@evil.example/", 400),
        ("GET http://evil.example#pypi.org", 400),
        ("GET http://evil.example?pypi.org", 403),
        ("GET https://pypi.org/", 400),
        ("GET ftp://pypi.org/", 400),
        ("GET /", 400),
        ("GET *", 400),
        ("get http://pypi.org/", 400),
        ("GET  http://pypi.org/", 400),
    ],
)
def test_other_hosts_ports_and_forms_are_refused(internet: Internet, line: str, status: int) -> None:
    answer = ask(internet, f"{line} HTTP/1.1\r\nHost: pypi.org\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert internet.dialled == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Transfer-Encoding: chunked\r\n", 411),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        ("Content-Length: +1\r\n", 400),
        ("Content-Length: 0x1\r\n", 400),
        ("Content-Length : 1\r\n", 400),
        (" folded: a\r\n", 400),
        ("A: b\nHost: evil.example\r\n", 400),
        ("A: b\rHost: evil.example\r\n", 400),
        ("A: \0\r\n", 400),
        ("no colon\r\n", 400),
    ],
)
def test_requests_that_others_may_read_otherwise_are_refused(internet: Internet, headers: str, status: int) -> None:
    answer = ask(internet, f"POST http://pypi.org/ HTTP/1.1\r\n{headers}\r\nbody".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert internet.dialled == []


@pytest.mark.parametrize("data", [b"GET http://pypi.org/ HTTP/1.1\r\n", b"x" * 100_000, b""])
def test_a_request_that_does_not_end_is_refused(internet: Internet, data: bytes) -> None:
    assert ask(internet, data).startswith(b"HTTP/1.1 400 ")
    assert internet.dialled == []


@pytest.mark.parametrize(("end", "status"), [(b"x", 200), (b"\x01", 400)])
def test_a_long_header_costs_no_time(internet: Internet, end: bytes, status: int) -> None:
    answer = ask(internet, b"GET http://pypi.org/ HTTP/1.1\r\nA:x" + b" " * 60_000 + end + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_blanks_around_a_value_are_left_out(internet: Internet) -> None:
    ask(internet, b"POST http://pypi.org/ HTTP/1.1\r\nContent-Length: \t0 \r\nA:\r\n\r\n")
    assert internet.received.endswith(b"\r\nContent-Length: 0\r\nA: \r\n\r\n")


def open_silent(upstream: socket.socket) -> tuple[socket.socket, threading.Thread]:
    """Return a client of the proxy, and the thread that serves it: the host says what is written to `upstream`."""
    near, far = socket.socketpair()
    near.settimeout(10)
    proxy = HostProxy(HOSTS, dial=lambda *_: upstream)
    server = threading.Thread(target=proxy.serve, args=(SocketConnection(far),), daemon=True)
    server.start()
    return near, server


@pytest.mark.parametrize("length", [0, 3, 10])
def test_a_client_that_leaves_ends_its_request(length: int) -> None:
    upstream, host = socket.socketpair()
    with host:
        near, server = open_silent(upstream)
        with near:
            near.sendall(b"POST http://pypi.org/ HTTP/1.1\r\nContent-Length: %d\r\n\r\nabc" % length)
        host.settimeout(10)
        while host.recv(1000):  # until the proxy has closed it
            pass
        server.join(60)
        assert not server.is_alive()


class SlowSocket(socket.socket):
    """A host that is silent for as long as its connection may be, while it reads a body."""

    def start(self) -> None:
        self.silent, self.read = True, threading.Event()

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.silent:
            self.silent = not self.read.wait(10)
            raise TimeoutError
        return super().recv(size, flags)


def test_an_upload_may_take_longer_than_the_host_is_silent() -> None:
    ours, host = socket.socketpair()
    upstream = SlowSocket(fileno=ours.detach())
    upstream.start()
    near, server = open_silent(upstream)
    with near, host, host.makefile("rb") as received:
        near.sendall(b"POST http://pypi.org/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        while received.readline() != b"\r\n":
            pass
        assert received.read(3) == b"abc"
        upstream.read.set()
        host.sendall(b"HTTP/1.1 200 OK\r\n\r\nhi")
        host.shutdown(socket.SHUT_WR)
        with near.makefile("rb") as answer:
            assert answer.read().endswith(b"hi")
    server.join(60)
    assert not server.is_alive()


def test_an_answer_of_the_host_is_passed_on_whole() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
    internet = Internet(redirect)
    assert ask(internet, b"GET http://pypi.org/ HTTP/1.1\r\n\r\n") == redirect
    assert internet.dialled == [("pypi.org", 80)]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1",
     "::127.0.0.1", "::ffff:0:127.0.0.1", "fec0::1", "64:ff9b:1::7f00:1", "5f00::1", "2001:0:7f00:1::",
     "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254"],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["151.101.0.223", "8.8.8.8", "2a04:4e42::223"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_greeting_that_is_cut_names_no_host(cut: int) -> None:
    whole = greeting("pypi.org")
    assert read_server_name(whole) == "pypi.org"
    assert read_server_name(whole[:cut]) is None


def test_a_greeting_in_several_records_is_read() -> None:
    message = greeting("pypi.org")[5:]
    parts = [message[start : start + 50] for start in range(0, len(message), 50)]
    assert read_server_name(b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)) == (
        "pypi.org"
    )


@pytest.mark.parametrize(
    "host",
    ["", "a", "localhost", "127.0.0.1", "0x7f.1", "1.2", "::1", "10.0.0.0/8", "http://pypi.org", "pypi.org:443", "*",
     "*.", "a.*.org", "-a.org", "a_b.org", "a..org", "pypi.org/x", "pypi.org\n.", "a" * 64 + ".org", "ä.org"],
)  # fmt: skip
def test_what_is_no_host_name_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        check_host(host)
    with pytest.raises(UsageError, match="network: expected none, egress or a list of hosts"):
        make_spec(SandboxSpec(), {"network": [host]})


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (["pypi.org", "localhost"], "'localhost' is not a host name"),
        (["egress"], "'egress' is not a host name"),
        ([1], "1 is not a host name"),
        ("pypi.org", "not 'pypi.org'"),
        ([], r"not \[\]"),
        (None, "not None"),
        (["a.org"] * 1001, "more than 1,000 hosts"),
    ],
)
def test_an_invalid_network_is_refused_in_one_sentence(network: object, said: str) -> None:
    expected = rf'sandbox options: network: expected none, egress or a list of hosts, such as \["pypi.org"\][:,] {said}'
    with pytest.raises(UsageError, match=f"^{expected}$"):
        make_spec(SandboxSpec(), {"network": network})


def test_names_have_one_form() -> None:
    assert make_spec(SandboxSpec(), {"network": ["PyPI.org.", "*.Debian.org"]}).network == ("pypi.org", "*.debian.org")


def test_a_name_is_resolved_as_it_is_without_the_domains_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Refused, match="no public address"):
        dial_public("files.pythonhosted.org", 443)
    assert asked == ["files.pythonhosted.org."]


@pytest.mark.parametrize("place", ["localhost", "127.0.0.1", "0.0.0.0:8000", "sandbox:8000"])
def test_servers_in_the_sandbox_are_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    for name, value in proxy_variables(9).items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass(place)


def test_a_host_that_no_one_knows_is_refused_by_name() -> None:
    near, far = socket.socketpair()
    with near:
        near.sendall(b"GET http://a.invalid/ HTTP/1.1\r\n\r\n")
        HostProxy(["a.invalid"]).serve(SocketConnection(far))
        assert near.recv(1000).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("tier", ["landlock", "process"])
def test_a_tier_that_cannot_is_refused_before_it_starts(tier: str) -> None:
    spec = SandboxSpec(network=("pypi.org",), options={"tier": tier})
    with pytest.raises(Unsupported, match="cannot open the network for some hosts only"):
        open_sandbox(spec)


FETCH = """\
import os, sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except OSError as error:
    print(error)
"""


@pytest.fixture
def open_proxied(internet: Internet) -> Iterator[Callable[[str], str]]:
    """Return a function that fetches a URL in a sandbox, through a proxy to that internet."""
    with open_sandbox(SandboxSpec()) as sandbox:
        port = sandbox.forward(0, HostProxy(HOSTS, dial=internet.dial).serve).port
        env = {"http_proxy": f"http://127.0.0.1:{port}"}
        yield lambda url: sandbox.exec(["python3", "-c", FETCH, url], env=env).text.strip()


def test_programs_in_a_sandbox_reach_the_hosts_and_no_others(
    internet: Internet, open_proxied: Callable[[str], str]
) -> None:
    assert open_proxied("http://pypi.org/") == "hi"
    assert "403" in open_proxied("http://evil.example/")
    assert internet.dialled == [("pypi.org", 80)]


def test_a_dial_that_is_refused_is_answered() -> None:
    def refuse(host: str, port: int) -> socket.socket:
        raise Refused(502, f"{host} {port} does not answer")

    near, far = socket.socketpair()
    with near:
        near.sendall(b"CONNECT pypi.org:443 HTTP/1.1\r\n\r\n")
        HostProxy(HOSTS, dial=refuse).serve(SocketConnection(far))
        assert b"pypi.org 443 does not answer" in near.recv(1000)
