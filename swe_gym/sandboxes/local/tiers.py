"""What each tier of the local backend isolates and what it does not, in words that a user can act on."""

import dataclasses
from typing import Literal

from ...types import Capabilities


@dataclasses.dataclass(frozen=True)
class Tier:
    """One way to isolate a process on this machine.

    Attributes:
        isolates: What it keeps apart, one sentence.
        gaps: What it does not, one sentence each.
        closes_network: Whether `network="none"` really means none.
    """

    isolates: str
    gaps: tuple[str, ...]
    closes_network: bool

    def capabilities(self, name: str, network: Literal["none", "egress"]) -> Capabilities:
        """What a sandbox of this tier offers."""
        return Capabilities(
            backend="local",
            isolation=name,
            network=network if self.closes_network else "open",
            notes=self.gaps,
        )


TIERS = {
    "namespace": Tier(
        isolates=(
            "A root file system of its own (copy-on-write, the host's home, accounts, keys and sockets are not in it), "
            "processes, IPC, network and user of its own."
        ),
        gaps=(
            "It shares the host's kernel: it does not stop an exploit of the kernel, and other limits of the kernel "
            "(open files, inotify watches) are shared with the host's user.",
            "Memory is capped per process (memory_mb), not in total, and not what processes share; the sandbox's files "
            "lie in memory, up to disk_mb. CPU is not capped.",
            "The host's /usr and the Python installation in use can be read, and mount points and /proc tell facts "
            "about the machine: paths of these, its kernel, its load.",
            'With network="egress" servers on the host\'s loopback can be reached, and before Linux 6.12 its abstract '
            "unix sockets too.",
            "Where the host's user is not root, folders of a workspace of more than 2,000 files or 32 MiB can be moved "
            "(`mv`), but not renamed (`git mv`, os.rename).",
            "Where the host's user is root, the process count is capped on Linux 6.14 and later only, "
            "and up to 300 more than `pids` are let through.",
        ),
        closes_network=True,
    ),
    "landlock": Tier(
        isolates=(
            "Writes go to the sandbox's own folder only; reads to it, the system and the Python in use; "
            'no sockets but pairs (with network="egress": TCP and UDP); other processes cannot be inspected, nor '
            "signalled (Linux 6.12)."
        ),
        gaps=(
            "The workspace lies in a temporary folder of the host, not at the task's workdir.",
            "Loopback is closed with the network, and unix sockets that have a name cannot be used at all; neither can "
            "commands make terminals (`script`, pexpect).",
            "Processes of the host can be seen, and yours be hindered: their limits lowered.",
            "System V's IPC and POSIX message queues cannot be used: what they hold would outlive the sandbox.",
            "What a sandbox leaves running is found by parentage only, and a command can kill what runs it: the "
            "sandbox is lost then. A rollout judges that 0 when it happens again.",
            "Disk is capped per file, memory per process; process count and CPU are not capped.",
            "/tmp and /dev/shm cannot be written to; TMPDIR points to the sandbox's own folder.",
            "Modes and times of any file that your user owns can be changed, though not their content: as root do not "
            "trust it with hostile code.",
            "Where swe_gym is installed into the base Python and not into a virtual environment, the bundled tasks' "
            "gold patches can be read.",
        ),
        closes_network=True,
    ),
    "process": Tier(
        isolates="Nothing but the working folder: commands run as you. For code that you trust.",
        gaps=(
            "It isolates nothing: commands can read, write and signal whatever you can.",
            "The workspace lies in a temporary folder of the host, not at the task's workdir.",
            "The network is open.",
            "Disk is capped per file, memory per process; process count and CPU are not capped.",
        ),
        closes_network=False,
    ),
}
