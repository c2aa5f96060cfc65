"""Runs unittest as `python -m unittest` does, and reports how each test ended in signed lines.

If the first argument is `--script=FILE`, it runs that script, which must use unittest's own text runner, as Django's
`runtests.py` does. Its tests are reported by the names that the runner prints.
"""

import os
import runpy
import sys

from .report import WORSE, act_as_module, report_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    import unittest
    from typing import Any, Callable

    from .report import Emit, ImportPath

    Names = Callable[[unittest.TestCase], "list[str]"]

SCRIPT = "--script="

ENDS = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "error",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}
NOT_LOADED = ("unittest.loader._FailedTest.", "unittest.loader.ModuleSkipped.")  # what stands for a whole module


def own_id(test: "unittest.TestCase") -> "list[str]":
    return [test.id()]


def printed_names(test: "unittest.TestCase") -> "list[str]":
    """Return what the runner prints for a test: its name, and the first line of its docstring."""
    return [name for name in (str(test), test.shortDescription()) if name]


def make_note(emit: "Emit", ends: "dict[str, list[str]]") -> "Callable[[unittest.TestCase, str], None]":
    """Return a function that records an event of a test."""
    import unittest

    def note(test: "unittest.TestCase", status: str) -> None:
        test = getattr(test, "test_case", test)  # a sub-test counts for its test
        name = test.id()
        if name.startswith(NOT_LOADED):
            emit(event="group", id=name.split(".", 3)[3], status=status)
        elif not isinstance(test, unittest.TestCase):  # "setUpClass (module.Class)", "tearDownModule (module)"
            emit(event="group", id=name.partition("(")[2].rstrip(")"), status=status)
        else:
            ends.setdefault(name, []).append(status)

    return note


def make_result_class(emit: "Emit", names_of: "Names") -> "type[unittest.TextTestResult]":
    import unittest

    ends: dict[str, list[str]] = {}  # id of the running test -> how its parts ended so far
    note = make_note(emit, ends)

    def noting(name: str, status: str) -> "Callable[..., None]":
        inherited = getattr(unittest.TextTestResult, name)

        def method(self: object, test: "unittest.TestCase", *details: object) -> None:
            note(test, status)
            inherited(self, test, *details)

        return method

    class Result(unittest.TextTestResult):
        failfast = property(lambda self: False, lambda self, value: None)  # the first failure may be a counter-test

        def addSubTest(self, test: "unittest.TestCase", subtest: "unittest.TestCase", err: "Any") -> None:
            if err is not None:
                note(test, "failed")
            super().addSubTest(test, subtest, err)

        def stopTest(self, test: "unittest.TestCase") -> None:
            super().stopTest(test)
            name = test.id()
            if name in ends:
                status = max(ends.pop(name), key=WORSE.index)
                for known in names_of(test):
                    emit(event="test", id=known, status=status)

    for name, status in ENDS.items():
        setattr(Result, name, noting(name, status))
    return Result


def prepare(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import unittest

    act_as_module("unittest", "python -m unittest")
    path.restore()

    class Runner(unittest.TextTestRunner):
        resultclass = make_result_class(emit, own_id)

    return lambda: unittest.main(module=None, testRunner=Runner)


def prepare_script(emit: "Emit", path: "ImportPath") -> "Callable[[], object]":
    import unittest

    act_as_module("unittest", SCRIPT_FILE)
    path.restore()
    unittest.TextTestRunner.resultclass = make_result_class(emit, printed_names)
    return lambda: runpy.run_path(SCRIPT_FILE, run_name="__main__") and None


if sys.argv[1:] and sys.argv[1].startswith(SCRIPT):
    SCRIPT_FILE = sys.argv.pop(1)[len(SCRIPT) :]
    report_on("unittest", prepare_script, first=os.path.dirname(os.path.abspath(SCRIPT_FILE)))
else:
    report_on("unittest", prepare)
