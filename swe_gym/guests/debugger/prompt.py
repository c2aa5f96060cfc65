"""The prompt: requests in, replies out, and commands that differ from pdb's."""

import codeop
import linecache
import os
import pdb
import pprint
import re
import reprlib
import shlex
import sys
import threading

from .breakpoints import Breakpoints, kept
from .channel import Typed
from .frames import HERE, continues_block, harness, module_name, summary

CONTEXT = 5
"""Source lines shown before and after the current one."""

STATEMENT = re.compile(r"[A-Za-z_]\w*(?:\s*[-+*/%&|^@<>!]?=|[.\[])")
"""The start of a statement whose first word may be a command: `c = 1`, `n.x`, `a[0]`."""

PRINTING = re.compile(r"(pp?|whatis)(?=\()")

MAX_LINE = 10000

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, Callable, NoReturn

    from .channel import DebuggerChannel
    from .frames import Watch


class Prompt(Breakpoints):
    """A `pdb` that is driven by requests and describes in each reply where it stands."""

    def __init__(self, channel: "DebuggerChannel", watch: "Watch", nested: bool = False) -> None:
        Breakpoints.__init__(self, channel, watch, Typed(self.next_line))
        self.nested = nested
        self.evaluating = False
        self.showing_entries = False
        self.fresh = not nested
        self.reasons: dict[int, str] = {}
        self.exception = ""

    def next_line(self) -> str:
        """Return the next line of the request; if none is left, reply and wait for the next request."""
        if self.evaluating:
            return ""
        while not self.channel.lines:
            self.watch.add_loaded()
            self.channel.reply(**self.describe("stopped"))
            self.failed, self.notes = False, []
            self.channel.request()
            self.channel.told = (kept(self.breakpoint_list()), [])
            changed = self.watch.changed()
            if changed:
                self.leave("stale", changed=changed)
        return self.channel.lines.pop(0) + "\n"

    def leave(self, state: str, **fields: object) -> "NoReturn":
        """Reply for the last time and exit at once: the program could catch an exception."""
        self.channel.reply(state=state, breakpoints=self.breakpoint_list(), rest=self.to_come(), **fields)
        os._exit(0)

    def describe(self, state: str) -> "dict[str, Any]":
        frame, line = self.stack[self.curindex]
        self.watch.add({item[0].f_code.co_filename for item in self.stack if self.is_ours(item[0].f_code.co_filename)})
        breakpoints = self.breakpoint_list()
        self.watch.add({item["file"] for item in breakpoints})
        thread = threading.current_thread()
        first, context = self.context(frame, line)
        return {
            "state": state,
            "runner": module_name(frame).partition(".")[0] if self.fresh and harness(frame) else "",
            "reason": self.reasons.get(threading.get_ident(), ""),
            "file": self.canonic(frame.f_code.co_filename),
            "line": line,
            "function": frame.f_code.co_name,
            "frame": self.curindex + 1,
            "frames": len(self.stack),
            "thread": "" if thread is threading.main_thread() else thread.name,
            "first": first,
            "context": context,
            "exception": self.exception,
            "returning": self.returning(frame),
            "defining": self.commands_bnum if self.commands_defining else None,
            "breakpoints": breakpoints,
            "rest": self.channel.dropped,
            "notes": self.notes,
            "failed": self.failed,
        }

    def is_ours(self, file: str) -> bool:
        return file.startswith(self.watch.root) and os.path.isfile(file)

    def context(self, frame: "types.FrameType", line: int) -> "tuple[int, list[str]]":
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        first = max(1, line - CONTEXT)
        return first, [text.rstrip("\r\n")[: MAX_LINE + 1] for text in lines[first - 1 : line + CONTEXT]]

    def returning(self, frame: "types.FrameType") -> "str | None":
        """Return what the frame is about to return, if it stopped for that."""
        if self.frame_returning is not frame:
            return None
        try:
            return reprlib.repr(self.frame_locals()["__return__"])
        except Exception:  # noqa: BLE001  a `__repr__` may raise anything
            return None

    def frame_locals(self) -> "dict[str, Any]":
        """Return the locals of the current frame; those of the frame itself lack changes made at the prompt."""
        frame: Any = self.curframe
        changed: dict[str, Any] = getattr(self, "curframe_locals", None) or frame.f_locals
        return changed

    def precmd(self, line: str) -> str:
        try:
            line = pdb.Pdb.precmd(self, "" if line.lstrip().startswith("#") else line)
        except Exception as error:  # noqa: BLE001  an alias for nothing
            self.show_exception(error)
            line = ""
        self.save()
        if self.commands_defining:
            return line
        return "!" + line if STATEMENT.match(line) else PRINTING.sub(r"\1 ", line, 1)

    def onecmd(self, line: str) -> bool:
        """Run a command. An error of pdb itself, in any version, must not end the program."""
        try:
            return pdb.Pdb.onecmd(self, line)
        except Exception as error:  # noqa: BLE001  see above
            self.show_exception(error)
            return False

    def emptyline(self) -> bool:
        """Do nothing: among several lines, an empty one does not repeat a command."""
        return False

    def default(self, line: str) -> None:
        """Run a statement, with the lines of the request that belong to it."""
        statement = self.whole_statement(line[1:].lstrip() if line[:1] == "!" else line)
        with self.switched("evaluating"):
            pdb.Pdb.default(self, statement)

    def whole_statement(self, text: str) -> str:
        lines = self.channel.lines
        while lines:
            try:
                complete = codeop.compile_command(text + "\n", HERE, "single")
            except (SyntaxError, ValueError, OverflowError):
                break
            if complete and not continues_block(lines):
                break
            text += "\n" + lines.pop(0)
        return text + "\n" if "\n" in text else text

    def handle_command_def(self, line: str) -> bool:
        """Add a command to a breakpoint's list. One that resumes the program ends the list: drop an `end` after it."""
        ended = pdb.Pdb.handle_command_def(self, line)
        if ended and line.strip() != "end" and [text.strip() for text in self.channel.lines[:1]] == ["end"]:
            self.channel.lines.pop(0)
        return ended

    def do_quit(self, arg: str) -> "bool | None":
        return pdb.Pdb.do_quit(self, arg) if self.nested else self.leave("quit")

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        try:
            arguments = shlex.split(arg) if arg else None
        except ValueError as error:
            self.error("Cannot run {}: {}".format(arg, error))
            return
        self.leave("restart", arguments=arguments)

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Refuse: it would read the program's standard input."""
        self.error("interact is not available. Statements of several lines work at this prompt.")

    def do_debug(self, arg: str) -> None:
        """Step through a statement with a debugger that speaks through the same channel."""
        sys.settrace(None)
        inner = type(self)(self.channel, self.watch, nested=True)
        for name in ("commands", "commands_silent", "commands_doprompt"):
            setattr(inner, name, getattr(self, name))
        self.message("ENTERING RECURSIVE DEBUGGER")
        try:
            frame: Any = self.curframe
            sys.call_tracing(inner.run, (arg, frame.f_globals, self.frame_locals()))
        except Exception as error:  # noqa: BLE001  any error of the statement is shown
            self.show_exception(error)
        self.message("LEAVING RECURSIVE DEBUGGER")
        sys.settrace(self.trace_dispatch)

    def do_p(self, arg: str) -> None:
        self.show(arg, repr)

    def do_pp(self, arg: str) -> None:
        self.show(arg, pprint.pformat)

    def show(self, arg: str, form: "Callable[[object], str]") -> None:
        """Print a value, or an error if its `__repr__` fails, which old versions of pdb do not."""
        try:
            value = self._getval(arg)
        except BaseException:  # noqa: BLE001  pdb has shown it
            return
        try:
            self.message(form(value))
        except BaseException as error:  # noqa: BLE001  a `__repr__` may raise anything
            self.show_exception(error)

    def show_exception(self, error: BaseException) -> None:
        self.error(summary(error))

    def preloop(self) -> None:
        """Print the position only if commands wait; otherwise the reply shows it."""
        if self.to_come() and not self.commands_defining:
            with self.switched("showing_entries"):
                self.print_stack_entry(self.stack[self.curindex])
        pdb.Pdb.preloop(self)

    def print_stack_trace(self) -> None:
        with self.switched("showing_entries"):
            pdb.Pdb.print_stack_trace(self)

    def print_stack_entry(self, *arguments: "Any") -> None:
        if self.showing_entries:
            with self.places():
                pdb.Pdb.print_stack_entry(self, *arguments)
