"""What a stop shows and needs of the program: stack frames, exceptions and source files."""

import bdb
import dis
import os
import pdb
import sys
import traceback
import types

HERE = "<debugger>"  # the file name that this program is compiled with
OWN_FILES = (HERE, bdb.__file__, pdb.__file__)
HARNESS = ("bdb", "pdb", "pytest", "_pytest", "pluggy", "unittest", "importlib", HERE)
"""Packages whose frames at the old end of the stack are left out."""


def summary(error: BaseException) -> str:
    """Return an exception as the last lines of a traceback show it."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:  # noqa: BLE001  its `__str__` may raise anything
        return type(error).__name__


def harness(frame: "types.FrameType") -> bool:
    """Return whether a frame belongs to the debugger or to a test runner."""
    return module_name(frame).partition(".")[0] in HARNESS


def module_name(frame: "types.FrameType") -> str:
    spec = frame.f_globals.get("__spec__")  # the true name of a module that runs as __main__
    return str(getattr(spec, "name", None) or frame.f_globals.get("__name__"))


def helper(frame: "types.FrameType") -> bool:
    """Return whether a frame raised an exception on behalf of its caller, as an assertion helper does."""
    hidden = frame.f_locals.get("__tracebackhide__") is True or "__unittest" in frame.f_globals
    return hidden or frame.f_code.co_filename.startswith("<frozen importlib") or harness(frame)


class Watch:
    """Notices that source files changed on disk after the program loaded them."""

    def __init__(self) -> None:
        self.root = ""
        self.stamps: dict[str, tuple[int, int] | None] = {}

    def add(self, files: "set[str]") -> None:
        for file in files - self.stamps.keys():
            self.stamps[file] = self.stamp(file)

    def add_loaded(self) -> None:
        """Add the files of all modules below the root."""
        files = set()
        for module in list(sys.modules.values()):
            try:
                file = object.__getattribute__(module, "__dict__").get("__file__")
            except Exception:  # noqa: BLE001  sys.modules may hold anything
                continue
            if isinstance(file, str) and file.endswith(".py") and file.startswith(self.root):
                files.add(file)
        self.add(files)

    def changed(self) -> "list[str]":
        return sorted(file for file, stamp in self.stamps.items() if self.stamp(file) != stamp)

    @staticmethod
    def stamp(file: str) -> "tuple[int, int] | None":
        try:
            status = os.stat(file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def code_lines(code: types.CodeType) -> "set[int]":
    """Return the lines of a file on which code starts."""
    lines = {line for _, line in dis.findlinestarts(code) if line}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines |= code_lines(constant)
    return lines


def continues_block(lines: "list[str]") -> bool:
    """Return whether the lines after a complete statement begin with more of it."""
    line = next((line for line in lines if line.strip()), "")
    words = line.replace(":", " ").split()
    return line[:1].isspace() or (bool(words) and words[0] in ("else", "elif", "except", "finally"))
