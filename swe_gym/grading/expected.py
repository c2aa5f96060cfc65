"""The grader "expected": every test must end as a map says, failures too, and there may be no other test."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import GradingError
from ..sandboxes.base import Sandbox
from ..types import Task, TestStatus, Verdict
from .base import Evaluation, Grader, Ready
from .evaluation import evaluate
from .log import NO_RESULTS, some

COMPARED = (TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.NOT_RUN)
"""The statuses that maps know, and tests that ran only changed. Maps hold no skipped tests and no expected failures."""


def run_expected(ready: Ready, sandbox: Sandbox) -> Evaluation:
    """Run the evaluation script.

    Args:
        ready: The task; its oracle brings the script, the name of the log's parser and the map.
        sandbox: Holds the hidden tests and the work.

    Raises:
        GradingError: No verdict is possible, and the work is not to blame.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    if not ready.task.oracle.expected:
        raise GradingError(f"task {ready.task.task_id}: its oracle expects no test")
    return evaluate(ready, sandbox)


def decide_expected(task: Task, found: Evaluation) -> Verdict:
    """Compare: the same tests, each ended the same way.

    In the verdict, `pass_to_pass` holds the tests of the map. One that ended as the map says is `passed`, even if the
    map says that it fails.
    """
    expected = task.oracle.expected
    statuses = {test: status for test, status in found.statuses.items() if status in COMPARED}
    reason = found.reason or ("" if statuses else NO_RESULTS)
    if reason:
        statuses = {}
    extra = [test for test in statuses if test not in expected]
    reason = reason or difference(expected, statuses)
    return Verdict(
        resolved=not reason,
        pass_to_pass={test: as_expected(status, statuses.get(test)) for test, status in expected.items()},
        reason=reason,
        notes=notes(expected, statuses, extra),
        **found.facts(),
    )


EXPECTED = Grader(run_expected, decide_expected)
"""The grader "expected"."""


def as_expected(expected: TestStatus, found: TestStatus | None) -> TestStatus:
    """A test's status in the verdict: `PASSED` where it ended as expected, else how it ended.

    A test that passes where the map says otherwise did not end as the task wants: it counts as `XPASSED`.
    """
    if found is expected:
        return TestStatus.PASSED
    if found is TestStatus.NOT_RUN:
        return found
    if found is None:
        return TestStatus.MISSING
    return TestStatus.XPASSED if found is TestStatus.PASSED else found


def difference(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus]) -> str:
    """How a run differs from a map, in numbers: the names are the oracle's. Empty where it does not."""
    other = sum(found[test] not in (status, TestStatus.NOT_RUN) for test, status in expected.items() if test in found)
    missing = sum(test not in found for test in expected)
    extra = sum(test not in expected for test in found)
    parts = [
        f"{other} of {len(expected)} tests did not end as expected" if other else "",
        f"{missing} of {len(expected)} expected tests are missing" if missing else "",
        f"{extra} tests are there that are not expected" if extra else "",
    ]
    return "; ".join(filter(None, parts))


def notes(expected: Mapping[str, TestStatus], found: Mapping[str, TestStatus], extra: list[str]) -> tuple[str, ...]:
    """The names of the tests in which a run differs from a map."""
    missing = [test for test in expected if found and test not in found]
    said = {"expected tests are missing": missing, "tests are not expected": extra}
    return tuple(f"{len(tests)} {what}: {some(tests)}" for what, tests in said.items() if tests)
