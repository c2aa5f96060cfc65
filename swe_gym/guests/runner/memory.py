"""The memory of all processes of a sandbox together, where no control group limits it.

A limit of each process would count what it reserves (sanitizers and virtual machines reserve terabytes), and not what
many processes use. So this looks at what they use, as often as it may matter, and kills as the kernel would.
"""

import os
import signal
import time

from .processes import below_us, children, processes, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop

PERIOD = 0.025  # seconds between two looks while processes run
LARGEST_SHARE = 0.05  # of the time, if there are many processes
PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Kills the largest process while all of them use more than a limit.

    Attributes:
        limit: Bytes; 0 is no limit.
    """

    def __init__(self, loop: "Loop") -> None:
        self.limit = 0
        self.next = 0.0
        loop.timed.append(self)

    def deadlines(self) -> "list[float]":
        if not (self.limit and children(os.getpid())):
            self.next = 0.0
            return []
        self.next = self.next or time.monotonic() + PERIOD
        return [self.next]

    def check(self, now: float) -> None:
        if self.next and now >= self.next:
            self.look()
            done = time.monotonic()
            self.next = done + max(PERIOD, (done - now) / LARGEST_SHARE)

    def look(self) -> None:
        """Kill the largest process if all use too much. What is mapped bounds what is used, and is told faster."""
        below = below_us(processes())
        if sum(mapped(pid) for pid in below) <= self.limit:
            return
        sizes = {pid: used(pid) for pid in below}
        if sum(sizes.values()) > self.limit:
            send_signal([max(sizes, key=lambda pid: sizes[pid])], signal.SIGKILL)


def mapped(pid: int) -> int:
    """Return the bytes of a process that are in memory, those that it shares with others included."""
    return pages(pid)[1] * PAGE


def pages(pid: int) -> "list[int]":
    """Return the sizes of a process in pages: reserved, in memory, and of files; zeros if it is gone."""
    try:
        with open("/proc/%d/statm" % pid) as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return [0, 0, 0]


def used(pid: int) -> int:
    """Return the bytes that are a process's own; what forks share is divided among them, if the kernel tells."""
    try:
        with open("/proc/%d/smaps_rollup" % pid) as file:
            for line in file:
                if line.startswith("Pss_Anon:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # another user's, or it hides its memory
    _, resident, shared = pages(pid)[:3]
    return (resident - shared) * PAGE
