"""Stack frames and exceptions: which ones to show, and how."""

import bdb
import pdb
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
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
