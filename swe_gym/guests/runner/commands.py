"""Commands: start one, collect its output within bounds, kill its tree at the deadline, reply."""

import contextlib
import functools
import os
import select
import signal
import subprocess
import tempfile
import time

from ..protocol import EXEC
from .loop import CHUNK, read_some
from .processes import Leader, Reaper, held, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

    from ..protocol import ExecReply, ExecRequest
    from .loop import Answer, Loop

LONGEST_ARGUMENT = 128 * 1024  # the kernel's limit of one argument, its final NUL included


class Capture:
    """The head and the tail of a stream, at most `limit` bytes, and how much was cut between them."""

    def __init__(self, limit: int) -> None:
        self.head_limit = limit // 4
        self.tail_limit = limit - self.head_limit
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * self.tail_limit + CHUNK:  # cut rarely, so that a flood costs little
            del self.tail[: len(self.tail) - self.tail_limit]

    def result(self) -> "tuple[bytes, int]":
        """Return what was kept, and how many bytes were cut."""
        tail = bytes(self.tail[max(0, len(self.tail) - self.tail_limit) :])
        data = bytes(self.head) + tail
        return data, self.total - len(data)

    def drain(self, fd: int) -> None:
        """Take what a pipe holds, and no more than it can hold: a child may continue to write."""
        for _ in range(64):
            data = read_some(fd)
            if not data:
                return
            self.add(data)


def shorten(argv: "list[str]") -> "tuple[list[str], IO[bytes] | None]":
    """Return `argv`; or, if a shell line is too long for an argument, one that reads it from the returned file.

    A program of ours may run the shell: it keeps open files.
    """
    ours = len(argv) == 3 or argv[1:4] == ["-I", "-S", "-c"]
    if argv[-3:-1] != ["bash", "-c"] or not ours or len(os.fsencode(argv[-1])) < LONGEST_ARGUMENT:
        return argv, None
    script = os.fdopen(os.memfd_create("script"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()
    script.write(os.fsencode(argv[-1]))
    script.seek(0)
    return [*argv[:-1], 'eval "$(cat <&%d)" %d<&-' % (script.fileno(), script.fileno())], script


class RunningCommand(Leader):
    """One running command: its process, its pipes, its deadline.

    Attributes:
        kill_at: The time at which SIGKILL follows SIGTERM; None before the deadline.
        being_killed: Whether `Commands.kill` is at work, which also replies.
    """

    def __init__(self, commands: "Commands", request: "ExecRequest", stdin: bytes) -> None:
        Leader.__init__(self)
        self.commands = commands
        self.request = request
        self.started = time.monotonic()
        self.deadline = self.started + request["timeout"]
        self.timed_out = False
        self.kill_at: float | None = None
        self.being_killed = False
        self.stdin = memoryview(stdin)
        self.process = self.popen()
        self.pid = self.process.pid
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]
        self.captures = {pipe: Capture(request["max_output"]) for pipe in pipes}
        for pipe in pipes + ([self.process.stdin] if self.process.stdin else []):
            os.set_blocking(pipe.fileno(), False)

    def popen(self) -> "subprocess.Popen[bytes]":
        argv, script = shorten(self.request["argv"])
        process = subprocess.Popen(
            argv,
            pass_fds=[script.fileno()] if script else [],
            cwd=self.request["cwd"],
            env=self.request["env"],
            stdin=subprocess.PIPE if self.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self.request["merge"] else subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        if script:
            script.close()
        return process

    def on_end(self) -> None:
        self.process.returncode = 0  # reaped already, so Popen must not wait for it
        self.commands.on_end(self)


class Commands:
    """The commands that run."""

    def __init__(self, loop: "Loop", reaper: Reaper) -> None:
        self.loop = loop
        self.reaper = reaper
        self.running: list[RunningCommand] = []
        loop.timed.append(self)
        loop.offer(EXEC, self.start)

    def start(self, request: "ExecRequest", payload: bytes) -> "Answer[ExecReply] | None":
        try:
            command = self.reaper.spawn(lambda: RunningCommand(self, request, payload))
        except (OSError, ValueError) as error:
            return not_started(request, error)
        self.running.append(command)
        self.reaper.leaders[command.pid] = command
        for pipe in command.captures:
            self.loop.watch(pipe.fileno(), select.POLLIN, functools.partial(self.on_output, command, pipe))
        if command.process.stdin:
            on_input = functools.partial(self.on_input, command, command.process.stdin)
            self.loop.watch(command.process.stdin.fileno(), select.POLLOUT, on_input)
        return None

    def deadlines(self) -> "list[float]":
        return [command.kill_at or command.deadline for command in self.running]

    def check(self, now: float) -> None:
        for command in list(self.running):
            if command not in self.running:
                continue  # ended while another one was killed
            if command.kill_at is not None and now >= command.kill_at:
                self.kill(command)
            elif command.kill_at is None and now >= command.deadline:
                command.timed_out = True
                command.kill_at = now + command.request["grace"]
                with held():
                    victims = self.reaper.victims(command)
                    send_signal(victims, signal.SIGTERM)
                send_signal(victims, signal.SIGCONT)

    def on_end(self, command: RunningCommand) -> None:
        """Reply for a command whose process ended. After a timeout, kill the rest of its tree first."""
        if command.being_killed:
            return
        if command.timed_out:
            self.kill(command)
        else:
            self.finish(command)

    def kill(self, command: RunningCommand) -> None:
        command.being_killed = True
        with contextlib.suppress(OSError):
            os.killpg(command.pid, signal.SIGKILL)
        self.reaper.kill_tree(command)
        self.finish(command)

    def finish(self, command: RunningCommand) -> None:
        """Reply with the output so far; keep draining pipes that background processes hold."""
        self.running.remove(command)
        self.reaper.forget(command)
        results = []
        for pipe, capture in command.captures.items():
            if not pipe.closed:
                capture.drain(pipe.fileno())
                self.loop.watch(pipe.fileno(), select.POLLIN, functools.partial(self.discard, pipe))
            results.append(capture.result())
        if command.process.stdin:
            self.close(command.process.stdin)
        self.reaper.remember_session(command.pid)
        status = signal.SIGKILL if command.status is None else command.status  # None: not dead yet, but will be
        reply: ExecReply = {
            "exit_code": None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "timed_out": command.timed_out,
            "duration": time.monotonic() - command.started,
            "stdout": len(results[0][0]),
            "stdout_dropped": results[0][1],
            "stderr_dropped": results[1][1] if len(results) > 1 else 0,
        }
        self.loop.reply(command.request, reply, b"".join(data for data, _ in results))

    def on_output(self, command: RunningCommand, pipe: "IO[bytes]", fd: int) -> None:
        data = read_some(fd)
        if data:
            command.captures[pipe].add(data)
        elif data == b"":
            self.close(pipe)

    def on_input(self, command: RunningCommand, pipe: "IO[bytes]", fd: int) -> None:
        try:
            sent = os.write(fd, command.stdin[:CHUNK])
            command.stdin = command.stdin[sent:]
        except BlockingIOError:
            return
        except OSError:
            command.stdin = command.stdin[:0]  # the command closed its end
        if not command.stdin:
            self.close(pipe)

    def discard(self, pipe: "IO[bytes]", fd: int) -> None:
        if read_some(fd) == b"":
            self.close(pipe)

    def close(self, pipe: "IO[bytes]") -> None:
        if not pipe.closed:
            self.loop.unwatch(pipe.fileno())
            pipe.close()


def not_started(request: "ExecRequest", error: Exception) -> "Answer[ExecReply]":
    """Return the result of a command that cannot be started, with the exit code that a shell would give."""
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    what = request["argv"][0]
    if missing and not os.path.isdir(request["cwd"]):
        what = request["cwd"]
    reason = getattr(error, "strerror", None) or str(error)
    text = ("%s: %s\n" % (what, reason)).encode("utf-8", "replace")
    reply: ExecReply = {
        "exit_code": 127 if missing else 126,
        "signal": None,
        "timed_out": False,
        "duration": 0.0,
        "stdout": len(text) if request["merge"] else 0,
        "stdout_dropped": 0,
        "stderr_dropped": 0,
    }
    return reply, text
