"""Cases of exhausted limits: processes, memory and disk."""

import os
import shutil

from ...errors import FileError
from ...sandboxes import Sandbox
from .case import SLACK, Opener, case, check_refused, demand_isolation, eventually, loss_of, ok, python

MIB = 1 << 20

FORK_MANY = """
import os, sys, time
children = 0
try:
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children)
"""

COUNT_ZOMBIES = """
import os
zombies = 0
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/%s/stat" % name) as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            zombies += state == "Z" and int(parent) == os.getppid()
    except OSError:
        pass
print(zombies)
"""

FORK_BOMB = """
import os, time
end = time.time() + 10
while time.time() < end:
    try:
        os.fork()
    except OSError:
        pass
"""


def children_started(sandbox: Sandbox, wanted: int) -> int:
    """Return how many processes can be started, up to `wanted`. They end after 20 s."""
    result = sandbox.exec(["python3", "-c", FORK_MANY, str(wanted)], timeout=30)
    return int(result.text)


@case("limits")
def process_limit(make: Opener) -> None:
    """`pids` limits the processes, to within 300; a command that reaches it gets an error, the next one runs."""
    sandbox = make(pids=100)
    started = children_started(sandbox, 500)
    assert 50 <= started <= 400, f"{started} processes with pids=100"
    assert ok(sandbox.exec("echo on", timeout=10)).text == "on\n"


@case("limits")
def process_limits_are_apart(make: Opener) -> None:
    """A sandbox at its process limit takes no process from another."""
    full, other = make(pids=100), make(pids=100)
    assert children_started(full, 500) <= 400
    assert children_started(other, 50) == 50


@case("limits", "hostile")
def fork_bomb(make: Opener) -> None:
    """A fork bomb runs into its timeout and is dead; the next command runs within 5 s."""
    sandbox = make(pids=100)
    demand_isolation(sandbox, "it is a fork bomb")
    assert children_started(sandbox, 500) <= 400, "not tried: there is no process limit"
    bombed = make(pids=100)
    with make.within(2 + 0.3 + SLACK, "a fork bomb with timeout=2"):
        assert bombed.exec(["python3", "-c", FORK_BOMB], timeout=2, grace=0.3).timed_out
    with make.within(5, "the command after a fork bomb"):
        assert ok(bombed.exec("echo on")).text == "on\n"
    assert len(ok(bombed.exec("ls -d /proc/[0-9]*")).text.split()) < 10, "processes of the bomb are left"


@case("limits")
def orphans_are_reaped(make: Opener) -> None:
    """Five hundred orphans leave no zombies that would exhaust the process limit."""
    sandbox = make(pids=100)
    for _ in range(10):
        ok(sandbox.exec("for i in $(seq 50); do (true &) ; done"))
    eventually(lambda: int(python(sandbox, COUNT_ZOMBIES)) < 20, 2, "orphans are reaped")
    assert children_started(sandbox, 40) == 40


@case("limits")
def memory_limit(make: Opener) -> None:
    """A command that exceeds `memory_mb` dies; the sandbox survives, or is lost with reason "oom"."""
    sandbox = make(memory_mb=256)
    assert python(sandbox, "print(len(b'x' * (64 << 20)))") == f"{64 * MIB}\n"
    greedy = "python3 -c 'data = b\"x\" * (768 << 20)' && touch had-it-all"
    loss = loss_of(lambda: sandbox.exec(greedy, timeout=20))
    if loss is None:
        assert ok(sandbox.exec("ls -A")).text == "", "768 MiB were used with memory_mb=256"
    else:
        assert loss.reason == "oom", loss.reason


FILL = """
import os, time
alive = set()
for _ in range(6):
    child = os.fork()
    if not child:
        data = b"x" * (100 << 20)
        time.sleep(60)
    alive.add(child)
deadline = time.monotonic() + 10
while len(alive) > 2 and time.monotonic() < deadline:
    alive -= {pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]}
    time.sleep(0.02)
for pid in alive:
    os.kill(pid, 9)
print(len(alive))
"""


@case("limits")
def memory_limit_of_many_processes(make: Opener) -> None:
    """Processes that exceed `memory_mb` together are killed until the rest fits; or the sandbox is lost, by "oom"."""
    sandbox = make(memory_mb=256)
    left: list[str] = []
    loss = loss_of(lambda: left.append(python(sandbox, FILL)))
    if loss is None:
        assert int(left[0]) <= 2, f"{left[0].strip()} processes of 100 MiB live with memory_mb=256"
    else:
        assert loss.reason == "oom", loss.reason


@case("limits")
def address_space_is_not_memory(sandbox: Sandbox) -> None:
    """A program may reserve terabytes of addresses, as sanitizers and virtual machines do."""
    program = (
        "import mmap\nmmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\nprint('reserved')"
    )
    assert python(sandbox, program) == "reserved\n"


@case("limits")
def disk_limit(make: Opener) -> None:
    """A command that writes more than `disk_mb` gets an error; deleting files frees the space."""
    sandbox = make(disk_mb=64)
    free = shutil.disk_usage(os.getcwd()).free
    for folder in (".", '"$(dirname $(mktemp -u))"'):
        filled = sandbox.exec(f"dd if=/dev/zero of={folder}/big bs=1M count=192", timeout=30)
        assert not filled.ok, f"192 MiB were written to {folder} with disk_mb=64"
        assert free - shutil.disk_usage(os.getcwd()).free < 512 * MIB, "the disk of this machine fills up"
        check_refused(FileError, lambda: sandbox.write_file("more", b"x" * (100 * MIB)), "writing to a full disk")
        ok(sandbox.exec(f"rm -f {folder}/big more"))
    ok(sandbox.exec("dd if=/dev/zero of=small bs=1M count=16"))
    assert sandbox.exec("ls -A").text == "small\n", "a refused write left a file"


@case("limits")
def disk_limit_of_many_files(make: Opener) -> None:
    """Many small files count as much as one large one."""
    sandbox = make(disk_mb=64)
    result = sandbox.exec("for i in $(seq 48); do head -c 4000000 /dev/zero > part-$i || exit 1; done", timeout=30)
    assert not result.ok, f"192 MB in parts were written with disk_mb=64: {result}"
