"""The processes below this one: as /proc lists them, ended ones collected, whole trees killed, their memory limited.

A limit of each process would count what it reserves (sanitizers and virtual machines reserve terabytes), and not what
many processes use. So this looks at what they use, as often as it may matter, and kills as the kernel would.
"""

import collections
import contextlib
import errno
import os
import select
import signal
import time

from .loop import read_some

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable, TypeVar

    from .loop import Loop

    Started = TypeVar("Started")
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
    """Return the row of a process, or None if it is gone or a zombie. One whose first thread alone ended lives on."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ended = fields[0] in (b"Z", b"X") and int(fields[17]) < 2  # threads
    return None if ended else (int(fields[1]), int(fields[19]), int(fields[3]))


def children(pid: int) -> "list[int]":
    """Return the direct children of a process. Empty if it is gone or the kernel lists no children."""
    found = []
    for task in tasks(pid):
        with contextlib.suppress(OSError), open("/proc/%d/task/%s/children" % (pid, task)) as file:
            found += [int(child) for child in file.read().split()]
    return found


def tasks(pid: int) -> "list[str]":
    """Return the threads of a process. Each may end before it is asked: the others must be asked still."""
    try:
        return os.listdir("/proc/%d/task" % pid)
    except OSError:
        return []


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


def resists(pid: int) -> bool:
    """Whether a process cannot be killed by us: it is another user's."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        return error.errno == errno.EPERM
    return False


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


LONGEST_KILL = 0.7  # seconds
LONGEST_END = 3.0  # seconds, where no deadline presses
FEWEST_LOOKS = 5  # however busy the machine is


class Leader:
    """A process that a request started: a command or a terminal.

    Make it before the process starts: it notes what was running earlier.

    Attributes:
        status: How the process ended, as `os.waitpid` returns it; None while it runs.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.started_ticks = boot_ticks()
        self.earlier = children(os.getpid())
        self.status: int | None = None

    def on_end(self) -> None:
        """Act on the end of the process."""


class Reaper:
    """Collects every child that ends (leaders and orphans handed to us), and kills trees.

    Attributes:
        leaders: The leaders that run, by pid.
        sessions: Sessions of commands that ended and left a process running.
    """

    def __init__(self, loop: "Loop") -> None:
        self.leaders: dict[int, Leader] = {}
        self.sessions: set[int] = set()
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        for number in (signal.SIGCHLD, signal.SIGINT):  # as PID 1 we would get the SIGINT that Python handles
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        loop.watch(wake_read, select.POLLIN, self.on_child)

    def spawn(self, start: "Callable[[], Started]") -> "Started":
        """Start something. If no process or terminal is left, kill what earlier commands left behind and try again."""
        try:
            return start()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOSPC):
                raise
            self.kill_strays()
            return start()

    def on_child(self, fd: int) -> None:
        read_some(fd)
        self.reap()

    def reap(self) -> bool:
        """Collect every child that ended; return whether one did."""
        found = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            found = True
            leader = self.leaders.pop(pid, None)
            if leader:
                leader.status = status
                leader.on_end()

    def forget(self, leader: Leader) -> None:
        """Treat a leader's process, if it still runs, as one that a command left behind."""
        if self.leaders.get(leader.pid) is leader:
            del self.leaders[leader.pid]

    def victims(self, leader: Leader) -> "set[int]":
        """Return the tree of a leader, with what it daemonised.

        A process that cut every tie to its command was handed to us as an orphan. So everything below us counts
        that started after the leader, except the trees of what else is running or was there before, and the
        sessions of commands that have ended and left a server.
        """
        table = processes()
        own = descendants(table, [leader.pid]) if leader.status is None else set()  # else its pid may be another's
        others = [other.pid for other in self.leaders.values() if other is not leader]
        others += [pid for pid in leader.earlier if pid in table and table[pid][1] <= leader.started_ticks]
        self.sessions -= set(table)  # a process with this pid is a new one
        return own | {
            pid
            for pid in below_us(table, spared=others)
            if table[pid][1] >= leader.started_ticks and table[pid][2] not in self.sessions
        }

    def is_others(self, leader: Leader, pid: int) -> bool:
        """Whether a child of ours does not belong to a leader, as far as one look tells."""
        row = look_up(pid)
        if row is None or self.leaders.get(pid, leader) is not leader:
            return True
        return row[1] < leader.started_ticks or pid in leader.earlier or row[2] in self.sessions

    def remember_session(self, pid: int) -> None:
        """Note whether a command that ended left something running in its own session."""
        try:
            os.killpg(pid, 0)
        except OSError:
            return
        self.sessions.add(pid)

    def kill_strays(self, leaders: bool = False) -> bool:
        """Kill everything below us that belongs to no leader, or everything. Return whether nothing can go on."""
        spared = [] if leaders else list(self.leaders)
        if os.getpid() == 1 and not spared:
            self.kill_everyone()
        elif not self.kill_all(lambda: below_us(processes(), spared), spared.__contains__, LONGEST_END):
            return False
        return not any(map(resists, below_us(processes(), spared)))

    def kill_everyone(self) -> None:
        """Kill all other processes at once, which none can outrun, until none is left. Only PID 1 may."""
        end = time.monotonic() + LONGEST_KILL
        while time.monotonic() < end:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                return
            if not self.reap():
                time.sleep(0.001)

    def kill_tree(self, leader: Leader) -> None:
        """Kill a leader's tree until nothing of it is left; it may fork while we look."""
        self.kill_all(lambda: self.victims(leader), lambda pid: self.is_others(leader, pid))

    def kill_all(
        self, find: "Callable[[], set[int]]", spares: "Callable[[int], bool]", most: float = LONGEST_KILL
    ) -> bool:
        """Kill what `find` finds, again and again, until it finds nothing or `most` seconds are over.

        A chain of processes, each of which starts the next one and ends, slips through looks, but each link ends as an
        orphan of ours. So a look in which one ended proves nothing, and its next link is killed as soon as it is read.

        Returns:
            Whether nothing is left that was not killed.
        """
        with held():
            quiet = looks = 0
            killed: set[int] = set()
            end = time.monotonic() + most
            while time.monotonic() < end or looks < FEWEST_LOOKS:
                looks += 1
                victims = find()
                send_signal(victims, signal.SIGSTOP)  # a stopped tree cannot outrun us
                send_signal(victims, signal.SIGKILL)
                ended = self.reap()  # the last zombies still count against the limit of processes
                quiet = 0 if victims or ended else quiet + 1
                if quiet == 3:
                    return True
                new = bool(ended or victims - killed)
                killed |= victims
                if ended:
                    send_signal((pid for pid in children(os.getpid()) if not spares(pid)), signal.SIGKILL)
                else:
                    time.sleep(0.001)  # give the kernel the moment that it needs to end them
            if os.getpid() == 1:  # it forks faster than we look: kill all processes of the sandbox at once
                send_signal([-1], signal.SIGKILL)
                self.reap()
        return os.getpid() == 1 or not new


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
    """Return the sizes of a process in pages: reserved, in memory, and of files; zeros if it is gone.

    A first thread that has ended alone shows nothing; the others do.
    """
    sizes = read_pages("/proc/%d" % pid)
    if not sizes[1]:
        sizes = max((read_pages("/proc/%d/task/%s" % (pid, task)) for task in tasks(pid)), default=sizes)
    return sizes


def read_pages(folder: str) -> "list[int]":
    """Return the sizes of one thread's process; zeros if the thread is gone."""
    try:
        with open(folder + "/statm") as file:
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
