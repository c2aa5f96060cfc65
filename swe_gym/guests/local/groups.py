"""Control groups (cgroup v2): limits of a sandbox as a whole, on machines that delegate a group to this user.

The kernel limits the groups below one that has no processes itself. So the processes of the delegated group, ours among
them, move to a group below it; each sandbox has another one beside that.
"""

import contextlib
import os
import select
import time

ROOT = "/sys/fs/cgroup"
OURS, SANDBOX = "swe-gym-processes", "swe-gym-sandbox-"
END_SECONDS = 5.0


def delegated() -> "tuple[str, str]":
    """Return the folder of our delegated group, ready for `ControlGroup`; or an empty text and why there is none."""
    if not os.path.exists(f"{ROOT}/cgroup.controllers"):
        return "", f"cgroup v2 is not mounted at {ROOT}"
    try:
        with open("/proc/self/cgroup") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
        folder = ROOT + own.rstrip("/")
        if os.path.basename(folder) == OURS:
            folder = os.path.dirname(folder)
        lacking = {"memory", "pids"} - controllers(folder)
        if lacking:
            return "", f"{folder} lacks the controllers {', '.join(sorted(lacking))}"
        if not is_delegated(folder):
            return "", f"{folder} is not delegated to this user"
        empty(folder)
        wanted = controllers(folder) & {"memory", "pids", "cpu"}
        write(f"{folder}/cgroup.subtree_control", " ".join("+" + name for name in sorted(wanted)))
        ControlGroup(folder, {"pids.max": "max"}).end()  # a sandbox must not fail for want of a group
    except OSError as error:
        return "", str(error)
    return folder, ""


def controllers(folder: str) -> "set[str]":
    """Return the controllers that a group may use."""
    return set(read(f"{folder}/cgroup.controllers").split())


def is_delegated(folder: str) -> bool:
    """Return whether its manager leaves a group to us: systemd marks it, a container has it as its root.

    A group that is merely writable is not ours: a user may write to that of their desktop session.
    """
    mark = "user.delegate" if os.geteuid() else "trusted.delegate"
    with contextlib.suppress(OSError):
        if os.access(f"{folder}/cgroup.procs", os.W_OK):
            return folder == ROOT or os.getxattr(folder, mark) == b"1"
    return False


def empty(folder: str) -> None:
    """Move all processes of a group to one below it, unless it is the machine's first, which may keep them."""
    if not os.path.exists(f"{folder}/cgroup.type"):
        return
    os.makedirs(f"{folder}/{OURS}", exist_ok=True)
    for _ in range(100):  # processes may fork meanwhile
        for pid in read(f"{folder}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                write(f"{folder}/{OURS}/cgroup.procs", pid)
        if not read(f"{folder}/cgroup.procs"):
            return


class ControlGroup:
    """The group of one sandbox, made by its supervisor, which loses sight of the host's files later."""

    def __init__(self, parent: str, limits: "dict[str, str]") -> None:
        remove_abandoned(parent)
        self.name = f"{SANDBOX}{os.getpid()}-{time.monotonic_ns()}"
        self.parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        os.mkdir(self.name, dir_fd=self.parent)
        self.folder = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.parent)
        for name, value in limits.items():
            with contextlib.suppress(FileNotFoundError):  # the kernel counts no swap
                write(name, value, self.folder)

    def join(self) -> None:
        """Move this process, and all that it will start, to the group."""
        write("cgroup.procs", "0", self.folder)

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed it because it had reached its limit."""
        with contextlib.suppress(OSError):
            return "oom_kill 0" not in read("memory.events", self.folder).splitlines()
        return False

    def end(self) -> None:
        """Kill all its processes and remove it."""
        deadline = time.monotonic() + END_SECONDS
        with contextlib.suppress(OSError):  # before Linux 5.14; the end of the PID namespace kills them, too
            write("cgroup.kill", "1", self.folder)
        events = os.open("cgroup.events", os.O_RDONLY, dir_fd=self.folder)
        change = select.poll()
        change.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events, 4096, 0) and time.monotonic() < deadline:
            change.poll(1000)
        with contextlib.suppress(OSError):
            os.rmdir(self.name, dir_fd=self.parent)
        for descriptor in (events, self.folder, self.parent):
            os.close(descriptor)


def remove_abandoned(parent: str) -> None:
    """Remove the groups of supervisors that were killed."""
    for name in os.listdir(parent):
        if name.startswith(SANDBOX) and not os.path.exists("/proc/" + name[len(SANDBOX) :].partition("-")[0]):
            with contextlib.suppress(OSError):
                os.rmdir(f"{parent}/{name}")


def read(path: str, folder: "int | None" = None) -> str:
    descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
    with open(descriptor) as file:
        return file.read()


def write(path: str, value: str, folder: "int | None" = None) -> None:
    descriptor = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
