"""What each tier of the local backend isolates, and what it does not."""

import dataclasses
import functools
import shutil
from typing import Literal

from ...errors import Unsupported
from ...guests.local import groups
from ...types import Capabilities
from ..types import DEFAULT_MEMORY_MB, SandboxSpec


@dataclasses.dataclass(frozen=True)
class Tier:
    """A way to isolate processes on this machine.

    Attributes:
        isolates: Sentence on what it isolates.
        gaps: Sentences on what it does not isolate.
        uncapped: Sentences on what it does not cap unless the machine delegates a control group.
        closes_network: Whether `network="none"` is enforced.
    """

    isolates: str
    gaps: tuple[str, ...]
    closes_network: bool
    uncapped: tuple[str, ...] = ()

    def capabilities(self, name: str, network: Literal["none", "hosts", "egress"]) -> Capabilities:
        """Return the capabilities of a sandbox of this tier."""
        return Capabilities(
            backend="local",
            isolation=name,
            network=network if self.closes_network else "open",
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """Return the sentences on what it does not isolate or cap on this machine."""
        return self.gaps if not self.uncapped or delegated_group()[0] else (*self.uncapped, *self.gaps)


_SHARED_KERNEL = (
    "It shares the host's kernel, so a kernel exploit escapes it. Other limits of the kernel (open files, inotify "
    "watches) are shared with the host's user.",
    "The sandbox's files are in memory, up to disk_mb.",
    'With network="egress", commands can reach what the host can: its network, a cloud\'s metadata service, and other '
    "addresses of the host itself. They cannot reach its loopback, nor be reached.",
)

_NO_GROUP = (
    "Memory is watched and not capped: processes that use more than memory_mb together are killed within tens of "
    "milliseconds, shared memory not counted. CPU is not capped.",
    "If the host's user is root, processes are capped only on Linux 6.14 and later, at up to 300 more than `pids`.",
)

TIERS = {
    "namespace": Tier(
        isolates=(
            "Has its own root file system (copy-on-write, without the host's home, accounts, keys and sockets), "
            "processes, IPC, network and user."
        ),
        gaps=(
            *_SHARED_KERNEL,
            "Commands can read the host's /usr and the Python installation in use. Mount points and /proc show the "
            "paths of these, the kernel and the load.",
            "If the host's user is not root, folders of a workspace of more than 2,000 files or 32 MiB can be moved "
            "(`mv`), but not renamed (`git mv`, os.rename).",
        ),
        closes_network=True,
        uncapped=_NO_GROUP,
    ),
    "landlock": Tier(
        isolates=(
            "Commands write only to the sandbox's own folder, and read only that, the system and the Python in use. "
            'They can make no sockets but pairs (with network="egress": TCP and UDP), and can neither inspect nor '
            "signal (Linux 6.12) other processes."
        ),
        gaps=(
            "The workspace is in a temporary folder of the host, not at the task's workdir.",
            'Loopback is closed with the network. With network="egress", the loopback is the host\'s.',
            "Named unix sockets do not work, and commands cannot make terminals (`script`, pexpect).",
            "Commands can see the host's processes, and lower the limits of yours.",
            "System V IPC and POSIX message queues are closed: their contents would outlive the sandbox.",
            "Processes that a sandbox leaves running are found by parentage only. A command can kill its runner, which "
            "loses the sandbox; a rollout scores a repeated loss 0.",
            "Disk is capped per file, memory is watched. Processes and CPU are not capped.",
            "/tmp and /dev/shm are not writable; TMPDIR is the sandbox's own folder.",
            "Commands can change modes and times of any file that your user owns, though not the content. As root, do "
            "not trust it with hostile code.",
            "If swe_gym is installed in the base Python and not in a virtual environment, commands can read the "
            "bundled tasks' gold patches.",
        ),
        closes_network=True,
    ),
    "process": Tier(
        isolates="Nothing but the working folder: commands run as you. Use it for code that you trust.",
        gaps=(
            "It isolates nothing: commands can read, write and signal whatever you can.",
            "The workspace is in a temporary folder of the host, not at the task's workdir.",
            "The network is open.",
            "Disk is capped per file, memory is watched. Processes and CPU are not capped.",
        ),
        closes_network=False,
    ),
}

IMAGE = Tier(
    isolates="Has the root file system of a container image (copy-on-write), and everything else as tier namespace.",
    gaps=(
        *_SHARED_KERNEL,
        "/proc shows the kernel and the load of the host.",
        "If the host's user is not root, folders of the image can be moved (`mv`), but not renamed (`git mv`, "
        "os.rename). Without newuidmap and ranges of users in /etc/subuid, all files and commands belong to root.",
    ),
    closes_network=True,
    uncapped=_NO_GROUP,
)
"""Tier "namespace" with an image."""

OVERLAY_GAPS: dict[str, tuple[str, ...]] = {
    "kernel": (),
    "fuse": (
        "The kernel mounts no overlay here, so fuse-overlayfs does: a process of yours serves the files. Their "
        "names have at most 251 bytes, their paths 4,096.",
    ),
    "copy": (
        "The kernel mounts no overlay here, so the image's files are copied to the disk of the cache for each sandbox: "
        "disk_mb caps single files only.",
    ),
}
"""What sandboxes of images lack, by what makes their files."""


def find_pasta(spec: SandboxSpec) -> str:
    """Return the program that connects a sandbox of tier "namespace", or an empty text for one without network.

    Raises:
        Unsupported: It is not installed.
    """
    if spec.closed:
        return ""
    if found := shutil.which("pasta"):
        return found
    raise Unsupported(
        f"the local backend needs pasta for network={spec.network!r}: install it (Debian and Ubuntu: apt-get install "
        "passt), or use a container backend"
    )


@functools.cache
def delegated_group() -> tuple[str, str]:
    """Return the control group below which sandboxes have theirs, or an empty text and why there is none.

    This process and others of the group move to a group below it.
    """
    return groups.delegated()


def check_cpus(spec: SandboxSpec) -> None:
    """Raise `Unsupported` if the spec limits CPUs and nothing here can."""
    folder, why = delegated_group() if spec.cpus is not None else ("-", "")
    if not folder or (spec.cpus is not None and "cpu" not in groups.controllers(folder)):
        raise Unsupported(
            f"the local backend cannot limit CPUs: {why or f'{folder} lacks the controller cpu'}. Omit `cpus`, use a "
            "container backend, or run in a delegated control group: systemd-run --user --scope -p Delegate=yes COMMAND"
        )


def group_config(spec: SandboxSpec) -> dict[str, object]:
    """Return what the launcher needs to limit a sandbox as a whole; its files count as memory."""
    total = memory_limit(spec) + (spec.disk_mb << 20)
    limits = {"pids.max": str(spec.pids), "memory.max": str(total), "memory.swap.max": "0", "memory.oom.group": "1"}
    if spec.cpus is not None:
        limits["cpu.max"] = f"{max(1000, int(spec.cpus * 100_000))} 100000"
    return {"group": delegated_group()[0], "group_limits": limits}


def process_limits(spec: SandboxSpec, tier: str) -> dict[str, int]:
    """Return the resource limits of a sandbox's processes."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 65536, "RLIMIT_FSIZE": spec.disk_mb << 20}
    if tier == "namespace":
        limits["RLIMIT_NPROC"] = spec.pids  # other tiers would count all of the user's processes
    return limits


def memory_limit(spec: SandboxSpec) -> int:
    """Return the bytes that the processes of a sandbox may use together."""
    return (spec.memory_mb or DEFAULT_MEMORY_MB) << 20


def watched_memory(spec: SandboxSpec, tier: str) -> int:
    """Return what the runner must watch: nothing where a control group limits it."""
    return 0 if tier == "namespace" and delegated_group()[0] else memory_limit(spec)
