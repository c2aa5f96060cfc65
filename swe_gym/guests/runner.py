"""The program inside every sandbox: runs commands, reads and writes files, holds terminals.

It speaks the frames of `protocol` over its standard input and output, is a single thread around one poll loop, and
needs nothing but Python >= 3.6. Standard input at its end is the order to die: whatever runs is killed first.
"""

import collections
import contextlib
import errno
import fcntl
import fnmatch
import functools
import hashlib
import io
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import termios
import time

from .gitignore import LONGEST_RULES, Rules
from .protocol import Decoder, encode

CHUNK = 1 << 16
CHUNK_OF_FILE = 1 << 20
PTY_KEEP = 1 << 20
SLICE = 0.02  # seconds that an operation works on before others get their turn
LONGEST_POLL = 1e6  # seconds; poll takes milliseconds in 31 bits
LONGEST_KILL = 0.7  # seconds
FEWEST_LOOKS = 5  # however busy the machine is
CROWD = 50  # processes
LONGEST_NAMES = 16 << 20  # bytes of a manifest's paths: what is longer fits into no frame
LISTS_CHILDREN = os.path.exists("/proc/self/task/%d/children" % os.getpid())
LONGEST_ARGUMENT = 128 * 1024  # the kernel's limit of one argument, its final NUL included
TICKS = os.sysconf("SC_CLK_TCK")
CLOCK_BOOTTIME = 7  # time.CLOCK_BOOTTIME came with Python 3.7


def boot_ticks():
    """Now, in the unit in which /proc gives the start of a process."""
    try:
        return int(time.clock_gettime(CLOCK_BOOTTIME) * TICKS)
    except OSError:
        return 0


def look_up(pid):
    """(parent, start in ticks, session) of a process; None where it is gone or a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]), int(fields[3]))


def children(pid):
    """The direct children of a process, as far as it lives and the kernel lists them."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def processes():
    """pid -> (parent, start in ticks, session) of all that lives below us; where the kernel lists no children, of all.

    Going down from us costs little however much else runs on the machine, and so little passes between
    finding a process and killing it.
    """
    if not LISTS_CHILDREN:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
        return {pid: row for pid, row in ((pid, look_up(pid)) for pid in pids) if row}
    table, todo = {}, [os.getpid()]
    while todo:
        pid = todo.pop()
        table[pid] = look_up(pid)
        todo += children(pid)
    return {pid: row for pid, row in table.items() if row}


def descendants(table, roots):
    """All of `roots` and what they started, as far as parents tell."""
    children = collections.defaultdict(list)
    for pid, (parent, _, _) in table.items():
        children[parent].append(pid)
    found, todo = set(), [pid for pid in roots if pid in table]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children[pid])
    return found


def below_us(table, spared=()):
    """All that we started but the trees of `spared`."""
    return descendants(table, [os.getpid()]) - {os.getpid()} - descendants(table, spared)


def send_signal(pids, number):
    """Signal each; those that are gone do not matter."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


@contextlib.contextmanager
def held():
    """Stop a crowd while we look at it: looking takes time, of which it leaves us little. Only PID 1 can do that."""
    crowd = os.getpid() == 1 and sum(name.isdigit() for name in os.listdir("/proc")) > CROWD
    if crowd:
        send_signal([-1], signal.SIGSTOP)
    try:
        yield
    finally:
        if crowd:
            send_signal([-1], signal.SIGCONT)


def shorten(argv):
    """A shell line that is too long for an argument is read from a file; returns arguments and that file or None."""
    if argv[:2] != ["bash", "-c"] or len(argv) > 3 or len(os.fsencode(argv[2])) < LONGEST_ARGUMENT:
        return argv, None
    script = os.fdopen(os.memfd_create("script"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()
    script.write(os.fsencode(argv[2]))
    script.seek(0)
    return ["bash", "-c", 'eval "$(cat <&%d)" %d<&-' % (script.fileno(), script.fileno())], script


def open_regular(path, flags=0):
    """Open a file to read. A pipe or a device, even one put there a moment ago, is refused and never waited for."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise IsADirectoryError(errno.EISDIR, "not a regular file")
    return file


class Capture:
    """The head and the tail of a stream, at most `limit` bytes, and how much was cut between them."""

    def __init__(self, limit):
        self.head_limit = limit // 4
        self.tail_limit = limit - self.head_limit
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data):
        self.total += len(data)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * self.tail_limit + CHUNK:  # cut rarely, so that a flood costs little
            del self.tail[: len(self.tail) - self.tail_limit]

    def result(self):
        tail = bytes(self.tail[max(0, len(self.tail) - self.tail_limit) :])
        data = bytes(self.head) + tail
        return data, self.total - len(data)


class Command:
    """One running command: its leader, its pipes, its deadline."""

    def __init__(self, request, stdin):
        limit = request["max_output"]
        self.id = request["id"]
        self.grace = request["grace"]
        self.started = time.monotonic()
        self.started_ticks = boot_ticks()
        self.earlier = children(os.getpid())
        self.deadline = self.started + request["limit"]
        self.timed_out = False
        self.kill_at = None
        self.status = None
        merge = request["merge"]
        argv, script = shorten(request["argv"])
        self.process = subprocess.Popen(
            argv,
            pass_fds=[script.fileno()] if script else [],
            cwd=request["cwd"],
            env=request["env"],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        if script:
            script.close()
        self.pid = self.process.pid
        self.stdin = memoryview(stdin)
        self.captures = {self.process.stdout: Capture(limit)}  # by pipe: a number would be reused once closed
        if not merge:
            self.captures[self.process.stderr] = Capture(limit)
        for pipe in list(self.captures) + ([self.process.stdin] if stdin else []):
            os.set_blocking(pipe.fileno(), False)


class Terminal:
    """One process on a pseudo-terminal, what it printed, and who waits for more of it."""

    def __init__(self, pid, fd, started_ticks, earlier):
        self.pid = pid
        self.fd = fd
        self.started_ticks = started_ticks
        self.earlier = earlier
        self.buffer = bytearray()
        self.pending = bytearray()
        self.searched = 0
        self.status = None  # until it ended
        self.waiting = None  # (request id, marker, deadline)


class Manifest:
    """A list of the files of a tree, in steps: path -> [mode, size, digest, link target or None, what ignores it].

    Files that nothing ignores come first, so that ignored ones never keep them from being listed. What ignores a file
    is the outermost ignored folder above it, or the file itself: named by a `.gitignore`, or a virtual environment.

    Args:
        root: The folder.
        request: `exclude`, `max_files`, `max_ignored` and `max_hashed`, as `Sandbox.manifest` describes them.
    """

    def __init__(self, root, request):
        self.root = root
        self.exclude = request["exclude"]
        self.max_files = request["max_files"]
        self.max_ignored = request["max_ignored"]
        self.unhashed = float("inf") if request["max_hashed"] is None else request["max_hashed"]  # bytes left to hash
        self.entries = {}
        self.ignored = 0
        self.names = 0
        self.todo = [("", None, "")]  # (folder, rules, what ignores it)
        self.later = []  # the same, of ignored folders

    def add_named(self, payload):
        """List only files of these names, NUL between them; those that are there and lie behind no link."""
        root = os.path.realpath(self.root)
        for name in os.fsdecode(payload).split("\0"):
            yield
            path = os.path.join(root, name)
            if os.path.realpath(os.path.dirname(path)) == os.path.dirname(path):
                yield from self.add(name, "")

    def add_all(self):
        while self.todo or (self.later and self.has_room("ignored")):
            yield
            yield from self.add_folder(*(self.todo or self.later).pop())

    def add_folder(self, folder, rules, ignored):
        if self.max_ignored is not None and not ignored:
            rules = self.read_rules(folder, rules)
            ignored = folder if self.is_environment(folder) else ""
        for entry in self.list_folder(os.path.join(self.root, folder)):
            yield
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in self.exclude):
                continue
            name = os.path.join(folder, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            cause = ignored or (name if rules and rules.ignore(name, is_folder) else "")
            if not self.has_room(cause):
                continue
            if is_folder:
                (self.later if cause else self.todo).append((name, rules, cause))
            else:
                yield from self.add(name, cause)

    def has_room(self, ignored):
        return not ignored or self.ignored < self.max_ignored

    def add(self, name, ignored):
        row = yield from self.describe(os.path.join(self.root, name))
        if not row:
            return
        self.entries[name] = row + [ignored]
        self.ignored += bool(ignored)
        self.names += len(name) + len(row[3] or "") + len(ignored)
        if len(self.entries) - self.ignored > self.max_files or self.names > LONGEST_NAMES:
            raise OSError(errno.EFBIG, "more than %d files, or too long paths" % self.max_files)

    def read_rules(self, folder, above):
        """The rules of a folder: those above it, and those of its own `.gitignore`."""
        try:
            with open_regular(os.path.join(self.root, folder, ".gitignore"), os.O_NOFOLLOW) as file:
                return Rules(folder, os.fsdecode(file.read(LONGEST_RULES)), above)
        except OSError:
            return above

    def is_environment(self, folder):
        """Whether a folder below the root is a virtual environment: it says so, and has a Python of its own."""
        path = os.path.join(self.root, folder)
        pythons = ("bin/python", "Scripts/python.exe")
        return (
            folder != ""
            and os.path.lexists(os.path.join(path, "pyvenv.cfg"))
            and any(os.path.lexists(os.path.join(path, python)) for python in pythons)
        )

    @staticmethod
    def list_folder(path):
        """The entries of a folder; nothing where it was removed or replaced meanwhile."""
        try:
            return os.scandir(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def describe(self, path):
        """[mode, size, digest, link target or None] in steps; None for what is neither file nor link, or gone."""
        try:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                target = os.readlink(path)
                digest = hashlib.sha256(os.fsencode(target)).hexdigest()
                return [stat.S_IMODE(info.st_mode), info.st_size, digest, target]
            if not stat.S_ISREG(info.st_mode):
                return None
            if info.st_size > self.unhashed:
                return [stat.S_IMODE(info.st_mode), info.st_size, "", None]
            self.unhashed -= info.st_size
            with open_regular(path, os.O_NOFOLLOW) as file:
                info = os.fstat(file.fileno())
                digest, left = hashlib.sha256(), info.st_size
                while left > 0:  # no further than it was long: it may grow for ever
                    chunk = file.read(min(CHUNK_OF_FILE, left))
                    if not chunk:
                        break
                    digest.update(chunk)
                    left -= len(chunk)
                    yield
                return [stat.S_IMODE(info.st_mode), info.st_size, digest.hexdigest(), None]
        except PermissionError:
            return [stat.S_IMODE(info.st_mode), info.st_size, "unreadable", None]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL):
                return None  # something else by now: it changes while we look
            raise


class Job:
    """An operation that takes long, as a generator of its steps."""

    def __init__(self, request, steps):
        self.request = request
        self.steps = steps
        self.deadline = time.monotonic() + request["limit"]

    def advance(self):
        """Take steps for a moment; return whether there are more."""
        pause = time.monotonic() + SLICE
        for _ in self.steps:
            now = time.monotonic()
            if now > self.deadline:
                raise OSError(errno.ETIMEDOUT, "took longer than %g s" % self.request["limit"])
            if now > pause:
                return True
        return False


class Runner:
    """The poll loop and the operations."""

    def __init__(self, source, sink, fork_terminal, unprotected):
        self.source = source
        self.sink = sink
        self.fork_terminal = fork_terminal
        self.unprotected = unprotected
        self.decoder = Decoder()
        self.outgoing = bytearray()
        self.poll = select.poll()
        self.handlers = {}
        self.commands = {}
        self.terminals = {}
        self.jobs = []
        self.sessions = set()
        self.expires = None
        self.alive = True
        wake_read, wake_write = os.pipe()
        for fd in (source, sink, wake_read, wake_write):
            os.set_blocking(fd, False)
        for number in (signal.SIGCHLD, signal.SIGINT):  # as PID 1 we would get the SIGINT that Python handles
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self.watch(source, select.POLLIN, self.on_request_bytes)
        self.watch(wake_read, select.POLLIN, self.on_child)

    # --- the loop -------------------------------------------------------------------------------------

    def run(self):
        while self.alive:
            for fd, _ in self.poll.poll(self.next_timer()):
                handler = self.handlers.get(fd)
                if handler:
                    handler(fd)
            self.on_timers()
            self.jobs = [job for job in self.jobs if self.attempt(job.request, job.advance)]

    def watch(self, fd, events, handler):
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd):
        if self.handlers.pop(fd, None):
            self.poll.unregister(fd)

    def next_timer(self):
        if self.jobs:
            return 0
        times = [command.kill_at or command.deadline for command in self.commands.values()]
        times += [terminal.waiting[2] for terminal in self.terminals.values() if terminal.waiting]
        if self.expires:
            times.append(self.expires)
        left = min(times) - time.monotonic() if times else LONGEST_POLL
        return int(max(0, min(left, LONGEST_POLL)) * 1000) + 1

    def on_timers(self):
        now = time.monotonic()
        for command in list(self.commands.values()):
            if command.pid not in self.commands:
                continue  # ended while another one was killed
            if command.kill_at is not None and now >= command.kill_at:
                self.kill(command)
                self.finish(command)
            elif command.kill_at is None and now >= command.deadline:
                command.timed_out = True
                command.kill_at = now + command.grace
                with held():
                    victims = self.victims(command)
                    send_signal(victims, signal.SIGTERM)
                send_signal(victims, signal.SIGCONT)
        for terminal in self.terminals.values():
            if terminal.waiting and now >= terminal.waiting[2]:
                self.answer_read(terminal, found=False)
        if self.expires and now >= self.expires:
            self.send({"event": "expired"})
            self.alive = False

    # --- frames -----------------------------------------------------------------------------------------

    def on_request_bytes(self, fd):
        try:
            data = os.read(fd, 1 << 20)
        except BlockingIOError:
            return
        if not data:
            self.alive = False
            return
        for request, payload in self.decoder.feed(data):
            self.serve(request, payload)

    def serve(self, request, payload):
        """Carry out a request, or begin to: what takes long is done in turn with all else, step by step."""
        steps = self.attempt(request, lambda: getattr(self, "op_" + request["op"])(request, payload))
        if steps:
            self.jobs.append(Job(request, steps))

    def attempt(self, request, work):
        """What `work` returns; where it fails the request is answered with that, and None returned."""
        try:
            return work()
        except OSError as error:
            name = errno.errorcode.get(error.errno, "EIO")
            self.reply(request, {"error": [name, "%s" % (error.strerror or error)]})
        except Exception as error:  # noqa: BLE001  a bad request must not end the sandbox
            self.reply(request, {"error": ["BadRequest", "%s: %s" % (type(error).__name__, error)]})

    def reply(self, request, message, payload=b""):
        message["id"] = request["id"]
        self.send(message, payload)

    def send(self, message, payload=b""):
        self.outgoing += encode(message, payload)
        self.flush()

    def flush(self, _=None):
        try:
            while self.outgoing:
                sent = os.write(self.sink, self.outgoing[: 1 << 20])
                del self.outgoing[:sent]
        except BlockingIOError:
            if self.sink not in self.handlers:
                self.watch(self.sink, select.POLLOUT, self.flush)
            return
        except OSError:
            self.alive = False  # nobody listens any more
        self.unwatch(self.sink)

    # --- commands -----------------------------------------------------------------------------------------

    def op_hello(self, request, _):
        """Set limits and the time to live; say who we are."""
        for name, value in request["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        self.expires = time.monotonic() + request["ttl"]
        self.reply(request, {"python": "%d.%d.%d" % sys.version_info[:3], "unprotected": self.unprotected})

    def op_environ(self, request, _):
        """What this process was started with, and with it what an image sets."""
        self.reply(request, {}, b"\0".join(b"%s=%s" % pair for pair in os.environb.items()))

    def op_exec(self, request, payload):
        try:
            command = self.spawn(lambda: Command(request, payload))
        except (OSError, ValueError) as error:
            self.reply_not_started(request, error)
            return
        self.commands[command.pid] = command
        for pipe in command.captures:
            self.watch(pipe.fileno(), select.POLLIN, functools.partial(self.on_output, command, pipe))
        if command.process.stdin:
            self.watch(command.process.stdin.fileno(), select.POLLOUT, lambda fd: self.on_input(command))

    def op_end_processes(self, request, _):
        self.kill_all(self.strays)
        self.reply(request, {})

    def spawn(self, start):
        """Start something. Where no process or terminal is left, what earlier commands left behind makes room."""
        try:
            return start()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOSPC):
                raise
            self.kill_all(self.strays)
            return start()

    def reply_not_started(self, request, error):
        """A command that cannot be started is a result, with the exit code that a shell would give."""
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        what = request["argv"][0]
        if missing and not os.path.isdir(request["cwd"]):
            what = request["cwd"]
        reason = getattr(error, "strerror", None) or str(error)
        text = ("%s: %s\n" % (what, reason)).encode("utf-8", "replace")
        message = {"exit_code": 127 if missing else 126, "signal": None, "timed_out": False, "duration": 0.0}
        message.update(stdout=len(text) if request["merge"] else 0, stdout_dropped=0, stderr_dropped=0)
        self.reply(request, message, text)

    def on_output(self, command, pipe, fd):
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            command.captures[pipe].add(data)
        else:
            self.close_pipe(pipe)

    def close_pipe(self, pipe):
        if not pipe.closed:
            self.unwatch(pipe.fileno())
            pipe.close()

    def on_input(self, command):
        fd = command.process.stdin.fileno()
        try:
            sent = os.write(fd, command.stdin[:CHUNK])
            command.stdin = command.stdin[sent:]
        except BlockingIOError:
            return
        except OSError:
            command.stdin = command.stdin[:0]  # the command closed its end
        if not command.stdin:
            self.close_pipe(command.process.stdin)

    def on_child(self, fd):
        try:
            os.read(fd, CHUNK)
        except BlockingIOError:
            pass
        self.reap()

    def reap(self, being_killed=None):
        """Collect every child that ended (leaders, terminals, orphans handed to us); return whether one did."""
        found = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            found = True
            self.note_dead(pid, status, being_killed)

    def finish(self, command):
        """Reply with what came until now; keep draining pipes that background processes hold."""
        del self.commands[command.pid]
        payload, dropped = [], []
        for pipe, capture in command.captures.items():
            if not pipe.closed:
                self.drain(pipe.fileno(), capture)
                self.watch(pipe.fileno(), select.POLLIN, functools.partial(self.discard, pipe))
            data, cut = capture.result()
            payload.append(data)
            dropped.append(cut)
        if command.process.stdin:
            self.close_pipe(command.process.stdin)
        self.remember_session(command)
        status = command.status
        signaled = status is None or os.WIFSIGNALED(status)
        number = signal.SIGKILL if status is None else os.WTERMSIG(status)
        self.send(
            {
                "id": command.id,
                "exit_code": None if signaled else os.WEXITSTATUS(status),
                "signal": int(number) if signaled else None,
                "timed_out": command.timed_out,
                "duration": time.monotonic() - command.started,
                "stdout": len(payload[0]),
                "stdout_dropped": dropped[0],
                "stderr_dropped": dropped[1] if len(dropped) > 1 else 0,
            },
            b"".join(payload),
        )

    def drain(self, fd, capture):
        """Take what already lies in the pipe, and no more than it can hold, for a child may go on writing."""
        for _ in range(64):
            try:
                data = os.read(fd, CHUNK)
            except OSError:
                return
            if not data:
                return
            capture.add(data)

    def discard(self, pipe, fd):
        try:
            if os.read(fd, CHUNK):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close_pipe(pipe)

    # --- killing --------------------------------------------------------------------------------------------

    def victims(self, owner):
        """The tree of a command or a terminal, with what it daemonised.

        A process that cut every tie to its command was handed to us as an orphan. So everything below us counts
        that started after the owner, except the trees of what else is running or was there before, and the
        sessions of commands that have ended and left a server.
        """
        table = processes()
        own = descendants(table, [owner.pid]) if owner.status is None else set()  # else its pid may be another's
        others = [other.pid for other in self.running() if other is not owner]
        others += [pid for pid in owner.earlier if pid in table and table[pid][1] <= owner.started_ticks]
        self.sessions -= set(table)  # whoever has this pid now is somebody new
        return own | {
            pid
            for pid in below_us(table, spared=others)
            if table[pid][1] >= owner.started_ticks and table[pid][2] not in self.sessions
        }

    def remember_session(self, command):
        """Note whether a command that ended left something running in its own session."""
        try:
            os.killpg(command.pid, 0)
        except OSError:
            return
        self.sessions.add(command.pid)

    def running(self):
        owners = list(self.commands.values()) + list(self.terminals.values())
        return [owner for owner in owners if owner.status is None]

    def strays(self):
        """Everything below us that belongs to nothing that is running."""
        return below_us(processes(), spared=[owner.pid for owner in self.running()])

    def kill(self, command):
        """Kill the command's tree until nothing of it is left; it may fork while we look."""
        try:
            os.killpg(command.pid, signal.SIGKILL)
        except OSError:
            pass
        self.kill_all(lambda: self.victims(command), command)

    def kill_all(self, find, command=None):
        """Kill what `find` finds, again and again, until it finds nothing or time is up."""
        with held():
            quiet = looks = 0
            end = time.monotonic() + LONGEST_KILL
            while time.monotonic() < end or looks < FEWEST_LOOKS:
                looks += 1
                victims = find()
                quiet = 0 if victims else quiet + 1
                if quiet == 3:  # what forks on and on may slip through a single look
                    self.reap(command)  # the last zombies still count against the limit of processes
                    return
                send_signal(victims, signal.SIGSTOP)  # a stopped tree cannot outrun us
                send_signal(victims, signal.SIGKILL)
                if not self.reap(command):
                    time.sleep(0.001)  # they were told to die: give the kernel the moment it needs
            if os.getpid() == 1:  # it forks faster than we look: all that lives beside us dies at one blow
                send_signal([-1], signal.SIGKILL)
                self.reap(command)

    def note_dead(self, pid, status, being_killed=None):
        """A child ended: reply for a leader, unless its killer does that."""
        command = self.commands.get(pid)
        if command:
            command.status = status
            command.process.returncode = 0  # reaped here, so Popen must not wait for it
            if command is not being_killed:
                if command.timed_out:
                    self.kill(command)
                self.finish(command)
        for terminal in self.terminals.values():
            if terminal.pid == pid and terminal.status is None:
                self.on_terminal_end(terminal, status)

    # --- files ------------------------------------------------------------------------------------------------

    def op_read(self, request, _):
        data = bytearray()
        with open_regular(request["path"]) as file:
            size = os.fstat(file.fileno()).st_size
            while size <= request["max_bytes"]:  # files of /proc have no size, others grow
                chunk = file.read(CHUNK_OF_FILE)
                if not chunk:
                    break
                data += chunk
                size = max(size, len(data))
                yield
        if size > request["max_bytes"]:
            raise OSError(errno.EFBIG, "larger than %d bytes" % request["max_bytes"])
        self.reply(request, {}, data)

    def op_write(self, request, payload):
        path = os.path.realpath(request["path"])
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        mode = request["mode"]
        if mode is None:
            mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o644
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        temporary = os.path.join(folder, ".swe-gym-%s" % os.urandom(8).hex())  # which nobody can have taken before
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(payload)
                os.fchmod(file.fileno(), mode)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        self.reply(request, {})

    def op_put_tar(self, request, payload):
        root = os.path.realpath(request["path"])
        try:
            archive = tarfile.open(fileobj=io.BytesIO(payload), mode="r:*")
        except tarfile.TarError as error:
            raise OSError(errno.EINVAL, "not a tar archive: %s" % error)
        with archive:
            members = archive.getmembers()
            links = set()
            for member in members:
                self.check_member(root, member, links)
            os.makedirs(root, exist_ok=True)
            for member in members:
                self.make_way(os.path.join(root, member.name), member)
            archive.extractall(root, members=members, **self.tar_options())
        self.reply(request, {})

    @staticmethod
    def tar_options():
        """Members were checked; newer Pythons want to hear that we mean it."""
        return {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}

    @staticmethod
    def check_member(root, member, links):
        """Refuse what could write outside of `root`, or make a device. A symbolic link may point anywhere."""
        names = [os.path.normpath(name) for name in [member.name] + [member.linkname] * member.islnk()]
        harmless = member.isreg() or member.isdir() or member.issym() or member.islnk()
        for name in names:
            parts = name.split("/")
            folder = os.path.realpath(os.path.join(root, name if member.isdir() else os.path.dirname(name)))
            inside = parts[0] != ".." and (folder + "/").startswith(root.rstrip("/") + "/")
            through_link = any("/".join(parts[:count]) in links for count in range(1, len(parts) + 1))
            if through_link or not (inside and harmless):
                message = "refused member %r: it leads out of the folder or is a device" % member.name
                raise OSError(errno.EINVAL, message)
        if member.issym():
            links.add(names[0])

    @staticmethod
    def make_way(path, member):
        """Remove what a member replaces: writing to a link would change what it points to."""
        if not member.isdir() and os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)

    def op_get_tar(self, request, _):
        root = request["path"]
        if not os.path.isdir(root):
            raise NotADirectoryError(errno.ENOTDIR if os.path.exists(root) else errno.ENOENT, "not a directory")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for folder, folders, files in os.walk(root):
                folders.sort()
                for name in sorted(folders) + sorted(files):
                    path = os.path.join(folder, name)
                    info = archive.gettarinfo(path, os.path.relpath(path, root))
                    if info is None:
                        continue
                    if buffer.tell() + info.size > request["max_bytes"]:
                        raise OSError(errno.EFBIG, "larger than %d bytes" % request["max_bytes"])
                    if info.isreg():
                        with open_regular(path, os.O_NOFOLLOW) as file:
                            archive.addfile(info, file)
                    else:
                        archive.addfile(info)
                    yield
        self.reply(request, {}, buffer.getvalue())

    def op_manifest(self, request, payload):
        root = request["path"]
        if not os.path.isdir(root):
            raise NotADirectoryError(errno.ENOTDIR if os.path.exists(root) else errno.ENOENT, "not a directory")
        listing = Manifest(root, request)
        yield from listing.add_named(payload) if request["only"] else listing.add_all()
        self.reply(request, {"entries": listing.entries})

    # --- terminals ------------------------------------------------------------------------------------------

    def op_pty_open(self, request, _):
        if not os.path.isdir(request["cwd"]) or not shutil.which(request["argv"][0], path=request["env"].get("PATH")):
            raise FileNotFoundError(errno.ENOENT, "no such directory or command")
        started_ticks, earlier = boot_ticks(), children(os.getpid())
        pid, fd = self.start_terminal(request)
        os.set_blocking(fd, False)
        terminal = Terminal(pid, fd, started_ticks, earlier)
        self.terminals[request["id"]] = terminal
        self.watch(fd, select.POLLIN, lambda fd: self.on_terminal(terminal))
        self.reply(request, {})

    def start_terminal(self, request):
        """Fork, and wait until the terminal is as asked: what is typed into it sooner would be echoed."""
        ends = os.pipe()
        with open(ends[0], "rb", 0) as ready, open(ends[1], "wb", 0) as starting:
            pid, fd = self.spawn(self.fork_terminal)
            if pid == 0:
                self.become_terminal_process(request)
            starting.close()
            ready.read(1)  # its end: `exec` closes what the process had of the pipe
        return pid, fd

    @staticmethod
    def become_terminal_process(request):
        try:
            attributes = termios.tcgetattr(0)
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(0, termios.TCSANOW, attributes)
            size = b"".join(number.to_bytes(2, sys.byteorder) for number in (request["rows"], request["columns"], 0, 0))
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for name in ("SIGPIPE", "SIGXFSZ"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            os.chdir(request["cwd"])
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        finally:
            os._exit(127)

    def on_terminal(self, terminal):
        try:
            data = os.read(terminal.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.unwatch(terminal.fd)
            self.reap()  # the end of the output and the end of the process come in either order
        terminal.buffer += data
        if len(terminal.buffer) > 2 * PTY_KEEP:
            cut = len(terminal.buffer) - PTY_KEEP
            del terminal.buffer[:cut]
            terminal.searched = max(0, terminal.searched - cut)
        self.check_terminal(terminal)

    def on_terminal_end(self, terminal, status):
        terminal.status = status
        try:
            while True:
                data = os.read(terminal.fd, CHUNK)
                if not data:
                    break
                terminal.buffer += data
                if len(terminal.buffer) > 4 * PTY_KEEP:
                    break
        except OSError:
            pass
        self.check_terminal(terminal)

    def check_terminal(self, terminal):
        """Answer a waiting read when its marker came or nothing more will come."""
        if not terminal.waiting:
            return
        marker = terminal.waiting[1]
        start = max(0, terminal.searched - len(marker) + 1)
        position = terminal.buffer.find(marker, start)
        if position >= 0:
            self.answer_read(terminal, found=True, end=position + len(marker))
        elif terminal.status is not None:
            self.answer_read(terminal, found=False)
        else:
            terminal.searched = len(terminal.buffer)

    def answer_read(self, terminal, found, end=None):
        identifier = terminal.waiting[0]
        terminal.waiting = None
        end = len(terminal.buffer) if end is None else end
        data = bytes(terminal.buffer[max(0, end - PTY_KEEP) : end])
        del terminal.buffer[:end]
        terminal.searched = 0
        self.send({"id": identifier, "found": found, "exit_code": self.exit_code(terminal)}, data)

    @staticmethod
    def exit_code(terminal):
        status = terminal.status
        if status is None:
            return None
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def op_pty_read(self, request, payload):
        terminal = self.terminals[request["pty"]]
        if terminal.waiting:
            raise OSError(errno.EBUSY, "another call reads from this terminal")
        terminal.waiting = (request["id"], payload, time.monotonic() + request["limit"])
        terminal.searched = 0
        self.check_terminal(terminal)

    def op_pty_write(self, request, payload):
        terminal = self.terminals[request["pty"]]
        terminal.pending += payload
        self.feed_terminal(terminal)
        self.reply(request, {})

    def feed_terminal(self, terminal):
        try:
            while terminal.pending and terminal.status is None:
                sent = os.write(terminal.fd, terminal.pending[:1024])
                del terminal.pending[:sent]
        except BlockingIOError:
            self.watch(terminal.fd, select.POLLIN | select.POLLOUT, lambda fd: self.on_terminal_ready(terminal))
            return
        except OSError:
            terminal.pending.clear()
        if terminal.status is None:
            self.watch(terminal.fd, select.POLLIN, lambda fd: self.on_terminal(terminal))

    def on_terminal_ready(self, terminal):
        self.on_terminal(terminal)
        self.feed_terminal(terminal)

    def op_pty_signal(self, request, _):
        terminal = self.terminals[request["pty"]]
        if terminal.status is None:
            # No group is in the foreground once the leader let go of its terminal; group 0 would be our own.
            os.killpg(os.tcgetpgrp(terminal.fd) or terminal.pid, request["signal"])
        self.reply(request, {})

    def op_pty_close(self, request, _):
        terminal = self.terminals.pop(request["pty"], None)
        if terminal:
            if terminal.waiting:
                self.answer_read(terminal, found=False)
            self.unwatch(terminal.fd)
            os.close(terminal.fd)
            self.kill_all(lambda: self.victims(terminal))
        self.reply(request, {})


def take_charge():
    """Become the parent of what commands daemonise, as PID 1 is anyway, and close our memory and files to them."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: without CAP_SYS_PTRACE nobody opens /proc/<us>/fd or /mem
    except (ImportError, OSError, AttributeError):
        pass  # not Linux: process groups must do


def why_refused(protect):
    """Carry out `protect`; what speaks against it, empty where nothing does."""
    try:
        protect()
    except (ImportError, OSError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def serve_standard_streams(fork_terminal=os.forkpty, protect=None):
    """Move the stream to descriptors that no command inherits, and serve it to its end.

    `protect` keeps commands from limiting this process; where it fails the host is told why.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    take_charge()
    runner = Runner(source, sink, fork_terminal, why_refused(protect) if protect else "")
    try:
        runner.run()
    finally:
        runner.kill_all(lambda: below_us(processes()))
