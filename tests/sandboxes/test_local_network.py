"""The network of local sandboxes: what they reach through pasta, and what they do not.

The tests run on a machine of their own, a network namespace with two interfaces and a resolver on its loopback.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_local_dies_with_us import below, table

from swe_gym.errors import SandboxLost, Unsupported
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import problem
from swe_gym.testing.sandbox_contract.case import eventually

SPEC = SandboxSpec(network="egress", options={"tier": "namespace"})

MACHINE = """
ip link set lo up
for n in 1 2; do
    ip link add d$n type veth peer e$n; ip link set d$n up; ip link set e$n up; ip address add 198.51.10$n.2/24 dev d$n
done
ip route add default via 198.51.101.1
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
printf 'search here.test\\nnameserver 127.0.0.53\\nnameserver 198.51.101.1\\n' > resolv.conf
mount --bind resolv.conf /etc/resolv.conf
exec "$@"
"""

CLIENT = """
import json, socket, sys, threading
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.testing.sandbox_contract.isolation import CONNECT, host_server

def resolve():
    while True:
        asked, client = resolver.recvfrom(1000)
        known = asked[12:].startswith(b"\\x04name\\x04here\\x04test") and asked[-4:-2] == b"\\0\\1"  # A, not AAAA
        answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + bytes([198, 51, 102, 2])
        head = asked[:2] + b"\\x81\\x80\\0\\1" + bytes([0, known, 0, 0, 0, 0])
        resolver.sendto(head + asked[12:] + answer * known, client)

resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.bind(("127.0.0.53", 53))
threading.Thread(target=resolve, daemon=True).start()
spec = SandboxSpec(network="egress", options={"tier": "namespace"})
with host_server("198.51.102.2") as (_, far), host_server("127.0.0.1") as (_, near), host_server("::1") as (_, six):
    with open_sandbox(spec, "local") as sandbox:
        for name in ("198.51.102.2", "name.here.test"):
            connect = f"import socket; socket.create_connection(({name!r}, {far}), timeout=60)"
            result = sandbox.exec(["python3", "-c", connect], timeout=60)
            assert result.ok, (name, result.describe())
        asked = []
        for address in ("127.0.0.1", "198.51.101.1", "198.51.101.2", "169.254.1.1", "0.0.0.0"):
            asked.append(("AF_INET", "SOCK_STREAM", (address, near)))
        asked += [("AF_INET6", "SOCK_STREAM", address) for address in (("::1", six), ("::ffff:127.0.0.1", near))]
        result = sandbox.exec(["python3", "-c", CONNECT, json.dumps(asked)], timeout=60)
        serve = "python3 -um http.server 8000 > log 2>&1 & until grep -q Serving log; do sleep 0.01; done"
        sandbox.exec(serve, timeout=60)
        served = []
        for address in ("127.0.0.1", "198.51.101.2", "198.51.102.2"):
            try:
                socket.create_connection((address, 8000), timeout=5).close()
                served.append(address)
            except OSError:
                pass
        print(json.loads(result.text), served)
"""


@pytest.fixture(autouse=True)
def _pasta() -> None:
    if problem("namespace", "egress"):
        pytest.skip(f"no network for sandboxes on this machine: {problem('namespace', 'egress')}")


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("user", ["root", "another"])
def test_a_sandbox_reaches_the_network_but_not_the_loopback_of_the_host(user: str, tmp_path: Path) -> None:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *as_root, "--net", "--mount", "bash", "-ec", MACHINE, "-"]
    command += ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if user == "another" else []
    if subprocess.run([*command, "true"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("no `unshare` or `ip` on this machine, or it may not")
    command += ["--", sys.executable, "-c", CLIENT] if user == "another" else [sys.executable, "-c", CLIENT]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[] []\n"


def pastas(pid: int) -> list[tuple[int, str]]:
    """(pid, start) of the pasta processes that a process has started."""
    found = below(pid)
    return [
        (one, start) for one, start in found if Path(f"/proc/{one}/comm").read_text().startswith(("pasta", "passt"))
    ]


OPEN = """
import sys
from swe_gym.sandboxes import SandboxSpec, open_sandbox
sandbox = open_sandbox(SandboxSpec(network="egress", options={"tier": "namespace"}), "local")
print("open", flush=True)
sys.stdin.read()
"""


def test_pasta_ends_with_a_killed_process() -> None:
    with subprocess.Popen([sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"open\n"
        started = pastas(client.pid)
        client.kill()
    assert len(started) == 1
    eventually(lambda: table().get(started[0][0], ("", ""))[1] != started[0][1], 60, "pasta has ended")


def test_pasta_ends_with_a_killed_supervisor_and_with_its_sandbox() -> None:
    for end in ("supervisor", "sandbox"):
        sandbox = open_sandbox(SPEC, "local")
        ((pid, start),) = pastas(os.getpid())
        if end == "supervisor":
            os.kill(table()[pid][0], 9)
        sandbox.close()
        eventually(lambda: table().get(pid, ("", ""))[1] != start, 60, "pasta has ended")  # noqa: B023


def test_a_sandbox_whose_network_ends_is_lost() -> None:
    with open_sandbox(SPEC, "local") as sandbox:
        os.kill(pastas(os.getpid())[0][0], 9)
        with pytest.raises(SandboxLost):
            sandbox.exec("sleep 60", timeout=60)


def test_without_pasta_network_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    for spec in (SPEC, SandboxSpec(network="egress", image="localhost/none:1")):
        with pytest.raises(Unsupported, match="needs pasta for network='egress': install it"):
            open_sandbox(spec, "local")


def test_an_error_of_pasta_is_reported(tmp_path: Path) -> None:
    """A machine without a route has no network to connect to."""
    if os.geteuid():
        pytest.skip("only root makes network namespaces without a user namespace")
    result = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", OPEN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        pytest.skip("this version of pasta connects machines without a route, too")
    assert "SandboxStartError: the local sandbox did not start" in result.stderr
    assert "pasta" in result.stderr.splitlines()[-1]
