"""The program: load it as Python would, and run it as `__main__`."""

import builtins
import importlib.machinery
import linecache
import os
import runpy
import sys
import threading

from .at_start import STARTED_WITH
from .channel import flush
from .frames import OWN_FILES
from .test_runners import prepare_test_runners

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

    from .stops import Debugger

    Program = tuple[types.CodeType, dict[str, Any], list[str]]


def load(arguments: "list[str]") -> "Program":
    """Return the code, the `__main__` namespace and `sys.argv` of `-mMODULE ...`, `-cCODE ...` or `FILE ...`.

    Raises:
        SystemExit: The program is missing; the message is Python's.
        Exception: Compiling it or importing its package failed.
    """
    first, rest = arguments[0], arguments[1:]
    if first.startswith("-m"):
        return load_module(first[2:], rest)
    if first.startswith("-c"):
        return load_text(first[2:], rest)
    return load_file(first, rest)


def load_file(name: str, rest: "list[str]") -> "Program":
    path = os.path.realpath(name)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.exit("{}: can't open file {!r}: {}".format(sys.executable, name, error.strerror))
    add_to_path(os.path.dirname(path))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names = {"__file__": path, "__package__": None, "__spec__": None, "__cached__": None, "__loader__": loader}
    return compile(source, path, "exec", dont_inherit=True), names, [name, *rest]


def load_text(text: str, rest: "list[str]") -> "Program":
    add_to_path("")
    linecache.cache["<string>"] = (len(text), None, text.splitlines(True), "<string>")
    names = {"__package__": None, "__spec__": None}
    return compile(text, "<string>", "exec", dont_inherit=True), names, ["-c", *rest]


def load_module(name: str, rest: "list[str]") -> "Program":
    add_to_path(os.getcwd())
    try:
        _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    except ImportError as error:
        if error.__cause__ or error.__context__:
            raise
        sys.exit("{}: {}".format(sys.executable, error))
    names = {
        "__file__": code.co_filename,
        "__package__": spec.parent,
        "__spec__": spec,
        "__loader__": spec.loader,
        "__cached__": spec.cached,
    }
    return code, names, [code.co_filename, *rest]


def add_to_path(folder: str) -> None:
    """Put a folder first on the path, as Python does for the program that it starts.

    Modules that only the debugger imported give way to the program's modules of the same name.
    """
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    sys.path.insert(0, folder)
    for name in set(sys.modules) - STARTED_WITH:
        if os.path.exists(os.path.join(folder, name + ".py")):
            del sys.modules[name]


def run(debugger: "Debugger", arguments: "list[str]") -> None:
    """Run the program as `__main__`, from a stop at its first line to one where an exception was not caught."""
    try:
        code, names, sys.argv[:] = load(arguments)
        prepare_test_runners(debugger, names["__spec__"])
        main = sys.modules["__main__"].__dict__
        main.clear()
        main.update(names, __name__="__main__", __doc__=None, __builtins__=builtins)
        threading.settrace(debugger.trace_dispatch)
        debugger.run(code, main, main)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  any error of the program
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in OWN_FILES:
            trace = trace.tb_next
        flush()
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if trace:
            debugger.quitting = False
            debugger.post_mortem(error, final=True)
        sys.exit(1)
    finally:
        debugger.quitting = False  # for the threads that live on
