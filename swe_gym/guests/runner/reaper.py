"""Collecting ended processes, and killing whole process trees."""

import errno
import os
import select
import signal
import time

from .loop import read_some
from .processes import below_us, boot_ticks, children, descendants, held, processes, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, TypeVar

    from .loop import Loop

    Started = TypeVar("Started")

LONGEST_KILL = 0.7  # seconds
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

    def remember_session(self, pid: int) -> None:
        """Note whether a command that ended left something running in its own session."""
        try:
            os.killpg(pid, 0)
        except OSError:
            return
        self.sessions.add(pid)

    def kill_strays(self, leaders: bool = False) -> None:
        """Kill everything below us that belongs to no leader, or everything."""
        self.kill_all(lambda: below_us(processes(), spared=[] if leaders else list(self.leaders)))

    def kill_tree(self, leader: Leader) -> None:
        """Kill a leader's tree until nothing of it is left; it may fork while we look."""
        self.kill_all(lambda: self.victims(leader))

    def kill_all(self, find: "Callable[[], Iterable[int]]") -> None:
        """Kill what `find` finds, again and again, until it finds nothing or time is up."""
        with held():
            quiet = looks = 0
            end = time.monotonic() + LONGEST_KILL
            while time.monotonic() < end or looks < FEWEST_LOOKS:
                looks += 1
                victims = find()
                quiet = 0 if victims else quiet + 1
                if quiet == 3:  # a process that keeps forking may slip through a single look
                    self.reap()  # the last zombies still count against the limit of processes
                    return
                send_signal(victims, signal.SIGSTOP)  # a stopped tree cannot outrun us
                send_signal(victims, signal.SIGKILL)
                if not self.reap():
                    time.sleep(0.001)  # give the kernel the moment that it needs to end them
            if os.getpid() == 1:  # it forks faster than we look: kill all processes of the sandbox at once
                send_signal([-1], signal.SIGKILL)
                self.reap()
