"""Where the debugger stops: breakpoints, exceptions, interrupts."""

import contextlib
import os
import pdb
import signal
import sys
import threading

from .channel import flush
from .prompt import OWN_FILES, Prompt, harness, helper, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, Iterator

    from .channel import DebuggerChannel
    from .prompt import Watch

MAX_EXCEPTION = 1000


class Debugger(Prompt):
    """A `pdb` that stops for breakpoints, exceptions and interrupts only."""

    def __init__(self, channel: "DebuggerChannel", watch: "Watch", nested: bool = False) -> None:
        Prompt.__init__(self, channel, watch, nested)
        self.pid = os.getpid()
        self.stepping_thread = threading.get_ident()
        self.reset()

    def trace_dispatch(self, frame: "types.FrameType", event: str, arg: object) -> "Any":
        """Dispatch as `bdb` does, but skip early what cannot stop: programs run several times faster."""
        if self.stopframe is not None and frame is not self.stopframe and event in ("call", "line"):
            code = frame.f_code
            lines = self.breaks.get(self.fncache.get(code.co_filename) or self.canonic(code.co_filename))
            if not lines:
                return None if event == "call" else self.trace_dispatch
            if event == "line" and frame.f_lineno not in lines and code.co_firstlineno not in lines:
                return self.trace_dispatch
        return pdb.Pdb.trace_dispatch(self, frame, event, arg)

    def stop_here(self, frame: "types.FrameType") -> bool:
        """Return whether to stop: never in the debugger itself, and single steps only in the stopped thread."""
        if frame.f_code.co_filename in OWN_FILES:
            return False
        if self.stopframe is None and self.stepping_thread != threading.get_ident():
            return False
        return pdb.Pdb.stop_here(self, frame)

    def break_here(self, frame: "types.FrameType") -> bool:
        if not pdb.Pdb.break_here(self, frame):
            return False
        self.give_reason("breakpoint {}".format(getattr(self, "currentbp", 0)))
        return True

    def give_reason(self, reason: str) -> None:
        """Set why this thread is about to stop."""
        self.reasons[threading.get_ident()] = reason

    def interaction(self, frame: "types.FrameType | None", traceback: "Any") -> None:
        if os.getpid() != self.pid:  # a fork: only one process can use the channel
            sys.settrace(None)
            return
        flush()
        with self.at_prompt():
            pdb.Pdb.interaction(self, frame, traceback)
        self.give_reason("")
        self.fresh = False

    def bp_commands(self, frame: "types.FrameType") -> "Any":
        if getattr(self, "currentbp", 0) not in self.commands:
            return True
        with self.at_prompt(), self.switched("showing_entries"):
            return pdb.Pdb.bp_commands(self, frame)

    @contextlib.contextmanager
    def at_prompt(self) -> "Iterator[None]":
        """Let one thread at a time use the prompt, and send its changes before the program resumes."""
        with self.channel.lock:
            outer, self.channel.prompting = self.channel.prompting, threading.get_ident()
            self.stepping_thread = threading.get_ident()
            try:
                yield
                self.save()
            finally:
                self.channel.prompting = outer

    def get_stack(
        self, f: "types.FrameType | None", t: "types.TracebackType | None"
    ) -> "tuple[list[tuple[types.FrameType, int]], int]":
        """Return the stack without the oldest frames, of the debugger and of a test runner.

        After an exception (`f` is None) the current frame is the innermost that is not an assertion helper.
        """
        stack, index = pdb.Pdb.get_stack(self, f, t)
        start = 0
        while start < index and harness(stack[start][0]):
            start += 1
        while f is None and index > start and helper(stack[index][0]):
            index -= 1
        return stack[start:], index - start

    def post_mortem(self, error: BaseException, final: bool = False) -> None:
        """Stop where an exception was raised, tracing off; then the program runs to the next breakpoint."""
        if os.getpid() != self.pid:
            return
        sys.settrace(None)
        self.exception = summary(error)[:MAX_EXCEPTION]
        self.give_reason("post-mortem, the program is over" if final else "post-mortem of a failed test")
        if isinstance(error, EOFError):
            self.notes.append("The program's standard input is empty: whatever reads it meets its end.")
        try:
            self.interaction(None, error if sys.version_info >= (3, 13) else error.__traceback__)
        finally:
            self.exception = ""
        self.set_continue()
        if self.breaks and not final:
            sys.settrace(self.trace_dispatch)

    def break_in(self, frame: "types.FrameType | None") -> None:
        """Stop at the next line of the frame or of a function that it calls."""
        self.stepping_thread = threading.get_ident()
        while frame:
            frame.f_trace = self.trace_dispatch
            frame = frame.f_back
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def on_interrupt(self, number: int, frame: "types.FrameType | None") -> None:
        """Stop what runs, in the main thread: a command with an exception, the program with a prompt."""
        if os.getpid() != self.pid or self.channel.waiting or self.channel.interrupted:
            return
        self.channel.interrupted = True
        self.channel.dropped = self.to_come()
        self.channel.lines = []
        del self.cmdqueue[:]
        if self.channel.prompting is not None:
            if self.channel.prompting == threading.get_ident():
                raise KeyboardInterrupt
            return
        self.give_reason("interrupted")
        if self.inside_trace(frame):
            self.break_in(frame)
            return
        # At once: the next line may be hours away, as in time.sleep(10_000).
        sys.settrace(None)
        self.interaction(frame, None)
        if self.breaks or self.stoplineno != -1:
            step = self.stopframe, self.returnframe, self.stoplineno
            self.break_in(frame)
            self._set_stopinfo(*step)  # type: ignore[attr-defined]

    def inside_trace(self, frame: "types.FrameType | None") -> bool:
        """Return whether the frame is the debugger's own work on a trace event."""
        while frame and frame is not self.botframe:
            if frame.f_code.co_filename in OWN_FILES and frame.f_code.co_name == "trace_dispatch":
                return True
            frame = frame.f_back
        return False

    def leave_child(self) -> None:
        """Let a forked child run without the debugger."""
        sys.settrace(None)
        for number, default in ((signal.SIGURG, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) == self.on_interrupt:
                signal.signal(number, default)
