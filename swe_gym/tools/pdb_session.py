"""A debugger session in a sandbox, and the shell command of a Python program rewritten into one that debugs it."""

import contextlib
import dataclasses
import json
import re
import secrets
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import pydantic

from ..errors import FileError, SandboxError, ToolError
from ..guests import bundle
from ..sandboxes import Pty, Sandbox
from ..types import Frozen

FORMS = (
    "Give the entrypoint as `python FILE ARGS`, `python -m MODULE ARGS`, `pytest ARGS` or `FILE.py ARGS`. In front of "
    "it may stand NAME=value and other commands with `&&`, as in `cd src && DEBUG=1 python -m pytest tests/test_x.py`."
)

_TOKEN = re.compile(
    r"""(?P<redirect>2>&1)|(?P<word>(?:[^\s'"\\;&|<>()`]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+)"""
    r"""|(?P<operator>&&|\|\||[;\n]|[&|<>()`]+)|(?P<space>[^\S\n]+)""",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*", re.DOTALL)
_PYTHON_FLAG = re.compile(r"-(?:[bBdEIOPqRsSuv]+|[WX].+)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Entrypoint:
    """A shell command in three raw parts, which the shell expands.

    Attributes:
        before: Preceding commands and the program's variables.
        python: Interpreter and its options.
        program: `-m MODULE ARGS`, `-c CODE ARGS` or `FILE ARGS`.
    """

    before: str
    python: str
    program: str

    def shell_command(self, first_arguments: Sequence[str]) -> str:
        """Return the command with `first_arguments` before the program, run by `exec`."""
        return f"{self.before}exec {self.python} {shlex.join(first_arguments)} {self.program}"


def parse_entrypoint(text: str) -> Entrypoint:
    """Find the Python program in a shell command.

    Raises:
        ToolError: There is none, or its form cannot be debugged; the message lists the valid forms.
    """
    before, words = _last_command(text)
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("env", "exec")):
        assignment = words.pop(0)
        before += f"{assignment} " if "=" in assignment else ""
    if not words:
        raise ToolError(f"The entrypoint {text!r} runs no program. {FORMS}")
    name = _value(words[0])
    if _PYTHON.fullmatch(name):
        options = _interpreter_options(words)
        python, program = words[: 1 + options], _without_pdb(words[1 + options :])
    elif name.rpartition("/")[2] in ("pytest", "py.test"):
        python, program = ["python"], ["-mpytest", *words[1:]]
    elif name.endswith(".py"):
        python, program = ["python"], words
    else:
        raise ToolError(f"The entrypoint {text!r} runs {name!r}, which is no Python program. {FORMS}")
    if not program or program[0] in ("-m", "-c", "-"):
        raise ToolError(f"The entrypoint {text!r} names no program. {FORMS}")
    return Entrypoint(before, " ".join(python), " ".join(program))


def _last_command(text: str) -> tuple[str, list[str]]:
    """Return the text before the last command of a list, and the last command's words."""
    before, words, position = "", [], 0
    stripped = text.rstrip("; \t\n")
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if not match:
            raise ToolError(f"The entrypoint {text!r} has a quote that is never closed. {FORMS}")
        position = match.end()
        if match["word"]:
            words.append(match["word"])
        elif match["operator"] in ("&&", ";", "\n"):
            before, words = stripped[:position] + " ", []
        elif match["operator"]:
            raise ToolError(f"The entrypoint {text!r} holds {match['operator']!r}, which cannot be debugged. {FORMS}")
    return before, words


def _interpreter_options(words: list[str]) -> int:
    """Return the number of interpreter options between the interpreter and the program."""
    count = 0
    for word in words[1:]:
        previous = words[count]
        if word.startswith(("-m", "-c")) or (not word.startswith("-") and previous not in ("-W", "-X")):
            break
        if word not in ("-W", "-X") and previous not in ("-W", "-X") and not _PYTHON_FLAG.fullmatch(word):
            raise ToolError(f"The debugger does not know the option {word!r} of Python. {FORMS}")
        count += 1
    return count


def _without_pdb(program: list[str]) -> list[str]:
    """Return the program without a leading `-m pdb`."""
    if program[:2] == ["-m", "pdb"]:
        program = program[2:]
    elif program[:1] == ["-mpdb"]:
        program = program[1:]
    else:
        return _join_module(program)
    if program and program[0].startswith("-c"):
        raise ToolError("Leave out pdb's own option -c and give its commands in `command` instead.")
    return _join_module(program)


def _join_module(program: list[str]) -> list[str]:
    """Join `-m MODULE` to `-mMODULE`, so that an option without a value is detected."""
    if program[:1] in (["-m"], ["-c"]) and len(program) > 1:
        return [program[0] + program[1], *program[2:]]
    return program


def _value(word: str) -> str:
    """Return a word without variables as the shell expands it."""
    return "".join(shlex.split(word))


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
