"""The tables of processes, and the bounded capture of output."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from swe_gym.guests.runner import processes
from swe_gym.guests.runner.commands import Capture, shorten


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sh", "-c", "sleep 100 & echo; wait"], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        yield process
        processes.send_signal(processes.descendants(processes.processes(), [process.pid]), signal.SIGKILL)


def test_a_tree_is_found_below_its_root(child: "subprocess.Popen[bytes]") -> None:
    table = processes.processes()
    tree = processes.descendants(table, [child.pid])
    assert len(tree) == 2
    assert tree <= processes.below_us(table)
    assert not tree & processes.below_us(table, spared=[child.pid])
    assert table[child.pid][0] == os.getpid()
    assert child.pid in processes.children(os.getpid())


def test_a_process_that_is_gone_has_no_row_and_takes_no_signal() -> None:
    process = subprocess.Popen(["true"])
    process.wait(30)
    assert processes.look_up(process.pid) is None
    assert processes.children(process.pid) == []
    processes.send_signal([process.pid], signal.SIGKILL)


HALF_ENDED = """
import ctypes, os, threading
def tell():
    while b") Z" not in open("/proc/self/stat", "rb").read():
        pass
    os.write(1, b"!")
    threading.Event().wait(60)
threading.Thread(target=tell).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""


def test_a_process_whose_first_thread_has_ended_is_alive_and_uses_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.read(1) == b"!"
        assert process.pid in processes.below_us(processes.processes())
        assert processes.mapped(process.pid) > 1 << 20
        process.kill()


CHAIN = """
import os
from swe_gym.guests.runner.loop import Loop
from swe_gym.guests.runner.processes import Reaper
looks = []
def find():
    looks.append(1)
    if len(looks) <= last:
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return set()
last, reaper = 4, Reaper(Loop(0, 1))
print(reaper.kill_all(find, lambda pid: True, 9), len(looks))
last = 999
print(reaper.kill_all(find, lambda pid: True, 0))
"""


def test_a_look_in_which_an_orphan_ended_does_not_prove_that_none_is_left() -> None:
    done = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, check=True, timeout=30, text=True)
    assert done.stdout == "True 7\nFalse\n"  # three quiet looks after the last link; a chain that goes on


def test_a_capture_keeps_head_and_tail() -> None:
    capture = Capture(8)
    for number in range(10_000):
        capture.add(b"%04d" % number)
    assert capture.result() == (b"00" + b"989999", 40_000 - 8)
    small = Capture(8)
    small.add(b"1234567")
    assert small.result() == (b"1234567", 0)


def test_a_line_that_is_too_long_for_an_argument_is_read_from_a_file() -> None:
    argv, script = shorten(["bash", "-c", "echo yes #" + "x" * (128 << 10)])
    assert script
    with script:
        done = subprocess.run(argv, pass_fds=[script.fileno()], capture_output=True, check=True, timeout=30)
    assert done.stdout == b"yes\n"
    assert shorten(["bash", "-c", "true"]) == (["bash", "-c", "true"], None)
