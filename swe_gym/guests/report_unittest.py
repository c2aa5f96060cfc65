"""Runs unittest as `python -m unittest` does and reports, signed, how each test ended. See `report` for the rules.

If the first argument is `--script=FILE`, runs that script instead, which is expected to call unittest's own text
runner, as Django's `runtests.py` does; its tests are reported by the names that the runner prints.
"""

import os
import runpy
import sys

from .report import WORSE, act_as_module, report_on

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


def own_id(test):
    return [test.id()]


def printed_names(test):
    """How the runner announces a test: by its name, or by name and the first line of its docstring."""
    return [name for name in (str(test), test.shortDescription()) if name]


def make_note(unittest, emit, ends):
    """The function that takes down what happened to a test."""

    def note(test, status):
        test = getattr(test, "test_case", test)  # a sub-test counts for its test
        name = test.id()
        if name.startswith(NOT_LOADED):
            emit(event="group", id=name.split(".", 3)[3], status=status)
        elif not isinstance(test, unittest.TestCase):  # "setUpClass (module.Class)", "tearDownModule (module)"
            emit(event="group", id=name.partition("(")[2].rstrip(")"), status=status)
        else:
            ends.setdefault(name, []).append(status)

    return note


def never_fail_fast(result):
    """All tests run: the first failure may be a counter-test."""
    return False


def ignore_failfast(result, value):
    """The option counts for nothing."""


def make_result_class(unittest, emit, names_of):
    """The result class."""
    ends = {}  # id -> how the test that runs ended so far
    note = make_note(unittest, emit, ends)

    def noting(name, status):
        inherited = getattr(unittest.TextTestResult, name)

        def method(self, test, *details):
            note(test, status)
            inherited(self, test, *details)

        return method

    class Result(unittest.TextTestResult):
        failfast = property(never_fail_fast, ignore_failfast)

        def addSubTest(self, test, subtest, err):
            if err is not None:
                note(test, "failed")
            super().addSubTest(test, subtest, err)

        def stopTest(self, test):
            super().stopTest(test)
            name = test.id()
            if name in ends:
                status = max(ends.pop(name), key=WORSE.index)
                for known in names_of(test):
                    emit(event="test", id=known, status=status)

    for name, status in ENDS.items():
        setattr(Result, name, noting(name, status))
    return Result


def prepare(emit, path):
    import unittest

    act_as_module("unittest", "python -m unittest")
    path.restore()

    class Runner(unittest.TextTestRunner):
        resultclass = make_result_class(unittest, emit, own_id)

    return lambda: unittest.main(module=None, testRunner=Runner)


def prepare_script(emit, path):
    import unittest

    act_as_module("unittest", SCRIPT_FILE)
    path.restore()
    unittest.TextTestRunner.resultclass = make_result_class(unittest, emit, printed_names)
    return lambda: runpy.run_path(SCRIPT_FILE, run_name="__main__") and None


if sys.argv[1:] and sys.argv[1].startswith(SCRIPT):
    SCRIPT_FILE = sys.argv.pop(1)[len(SCRIPT) :]
    report_on("unittest", prepare_script, first=os.path.dirname(os.path.abspath(SCRIPT_FILE)))
else:
    report_on("unittest", prepare)
