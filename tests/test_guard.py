"""The process that acts after the death of its client, whatever becomes of the client's forks; temporary folders."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_gym.errors import SandboxError
from swe_gym.guard import RETRY_SECONDS, TemporaryFolder, keep_removing

CLIENT = """
import os, signal, sys
from swe_gym.guard import Guard
guard = Guard("os:mkdir", sys.argv[1])
print(guard.pid, flush=True)
if "close" in sys.argv:
    guard.close()
for way in ("ends", "stays"):
    child = os.fork()
    if child == 0 and way == "ends":
        guard.close()  # it is the parent's
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
    """A client with an guard and two forks, of which one has ended, and the ids of both that live."""
    command = [sys.executable, "-c", CLIENT, str(left), *getattr(request, "param", [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        guard, fork = (int(process.stdout.readline()) for _ in range(2))
        yield process, guard, fork
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
    process, guard, fork = client
    assert alive(guard)
    assert not left.exists()
    assert os.getsid(guard) == guard
    process.kill()
    eventually(left.exists, "the guard acts")
    eventually(lambda: not alive(guard), "the guard ends")
    assert alive(fork)


@pytest.mark.parametrize("client", [["close"]], indirect=True)
def test_a_closed_guard_does_nothing(client: tuple["subprocess.Popen[str]", int, int], left: Path) -> None:
    process, guard, _ = client
    assert not Path(f"/proc/{guard}").exists()
    process.kill()
    process.wait(60)
    assert not left.exists()


def test_it_holds_no_descriptor_of_its_client(left: Path) -> None:
    code = (
        "import os, socket, sys; from swe_gym.guard import Guard\n"
        "server = socket.create_server(('127.0.0.1', 0)); os.set_inheritable(server.fileno(), True)\n"
        "print(server.getsockname()[1], Guard('os:mkdir', sys.argv[1]).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _port, guard = map(int, process.stdout.readline().split())
        folder = Path(f"/proc/{guard}/fd")
        eventually(lambda: not alive(guard) or {one.name for one in folder.iterdir()} == {"0", "1", "2"}, "it is free")
        assert alive(guard)
    eventually(left.exists, "an ordinary end counts, too")


def test_a_removal_that_fails_is_repeated_and_every_round_looks_again() -> None:
    rounds = [SandboxError("no answer"), SandboxError("no answer"), None, None]
    waits: list[float] = []

    def remove() -> None:
        if error := rounds.pop(0):
            raise error

    keep_removing(remove, (0.0, 7.0), SandboxError, sleep=waits.append)
    assert (rounds, waits) == ([], [0.0, RETRY_SECONDS, RETRY_SECONDS, 7.0])


def test_an_error_of_another_kind_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        keep_removing(lambda: 1 / 0, (0.0,), SandboxError, sleep=lambda _: None)


OWNER = """
import signal, sys
from pathlib import Path
from swe_gym.guard import TemporaryFolder
folder = TemporaryFolder("scratch-", Path(sys.argv[1]))
(folder.path / "locked").mkdir()
(folder.path / "locked" / "file").touch()
(folder.path / "locked").chmod(0o500)
print(folder.path, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_temporary_folder_ends_with_its_process(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "locked" / "file").exists()
        process.send_signal(number)
    eventually(lambda: not folder.exists(), "the folder is gone")


def test_a_closed_temporary_folder_is_gone_with_its_guard(tmp_path: Path) -> None:
    with TemporaryFolder("scratch-", tmp_path) as folder:
        (folder.path / "file").touch()
        guard = folder._guard.pid
    folder.close()
    assert list(tmp_path.iterdir()) == []
    assert not alive(guard)
    with pytest.raises(FileNotFoundError):
        TemporaryFolder("scratch-", tmp_path / "missing")
