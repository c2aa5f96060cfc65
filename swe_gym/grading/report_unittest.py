"""Runs unittest as `python -m unittest` does and reports, signed, how each test ended. See `report` for the rules."""

from report import Watch, act_as_module, run

WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of what it did
ENDS = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "error",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}
LOAD_FAILURE = "unittest.loader._FailedTest."


def make_result_class(unittest, emit, watch):
    """The result class, whose state only its own functions can reach."""
    ends = {}  # id -> how the test that runs ended so far

    def note(test, status):
        test = getattr(test, "test_case", test)  # a sub-test counts for its test
        name = test.id()
        if name.startswith(LOAD_FAILURE):
            emit(event="group", id=name[len(LOAD_FAILURE) :], status=status)
        elif not isinstance(test, unittest.TestCase):  # "setUpClass (module.Class)", "tearDownModule (module)"
            emit(event="group", id=name.partition("(")[2].rstrip(")"), status=status)
        else:
            ends.setdefault(name, []).append(status)

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

    return lambda: unittest.main(module=None, testRunner=Runner), watch.look


run("unittest", prepare)
