"""The processes below this one, as /proc lists them, and signals to them."""

import collections
import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Row = tuple[int, int, int]  # parent, start in clock ticks, session
    Table = dict[int, Row]  # by pid

CROWD = 50  # processes
LISTS_CHILDREN = os.path.exists("/proc/self/task/%d/children" % os.getpid())
TICKS = os.sysconf("SC_CLK_TCK")
CLOCK_BOOTTIME = 7  # time.CLOCK_BOOTTIME needs Python 3.7


def boot_ticks() -> int:
    """Return the time in the unit in which /proc gives the start of a process."""
    try:
        return int(time.clock_gettime(CLOCK_BOOTTIME) * TICKS)
    except OSError:
        return 0


def look_up(pid: int) -> "Row | None":
    """Return the row of a process, or None if it is gone or a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]), int(fields[3]))


def children(pid: int) -> "list[int]":
    """Return the direct children of a process. Empty if it is gone or the kernel lists no children."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def processes() -> "Table":
    """Return all processes below this one, itself included; all of the machine if the kernel lists no children.

    Walking down from this process is fast on a busy machine: little happens between finding a process and killing it.
    """
    if not LISTS_CHILDREN:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
    else:
        pids, todo = [], [os.getpid()]
        while todo:
            pids.append(todo.pop())
            todo += children(pids[-1])
    rows = ((pid, look_up(pid)) for pid in pids)
    return {pid: row for pid, row in rows if row}


def descendants(table: "Table", roots: "Iterable[int]") -> "set[int]":
    """Return `roots` and all processes below them."""
    below = collections.defaultdict(list)
    for pid, (parent, _, _) in table.items():
        below[parent].append(pid)
    found, todo = set(), [pid for pid in roots if pid in table]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(below[pid])
    return found


def below_us(table: "Table", spared: "Iterable[int]" = ()) -> "set[int]":
    """Return all processes below this one except the trees of `spared`."""
    return descendants(table, [os.getpid()]) - {os.getpid()} - descendants(table, spared)


def send_signal(pids: "Iterable[int]", number: int) -> None:
    """Signal every process that still exists."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


@contextlib.contextmanager
def held() -> "Iterator[None]":
    """Stop all processes while we look at a crowd of them, which takes time. Works only as PID 1."""
    crowd = os.getpid() == 1 and sum(name.isdigit() for name in os.listdir("/proc")) > CROWD
    if crowd:
        send_signal([-1], signal.SIGSTOP)
    try:
        yield
    finally:
        if crowd:
            send_signal([-1], signal.SIGCONT)
