"""The process that acts after the death of its client, whatever becomes of the client's forks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENT = """
import os, signal, sys
from swe_gym.sandboxes.undertaker import Undertaker
undertaker = Undertaker("os:mkdir", sys.argv[1])
print(undertaker.pid, flush=True)
if "close" in sys.argv:
    undertaker.close()
for way in ("ends", "stays"):
    child = os.fork()
    if child == 0 and way == "ends":
        undertaker.close()  # it is the parent's
        os._exit(0)
    if child == 0:
        signal.pause()
    if way == "ends":
        os.waitpid(child, 0)
print(child, flush=True)
signal.pause()
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    return tmp_path / "it acted"


@pytest.fixture
def client(left: Path, request: pytest.FixtureRequest) -> Iterator[tuple["subprocess.Popen[str]", int, int]]:
    """A client with an undertaker and two forks, of which one has ended, and the ids of both that live."""
    command = [sys.executable, "-c", CLIENT, str(left), *getattr(request, "param", [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        undertaker, fork = (int(process.stdout.readline()) for _ in range(2))
        yield process, undertaker, fork
        os.kill(fork, signal.SIGKILL)
        process.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def eventually(condition: object, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]  # a function
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_only_the_death_of_the_client_counts(client: tuple["subprocess.Popen[str]", int, int], left: Path) -> None:
    process, undertaker, fork = client
    assert alive(undertaker)
    assert not left.exists()
    assert os.getsid(undertaker) == undertaker
    process.kill()
    eventually(left.exists, "the undertaker acts")
    eventually(lambda: not alive(undertaker), "the undertaker ends")
    assert alive(fork)


@pytest.mark.parametrize("client", [["close"]], indirect=True)
def test_a_closed_undertaker_does_nothing(client: tuple["subprocess.Popen[str]", int, int], left: Path) -> None:
    process, undertaker, _ = client
    assert not Path(f"/proc/{undertaker}").exists()
    process.kill()
    process.wait(60)
    assert not left.exists()


def test_it_holds_no_descriptor_of_its_client(left: Path) -> None:
    code = (
        "import os, socket, sys; from swe_gym.sandboxes.undertaker import Undertaker\n"
        "server = socket.create_server(('127.0.0.1', 0)); os.set_inheritable(server.fileno(), True)\n"
        "print(server.getsockname()[1], Undertaker('os:mkdir', sys.argv[1]).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _port, undertaker = map(int, process.stdout.readline().split())
        folder = Path(f"/proc/{undertaker}/fd")
        eventually(
            lambda: not alive(undertaker) or {one.name for one in folder.iterdir()} == {"0", "1", "2"}, "it is free"
        )
        assert alive(undertaker)
    eventually(left.exists, "an ordinary end counts, too")
