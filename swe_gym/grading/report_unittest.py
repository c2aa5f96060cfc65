"""Runs unittest as `python -m unittest` does and reports, signed, how each test ended. See `report` for the rules."""

from report import Watch, act_as_module, report_on

WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of what it did
ENDS = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "error",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}
NOT_LOADED = ("unittest.loader._FailedTest.", "unittest.loader.ModuleSkipped.")  # what stands for a whole module


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


def make_result_class(unittest, emit, watch):
    """The result class, whose state only its own functions can reach."""
    ends = {}  # id -> how the test that runs ended so far
    note = make_note(unittest, emit, ends)

    def noting(name, status):
        inherited = getattr(unittest.TextTestResult, name)

        def method(self, test, *details):
            note(test, status)
            inherited(self, test, *details)

        return method

    class Result(unittest.TextTestResult):
        def addSubTest(self, test, subtest, err):
            if err is not None:
                note(test, "failed")
            super().addSubTest(test, subtest, err)

        def stopTest(self, test):
            super().stopTest(test)
            name = test.id()
            if name in ends:
                emit(event="test", id=name, status=max(ends.pop(name), key=WORSE.index))
            watch.look()

    for name, status in ENDS.items():
        setattr(Result, name, noting(name, status))
    return Result


def prepare(emit):
    import unittest

    act_as_module("unittest", "python -m unittest")
    watch = Watch()

    class Runner(unittest.TextTestRunner):
        resultclass = make_result_class(unittest, emit, watch)

    return lambda: unittest.main(module=None, testRunner=Runner), lambda: watch.replaced


report_on("unittest", prepare)
