"""Judges an exported task without swe_gym: restores its tests, runs them, writes the reward. Lies in `/tests`.

`restore` puts the tests of the task in place of the policy's. `run pytest ...` and `run unittest ...` run tests as
`python -m` does and record their results. `reward FILE` writes 1 if every required test passed, else 0.
"""

import fnmatch
import json
import os
import shutil
import sys
import unittest

if __name__ != "__main__":  # for type checkers
    import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results.json")


def order() -> dict:  # type: ignore[type-arg]
    with open(os.path.join(HERE, "order.json"), encoding="utf-8") as file:
        return dict(json.load(file))


def belongs_to_tests(path: str, globs: "list[str]") -> bool:
    return any(fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(path, glob + "/*") for glob in globs)


def restore() -> None:
    """Remove all files that belong to the tests, and add the task's."""
    globs = order()["test_paths"]
    for folder, folders, names in os.walk("."):
        if ".git" in folders:
            folders.remove(".git")
        for name in names:
            path = os.path.join(folder, name)
            if belongs_to_tests(os.path.relpath(path), globs):
                os.remove(path)
    files = os.path.join(HERE, "files")
    for folder, _, names in os.walk(files):
        for name in names:
            source = os.path.join(folder, name)
            path = os.path.relpath(source, files)
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.remove(path)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            shutil.copy(source, path)


class PassedTests:
    """Test -> whether it passed, written after the run."""

    def __init__(self) -> None:
        self.passed = {}  # type: dict[str, bool]

    def add(self, test: str, passed: bool) -> None:
        self.passed[test] = passed and self.passed.get(test, True)

    def write(self) -> None:
        with open(RESULTS, "w", encoding="utf-8") as file:
            json.dump(self.passed, file)


def run_unittest(arguments: "list[str]", results: PassedTests) -> int:
    class UnittestRecorder(unittest.TextTestResult):
        def addSuccess(self, test: unittest.TestCase) -> None:
            super().addSuccess(test)
            results.add(test.id(), True)

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            bad = [*self.failures, *self.errors, *self.skipped, *self.expectedFailures]
            ends = [getattr(one, "test_case", one) for one, _ in bad]  # of a sub-test, its test
            if test in ends or test in self.unexpectedSuccesses:
                results.add(test.id(), False)

    class RecordingRunner(unittest.TextTestRunner):
        resultclass = UnittestRecorder  # type: ignore[assignment]

    argv = ["python -m unittest", *arguments]
    done = unittest.main(module=None, argv=argv, testRunner=RecordingRunner, exit=False)
    return 0 if done.result.wasSuccessful() else 1


def run_pytest(arguments: "list[str]", results: PassedTests) -> int:
    import pytest

    class PytestRecorder:
        def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
            bad = not report.passed or hasattr(report, "wasxfail")
            if bad or report.when == "call":
                results.add(report.nodeid, not bad)

    return int(pytest.main(arguments, plugins=[PytestRecorder()]))


def run(arguments: "list[str]") -> int:
    sys.path[0] = os.getcwd()  # as `python -m` does
    sys.argv = arguments
    results = PassedTests()
    try:
        runner = run_pytest if arguments[0] == "pytest" else run_unittest
        return runner(arguments[1:], results)
    finally:
        results.write()


def reward(path: str) -> None:
    """Write the reward. Without results, it is 0."""
    passed = {}
    if os.path.isfile(RESULTS):
        with open(RESULTS, encoding="utf-8") as file:
            passed = json.load(file)
    required = order()["required"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("1\n" if required and all(is_passed(test, passed) for test in required) else "0\n")


def is_passed(test: str, passed: "dict[str, bool]") -> bool:
    """Return whether a required test passed. Many lists cut the ids of pytest at their first blank."""
    if test in passed:
        return passed[test]
    words = test.split()
    found = [ok for name, ok in passed.items() if name.split() == words]
    if not found and "::" in test:
        found = [ok for name, ok in passed.items() if name.split(None, 1)[:1] == [test]]
    return bool(found) and all(found)


if __name__ == "__main__":
    if sys.argv[1] == "restore":
        restore()
    elif sys.argv[1] == "reward":
        reward(sys.argv[2])
    else:
        sys.exit(run(sys.argv[2:]))
