"""A debugger session in a sandbox."""

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
from ..sandboxes import Pty, Sandbox
from ..types import Frozen
from .pdb_entrypoint import Entrypoint

BOOT = """\
import sys
sys.path[:1] = [folder for folder in sys.path[:1] if folder]
exec(compile(sys.argv.pop(1), '<debugger>', 'exec'), {'__name__': '<debugger>'})
"""
"""Runs the guest program, its first argument. Files in the working directory cannot shadow Python's modules."""

COLUMNS = 100
MAX_OUTPUT = 4 << 20

INTERRUPTS = ((signal.SIGURG, 2.0), (signal.SIGINT, 3.0))
"""Signals sent to a program that runs too long, and the seconds until the next one.

The first one stops only the debugger: other processes ignore it, and programs have no handler for it. Then Ctrl-C
ends a child that the program waits for.
"""


class Breakpoint(Frozen):
    """A breakpoint, as exchanged with the guest.

    Attributes:
        number: Number in pdb's commands; kept over restarts.
        file: Absolute path in the sandbox.
        line: Line, counted from 1.
        condition: Python expression, or None.
        enabled: Whether the breakpoint is active.
        temporary: Whether the first hit removes it.
        ignore: Number of further hits to ignore.
        hits: Number of hits in this session.
        function: Function that it was set on by name, or None.
        commands: Commands that pdb runs at a hit.
        silent: Whether `commands` began with "silent".
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
    """The position of the debugger: one reply of the guest.

    Attributes:
        state: "stopped" is the normal state. "running" updates `breakpoints` and `rest` while the command runs. Three
            states end the session: "stale" (source files changed and the command did not run), "restart" and "quit".
        runner: Name of the test runner, at the first stop of one.
        reason: Reason of the stop, if it is not obvious from the command.
        file: Absolute path in the sandbox of the current frame's source.
        line: Current line, counted from 1.
        function: Function of the current frame.
        frame: Number of the current frame, counted from 1 at the oldest.
        frames: Number of frames.
        thread: Name of the thread; empty for the main thread.
        first: Number of the first line of `context`.
        context: Source lines around the current line.
        exception: Exception of a post-mortem.
        returning: Value that the current frame is about to return.
        defining: Number of the breakpoint whose `commands` list is still open.
        breakpoints: All breakpoints.
        notes: Further notes for the policy.
        failed: Whether a command ended in an error.
        changed: Files that made the session stale.
        rest: Commands that did not run.
        arguments: Arguments of `restart ARGS`.
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
class DebuggerReply:
    """The result of one request.

    Attributes:
        output: Everything that was printed, as raw bytes.
        position: Position of the debugger; None if the session ended without a reply.
        exit_code: Exit code of the program if it ended; minus the signal's number if a signal ended it.
        timed_out: Whether the request timed out and the program was interrupted or, without `position`, killed.
        breakpoints: Last known breakpoints.
        rest: Last known list of commands that did not run.
    """

    output: bytes = b""
    position: Position | None = None
    exit_code: int | None = None
    timed_out: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()
    rest: tuple[str, ...] = ()


class DebuggerSession:
    """One run of the program under the debugger.

    Args:
        sandbox: The sandbox.
        entrypoint: Command that runs the program.
        timeout: Seconds to wait for the interpreter.

    Raises:
        ToolError: The interpreter did not start; the message holds its output.
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
    ) -> DebuggerReply:
        """Set the breakpoints and load the program; it stops at its first line.

        Args:
            breakpoints: Breakpoints of earlier sessions, at their current lines.
            arguments: Arguments that replace the program's own, from `restart ARGS`.
            timeout: Seconds until the program is interrupted.
        """
        points = [point.model_dump() for point in breakpoints]
        request = {"root": self._root, "breakpoints": points, "arguments": arguments}
        reply = self._request(request, [], timeout=timeout, breakpoints=tuple(breakpoints))
        reply.output = self._opening + reply.output
        return reply

    def command(self, lines: Sequence[str], breakpoints: tuple[Breakpoint, ...], *, timeout: float) -> DebuggerReply:
        """Run commands until they are done, the program ends, or shortly after `timeout` seconds.

        Args:
            lines: Lines typed into the debugger.
            breakpoints: Last known breakpoints.
            timeout: Seconds until the program is interrupted, and killed if that fails.
        """
        return self._request({}, lines, timeout=timeout, breakpoints=breakpoints)

    def close(self) -> None:
        """Kill the program and everything that it started. Ignore a sandbox that is gone."""
        with contextlib.suppress(SandboxError):
            self._pty.close()

    def _request(
        self,
        request: Mapping[str, object],
        lines: Sequence[str],
        *,
        timeout: float,
        breakpoints: tuple[Breakpoint, ...],
    ) -> DebuggerReply:
        nonce = secrets.token_hex(8)
        self._pty.write(json.dumps({**request, "nonce": nonce, "lines": list(lines)}).encode("ascii") + b"\n")
        reply = DebuggerReply(breakpoints=breakpoints)
        self._listen(reply, nonce, timeout)
        for number, grace in INTERRUPTS:
            if reply.position or self._pty.exit_code is not None:
                break
            reply.timed_out = True
            self._pty.signal(number)
            self._listen(reply, nonce, grace)
        reply.exit_code = self._pty.exit_code
        return reply

    def _listen(self, reply: DebuggerReply, nonce: str, timeout: float) -> None:
        """Read to the end of the reply, for at most `timeout` seconds."""
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
    """Parse the guest's reply.

    Raises:
        ToolError: The program wrote into it.
    """
    try:
        return Position.model_validate_json(block)
    except pydantic.ValidationError as error:
        raise ToolError(
            "The program wrote into the debugger's reply, so the session is over. Breakpoints are kept."
        ) from error
