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
    """Return the folder of our delegated group, ready for `Group`; or an empty text and why there is none."""
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
        write(folder, "cgroup.subtree_control", " ".join("+" + name for name in sorted(wanted)))
    except OSError as error:
        return "", str(error)
    return folder, ""


def controllers(folder: str) -> "set[str]":
    """Return the controllers that a group may use."""
    return set(read(folder, "cgroup.controllers").split())


def is_delegated(folder: str) -> bool:
    """Return whether its manager (systemd, a container engine) leaves a group to us. Root could write to any."""
    if os.geteuid():
        return os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)
    with contextlib.suppress(OSError):
        return folder == ROOT or os.getxattr(folder, "trusted.delegate") == b"1"
    return False


def empty(folder: str) -> None:
    """Move all processes of a group to one below it, unless it is the machine's first, which may keep them."""
    if not os.path.exists(f"{folder}/cgroup.type"):
        return
    os.makedirs(f"{folder}/{OURS}", exist_ok=True)
    for _ in range(100):  # processes may fork meanwhile
        for pid in read(folder, "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                write(f"{folder}/{OURS}", "cgroup.procs", pid)
        if not read(folder, "cgroup.procs"):
            return


class Group:
    """The group of one sandbox, made by its supervisor."""

    def __init__(self, parent: str, limits: "dict[str, str]") -> None:
        remove_abandoned(parent)
        self.folder = f"{parent}/{SANDBOX}{os.getpid()}"
        os.mkdir(self.folder)
        for name, value in limits.items():
            with contextlib.suppress(FileNotFoundError):  # the kernel counts no swap
                write(self.folder, name, value)

    def join(self) -> None:
        """Move this process, and all that it will start, to the group."""
        write(self.folder, "cgroup.procs", "0")

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed it because it had reached its limit."""
        with contextlib.suppress(OSError):
            return "oom_kill 0" not in read(self.folder, "memory.events").splitlines()
        return False

    def end(self) -> None:
        """Kill all its processes and remove it."""
        deadline = time.monotonic() + END_SECONDS
        with contextlib.suppress(OSError):  # before Linux 5.14; the end of the PID namespace kills them, too
            write(self.folder, "cgroup.kill", "1")
        with open(f"{self.folder}/cgroup.events") as events:
            change = select.poll()
            change.register(events, select.POLLPRI)
            while "populated 1" in os.pread(events.fileno(), 4096, 0).decode() and time.monotonic() < deadline:
                change.poll(1000)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)


def remove_abandoned(parent: str) -> None:
    """Remove the groups of supervisors that were killed."""
    for name in os.listdir(parent):
        if name.startswith(SANDBOX) and not os.path.exists("/proc/" + name[len(SANDBOX) :]):
            with contextlib.suppress(OSError):
                os.rmdir(f"{parent}/{name}")


def read(folder: str, name: str) -> str:
    with open(f"{folder}/{name}") as file:
        return file.read()


def write(folder: str, name: str, value: str) -> None:
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
