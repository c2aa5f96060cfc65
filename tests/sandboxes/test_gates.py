"""Gates: few at a time, over threads and processes, until a deadline."""

import contextlib
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from swe_gym.errors import SandboxClosed, SandboxStartError
from swe_gym.sandboxes.gates import Rate, gate
from swe_gym.testing.sandbox_contract.case import Background

HOLDER = """
import sys, time
from swe_gym.sandboxes.gates import gate
with gate(sys.argv[1], 1, time.monotonic() + 30):
    print("inside", flush=True)
    sys.stdin.read()
"""

FORKS = """
import os, sys, time
from swe_gym.sandboxes.gates import gate
held = gate(sys.argv[1], 1, time.monotonic() + 30)
held.__enter__()
if not os.fork():
    {}
    os.write(1, b"forked\\n")
    sys.stdin.read()
    os._exit(0)
{}
os.write(1, b"parent\\n")
sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex}"


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def test_as_many_threads_are_inside_as_there_are_places(name: str) -> None:
    inside, most, lock = set(), 0, threading.Lock()

    def enter(number: int) -> None:
        nonlocal most
        with gate(name, 3, soon()):
            with lock:
                inside.add(number)
                most = max(most, len(inside))
            threading.Event().wait(0.01)
            with lock:
                inside.discard(number)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(enter, range(32)))
    assert most == 3


def test_other_processes_count_and_those_that_are_killed_do_not(name: str) -> None:
    command = [sys.executable, "-c", HOLDER, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        with pytest.raises(SandboxStartError, match="all 1 places") as error, gate(name, 1, soon(0.2)):
            pass
        assert (error.value.reason, error.value.retryable) == ("capacity", True)
        holder.kill()
        with gate(name, 1, soon()):
            pass


@pytest.mark.parametrize(
    ("in_fork", "in_parent", "taken"),
    [("pass", "held.__exit__(None, None, None)", False), ("del held", "pass", True)],
    ids=["the_parent_leaves", "the_fork_forgets"],
)
def test_a_fork_neither_keeps_nor_frees_the_place_of_its_parent(
    in_fork: str, in_parent: str, taken: bool, name: str
) -> None:
    command = [sys.executable, "-c", FORKS.format(in_fork, in_parent), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert {holder.stdout.readline() for _ in range(2)} == {"forked\n", "parent\n"}
        with pytest.raises(SandboxStartError) if taken else contextlib.nullcontext(), gate(name, 1, soon(0.2)):
            pass


def test_waiting_in_one_process_ends_at_its_deadline(name: str) -> None:
    with gate(name, 1, soon()):
        before = time.monotonic()
        with pytest.raises(SandboxStartError), ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: gate(name, 1, soon(0.3)).__enter__()).result()
        assert 0.25 < time.monotonic() - before < 5


def test_waiting_can_be_cancelled(name: str) -> None:
    cancelled = threading.Event()

    def wait() -> None:
        with gate(name, 1, soon(), cancelled):
            pass

    with gate(name, 1, soon()):
        waiting = Background(wait)
        cancelled.set()
        with pytest.raises(SandboxClosed):
            waiting.result(60)


def test_an_error_inside_gives_the_place_back(name: str) -> None:
    with pytest.raises(KeyError), gate(name, 1, soon()):
        raise KeyError
    with gate(name, 1, soon(1)):
        pass


def test_a_rate_lets_a_second_s_worth_pass_at_once_and_then_keeps_the_pace() -> None:
    rate, never = Rate(20.0), threading.Event()
    before = time.monotonic()
    for _ in range(25):
        rate.wait(soon(), never)
    assert 0.15 < time.monotonic() - before < 5
    with pytest.raises(SandboxStartError, match="too many others are waiting"):
        rate.wait(time.monotonic() - 1.0, never)
