"""Cases of hostile commands: the sandbox survives or is lost, and never hangs or lies."""

import contextlib

from ...errors import FileError
from ...sandboxes import Sandbox
from .case import SLACK, Opener, case, demand_isolation, loss_of, new_marker, ok, processes_inside, python

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
