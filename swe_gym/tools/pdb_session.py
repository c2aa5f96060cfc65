"""A debugger that runs in a sandbox, and the conversation with it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import pydantic

from ..errors import FileError, SandboxError, ToolError
from ..guests import bundle
from ..sandboxes.base import Pty, Sandbox
from ..types import Frozen
from .pdb_entrypoint import Entrypoint

BOOT = """\
import sys
sys.path[:1] = [folder for folder in sys.path[:1] if folder]
exec(compile(sys.argv.pop(1), '<debugger>', 'exec'), {'__name__': '<debugger>'})
"""
"""Runs the guest program, its first argument. No file of the folder that it starts in can shadow a module of Python."""

COLUMNS = 100
MAX_OUTPUT = 4 << 20

INTERRUPTS = ((signal.SIGURG, 2.0), (signal.SIGINT, 3.0))
"""What is sent to a program that runs too long, and the seconds that it gets to stop.

First a signal that stops only the debugger: every other process ignores it, and no program has a handler of its own for
it. Then Ctrl-C, which ends a child that the program waits for.
"""


class Breakpoint(Frozen):
    """One breakpoint, as the guest describes it and takes it back.

    Attributes:
        number: As in pdb's commands; kept over restarts.
        file: Absolute path in the sandbox.
        line: Counted from 1.
        condition: A Python expression, or None.
        enabled: False where `disable` switched it off.
        temporary: It goes away when it is hit.
        ignore: How many more hits do not count.
        hits: How often it was hit in this session.
        function: The function that it was set on by name, or None.
        commands: What pdb runs when it is hit.
        silent: `commands` began with "silent".
        prompts: Whether the program stops after `commands`.
    """

    number: int
    file: str
    line: int
    condition: str | None = None
    enabled: bool = True
    temporary: bool = False
    ignore: int = 0
    hits: int = 0
    function: str | None = None
    commands: tuple[str, ...] = ()
    silent: bool = False
    prompts: bool = True


class Position(Frozen):
    """Where the debugger stands, and what it has to say: one reply of the guest.

    Attributes:
        state: "stopped" is the usual one. "running": `breakpoints` and `rest` are news, the command goes on. The other
            three end the session: "stale", source files changed and the command did not run; "restart"; "quit".
        runner: The test runner that the program is, at the first stop.
        reason: Why it stopped, where that is not plain from the command.
        file: Absolute path in the sandbox of the current frame's source.
        line: Counted from 1.
        function: Name of the current frame's function.
        frame: Which frame is the current one, counted from 1 at the oldest.
        frames: How many there are.
        thread: Name of the thread, empty for the main one.
        first: Number of the first line of `context`.
        context: Source lines around the current one.
        exception: The exception of a post-mortem.
        returning: The value that the current frame is about to return.
        defining: Number of the breakpoint whose `commands` list is not closed yet.
        breakpoints: All of them.
        notes: What else the policy should know.
        failed: A command ended in an error message.
        changed: The files that made the session stale.
        rest: The commands that did not run.
        arguments: What `restart ARGS` asked for.
    """

    state: Literal["running", "stopped", "stale", "restart", "quit"]
    breakpoints: tuple[Breakpoint, ...]
    runner: str = ""
    reason: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    frame: int = 0
    frames: int = 0
    thread: str = ""
    first: int = 1
    context: tuple[str, ...] = ()
    exception: str = ""
    returning: str | None = None
    defining: int | None = None
    notes: tuple[str, ...] = ()
    failed: bool = False
    changed: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None


@dataclasses.dataclass(slots=True)
class Reply:
    """The end of one request.

    Attributes:
        output: Everything that was printed, as raw bytes.
        position: Where the debugger stands; None where the session is over without a word.
        exit_code: Of the program, where it ended; minus the number of a signal that ended it.
        timed_out: The request ran into its timeout and the program was interrupted or, without `position`, killed.
        breakpoints: As last heard of.
        rest: The commands that did not run, as last heard of.
    """

    output: bytes = b""
    position: Position | None = None
    exit_code: int | None = None
    timed_out: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()
    rest: tuple[str, ...] = ()


class Session:
    """One run of the program under the debugger, from its start to its end or to `close`.

    Args:
        sandbox: Where it runs.
        entrypoint: What it runs.
        timeout: Seconds until the interpreter must be up.

    Raises:
        ToolError: The interpreter did not come up; the message holds what it printed.
    """

    def __init__(self, sandbox: Sandbox, entrypoint: Entrypoint, *, timeout: float) -> None:
        self._root = sandbox.workdir
        token = secrets.token_hex(8)
        command = entrypoint.shell_command(["-c", BOOT, bundle("debugger/main"), token])
        try:
            self._pty: Pty = sandbox.open_pty(command, columns=COLUMNS)
        except FileError as error:  # the policy removed the shell or its own folder
            raise ToolError(f"The debugger did not start: {error}") from error
        printed, ready = self._pty.read_until(_end_mark(token), timeout=timeout)
        if not ready:
            self.close()
            code = self._pty.exit_code
            silent = f"exit code {code}" if code is not None else f"nothing was heard of it for {timeout:g} s"
            text = printed.decode("utf-8", "replace").strip() or silent
            raise ToolError(f"The debugger did not start: {text}")
        self._opening = printed.rpartition(_begin_mark(token))[0]

    def start(
        self,
        breakpoints: Sequence[Breakpoint],
        *,
        arguments: Sequence[str] | None = None,
        timeout: float,
    ) -> Reply:
        """Set the breakpoints and load the program; it stops at its first line.

        Args:
            breakpoints: Of earlier sessions, where they are now.
            arguments: Put in place of the program's own, as `restart ARGS` asks for.
            timeout: Seconds until the program is interrupted.
        """
        points = [point.model_dump() for point in breakpoints]
        request = {"root": self._root, "breakpoints": points, "arguments": arguments}
        reply = self._request(request, [], timeout=timeout, breakpoints=tuple(breakpoints))
        reply.output = self._opening + reply.output
        return reply

    def command(self, lines: Sequence[str], breakpoints: tuple[Breakpoint, ...], *, timeout: float) -> Reply:
        """Run commands and come back when they are done, when the program ended, or soon after `timeout` seconds.

        Args:
            lines: What is typed, line by line.
            breakpoints: As last heard of.
            timeout: Seconds until what runs is interrupted, and killed where that does not help.
        """
        return self._request({}, lines, timeout=timeout, breakpoints=breakpoints)

    def close(self) -> None:
        """Kill the program and everything that it started. A sandbox that is gone has done so already."""
        with contextlib.suppress(SandboxError):
            self._pty.close()

    def _request(
        self,
        request: Mapping[str, object],
        lines: Sequence[str],
        *,
        timeout: float,
        breakpoints: tuple[Breakpoint, ...],
    ) -> Reply:
        nonce = secrets.token_hex(8)
        self._pty.write(json.dumps({**request, "nonce": nonce, "lines": list(lines)}).encode("ascii") + b"\n")
        reply = Reply(breakpoints=breakpoints)
        self._listen(reply, nonce, timeout)
        for number, grace in INTERRUPTS:
            if reply.position or self._pty.exit_code is not None:
                break
            reply.timed_out = True
            self._pty.signal(number)
            self._listen(reply, nonce, grace)
        reply.exit_code = self._pty.exit_code
        return reply

    def _listen(self, reply: Reply, nonce: str, timeout: float) -> None:
        """Read up to the end of the reply, at most for `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not reply.position and (left := deadline - time.monotonic()) > 0:
            data, found = self._pty.read_until(_end_mark(nonce), timeout=left)
            if not found:
                reply.output = (reply.output + data)[-MAX_OUTPUT:]
                return
            printed, _, block = data.removesuffix(_end_mark(nonce)).rpartition(_begin_mark(nonce))
            reply.output = (reply.output + printed)[-MAX_OUTPUT:]
            position = _parse(block)
            reply.breakpoints, reply.rest = position.breakpoints, position.rest
            reply.position = position if position.state != "running" else None


def _begin_mark(nonce: str) -> bytes:
    return f"<{nonce}:".encode()


def _end_mark(nonce: str) -> bytes:
    return f":{nonce}>".encode()


def _parse(block: bytes) -> Position:
    """The guest's own words.

    Raises:
        ToolError: Something else wrote between them.
    """
    try:
        return Position.model_validate_json(block)
    except pydantic.ValidationError as error:
        raise ToolError(
            "The program wrote into the debugger's reply, so the session is over. Breakpoints are kept."
        ) from error
