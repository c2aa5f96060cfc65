"""The grader "expected": every test must end as a map says, failures included, and no other test may run."""

from collections.abc import Mapping

from ..errors import GradingError
from ..sandboxes import Sandbox
from ..types import Task, TestStatus, Verdict
from .base import Grader, Ready, Results
from .evaluation import evaluate
from .log import NO_RESULTS, some

COMPARED = (TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR)
"""Statuses that are compared. Maps hold no skipped tests and no expected failures."""


def run_expected(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the evaluation script.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    if not ready.task.oracle.expected:
        raise GradingError(f"task {ready.task.task_id}: its oracle expects no test")
    return evaluate(ready, sandbox)


def decide_expected(task: Task, results: Results) -> Verdict:
    """Compare a run with the map: the same tests, with the same statuses.

    In the verdict, `pass_to_pass` holds the tests of the map, and `passed` means that a test ended as the map says.
    """
    expected = task.oracle.expected
    statuses = {test: status for test, status in results.statuses.items() if status in COMPARED}
    reason = results.reason or ("" if statuses else NO_RESULTS)
    if reason:
        statuses = {}
    reason = reason or difference(expected, statuses)
    return Verdict(
        resolved=not reason,
        pass_to_pass={test: as_expected(status, statuses.get(test)) for test, status in expected.items()},
        reason=reason,
        notes=notes(expected, statuses),
        **results.facts(),
    )


EXPECTED = Grader(run_expected, decide_expected)
"""The grader "expected"."""


def as_expected(expected: TestStatus, found: TestStatus | None) -> TestStatus:
    """Return a test's status in the verdict: `PASSED` if it ended as expected.

    A test that passes although the map says otherwise counts as `XPASSED`.
    """
    if found is expected:
        return TestStatus.PASSED
    if found is None:
        return TestStatus.MISSING
    return TestStatus.XPASSED if found is TestStatus.PASSED else found


def difference(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus]) -> str:
    """Return how many tests differ from a map, without names, which only graders may see. Empty if none differs."""
    other = sum(found[test] is not status for test, status in expected.items() if test in found)
    missing = sum(test not in found for test in expected)
    extra = sum(test not in expected for test in found)
    parts = [
        f"{other} of {len(expected)} tests did not end as expected" if other else "",
        f"{missing} of {len(expected)} expected tests are missing" if missing else "",
        f"{extra} unexpected tests ran" if extra else "",
    ]
    return "; ".join(filter(None, parts))


def notes(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus]) -> tuple[str, ...]:
    """Return the names of missing and unexpected tests."""
    missing = [test for test in expected if found and test not in found]
    extra = [test for test in found if test not in expected]
    said = {"expected tests are missing": missing, "tests are not expected": extra}
    return tuple(f"{len(tests)} {what}: {some(tests)}" for what, tests in said.items() if tests)
