"""Cases of exhausted limits and hostile commands: the sandbox survives or is lost, and never hangs or lies."""

import contextlib
import os
import shutil

from ...errors import FileError
from ...sandboxes import Sandbox
from .case import (
    SLACK,
    Opener,
    case,
    check_refused,
    demand_isolation,
    eventually,
    loss_of,
    new_marker,
    ok,
    processes_inside,
    python,
)

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
    for folder in (".", '"$(dirname $(mktemp -u))"'):
        free = shutil.disk_usage(os.getcwd()).free
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


HINDER = """
import os, resource
runner, group, user = os.getppid(), os.getpgid(os.getppid()), os.getuid()
calls = [(resource.prlimit, runner, getattr(resource, name), (9, 9)) for name in dir(resource) if name[:7] == "RLIMIT_"]
calls += [(os.setpriority, os.PRIO_PROCESS, runner, 19), (os.setpriority, os.PRIO_USER, user, 19)]
calls += [(os.setpriority, os.PRIO_PGRP, group, 19)] * (group > 0)  # 0 would be our own
calls += [(os.sched_setscheduler, runner, os.SCHED_IDLE, os.sched_param(0)), (os.sched_setaffinity, runner, {0})]
could = []
for call, *arguments in calls:
    try:
        call(*arguments)
        could.append(call.__name__)
    except PermissionError:
        pass
print("could:", *could)
resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (100, 100))
os.setpriority(os.PRIO_PROCESS, 0, 5)
os.setpriority(os.PRIO_PGRP, 0, 6)
"""
OPEN_OTHERS = r"""
import glob, os
opened = []
for path in glob.glob("/proc/[0-9]*/fd/*"):
    pid, number = path.split("/")[2], path.split("/")[4]
    if pid in (str(os.getpid()), "self"):
        continue
    for flags in (os.O_WRONLY, os.O_RDONLY):
        try:
            if os.readlink(path).startswith(("pipe:", "socket:")):
                os.close(os.open(path, flags | os.O_NONBLOCK))
                opened.append(path)
        except OSError:
            pass
for path in glob.glob("/proc/[0-9]*/mem"):
    if path.split("/")[2] != str(os.getpid()):
        try:
            os.close(os.open(path, os.O_RDWR))
            opened.append(path)
        except OSError:
            pass
print(" ".join(opened))
"""

OPEN_ALL = """
import os, sys, time
files = []
try:
    while len(files) < 100000:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
if os.fork():
    print(len(files))
else:
    sys.stdout = None
    time.sleep(60)
"""


def lives_or_is_lost(make: Opener, sandbox: Sandbox, command: str) -> None:
    """Run a destructive command; assert a timely result and a working sandbox, or a loss."""
    with make.within(1 + 1 + SLACK, command):
        loss = loss_of(lambda: sandbox.exec(command, timeout=1))
    if loss is not None:
        assert sandbox.closed, "a lost sandbox must be closed"
        return
    with make.within(5, f"the command after {command!r}"):
        assert ok(sandbox.exec("echo on")).text == "on\n", f"after {command!r}"


@case("hostile")
def killing_everything(make: Opener, sandbox: Sandbox) -> None:
    """`kill -9 -1` ends all processes but not the sandbox, or the sandbox is lost. Nothing hangs."""
    demand_isolation(sandbox, "it kills every process it can see")
    marker = new_marker()
    ok(sandbox.exec(f"sleep {marker} & echo started"))
    lives_or_is_lost(make, sandbox, "kill -9 -1; sleep 60")
    if not sandbox.closed:
        assert not processes_inside(sandbox, marker)


@case("hostile")
def killing_the_first_process(make: Opener, sandbox: Sandbox) -> None:
    """Signals to process 1 do nothing, or the sandbox is lost."""
    demand_isolation(sandbox, "it kills process 1")
    for number in ("TERM", "INT", "HUP", "USR1", "STOP", "SEGV", "KILL"):
        if not sandbox.closed:
            lives_or_is_lost(make, sandbox, f"kill -{number} 1")


@case("hostile")
def killing_every_python(make: Opener, sandbox: Sandbox) -> None:
    """Killing every process with "python" in its name blocks no call."""
    demand_isolation(sandbox, "it kills every Python process that it can see")
    program = "for f in /proc/[0-9]*/comm; do grep -q python $f && p=${f#/proc/} && kill -9 ${p%/comm}; done"
    lives_or_is_lost(make, sandbox, program)


@case("hostile")
def control_channel_is_out_of_reach(sandbox: Sandbox) -> None:
    """A command cannot open the descriptors or the memory of the runner."""
    demand_isolation(sandbox, "it opens the descriptors of every process that it can see")
    opened = ok(sandbox.exec(["python3", "-c", OPEN_OTHERS])).text.split()
    assert not opened, f"a command can open {opened[:10]}: it could fake replies"


@case("hostile")
def hindering_what_runs_commands(sandbox: Sandbox) -> None:
    """A command can neither limit nor slow down the runner by its process, its group or its user."""
    isolation = sandbox.capabilities.isolation
    assert isolation != "process", f"not tried: other processes of the user would be hindered, isolation {isolation!r}"
    assert python(sandbox, HINDER) == "could:\n"
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("hostile")
def deleting_the_workdir(sandbox: Sandbox) -> None:
    """A command may delete its workdir; the sandbox stays usable elsewhere and can be repaired."""
    assert len(sandbox.workdir) > 1, sandbox.workdir
    sandbox.exec(f"cd / && rm -rf {sandbox.workdir}/* {sandbox.workdir} 2>/dev/null; true")
    assert sandbox.exec("echo on", cwd="/").text == "on\n"
    with contextlib.suppress(FileError):
        sandbox.write_file("file", b"back")
        assert sandbox.read_file("file") == b"back"


@case("hostile")
def locking_the_workdir(sandbox: Sandbox) -> None:
    """A command may remove all permissions of the workdir; it and later calls are answered."""
    ok(sandbox.exec("mkdir folder && touch folder/file && chmod 000 folder . || true"))
    sandbox.exec("echo on")
    for call in (sandbox.manifest, lambda: sandbox.get_tar(""), lambda: sandbox.read_file("folder/file")):
        with contextlib.suppress(FileError):
            call()
    assert sandbox.exec("chmod 755 . folder; echo on", cwd="/").text == "on\n"


@case("hostile")
def exhausting_descriptors(sandbox: Sandbox) -> None:
    """A command that opens as many files as possible takes none from the next."""
    for _ in range(3):
        assert int(python(sandbox, OPEN_ALL)) >= 200, "too few files can be opened"
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("hostile")
def endless_links_and_names(make: Opener, sandbox: Sandbox) -> None:
    """Loops of links, very deep folders and control characters in names break neither listing nor packing."""
    program = (
        "import os\n"
        "os.makedirs('tree/a/b'); os.symlink('../..', 'tree/a/b/up'); os.symlink('self', 'tree/self')\n"
        "open('tree/\\x01\\x1b[2J\\r', 'w').close()\n"
        "os.chdir('tree')\n"
        "for depth in range(400):\n    os.mkdir('d' * 20); os.chdir('d' * 20)\n"
        "open('bottom', 'w').close()\n"
    )
    ok(sandbox.exec(["python3", "-c", program]))
    for call in (lambda: sandbox.manifest("tree"), lambda: sandbox.get_tar("tree")):
        with make.within(10, "reading a hostile tree"), contextlib.suppress(FileError):
            call()
    assert ok(sandbox.exec("echo on")).text == "on\n"
