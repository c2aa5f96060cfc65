"""The grader "tests": runs the hidden tests under our reporter and believes nothing but what the reporter signed."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FileError, GradingError, SandboxError
from ..guests import bundle
from ..sandboxes.base import Sandbox
from ..types import ExecResult, Frozen, Task, TestStatus, Verdict
from .base import Evaluation, Grader, Ready
from .command import TestCommand, parse_command

STEADY_ENV: Mapping[str, str] = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
"""Set for the hidden tests where the task does not set it, so that the same work gets the same verdict."""

MAX_OUTPUT = 1 << 18
SIGNATURE_BYTES = 64
MAX_REPORT = 16 << 20


def run_tests(ready: Ready, sandbox: Sandbox) -> Evaluation:
    """Run the hidden tests and read, test by test, how they ended.

    Args:
        ready: The task; its oracle names the command and the required tests.
        sandbox: Holds the hidden tests and the work.

    Raises:
        GradingError: The task names no test or no runner, or the runner is missing and the work is not to blame.
        SandboxError: The sandbox failed.
    """
    task = ready.task
    required = (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)
    if not required:
        raise GradingError(f"task {task.task_id}: its oracle names no test that must pass")
    report, result = _run(task, sandbox)
    reason = contradiction(report, result, task.oracle.timeout)
    statuses: dict[str, TestStatus] = {test: report.status(test) for test in (*report.tests, *required)}
    return Evaluation(judge="reporter", statuses=statuses, ran=report.started, reason=reason, result=result)


def decide_tests(task: Task, found: Evaluation) -> Verdict:
    """Resolved if every required test passed and nothing contradicts the run."""
    statuses = {} if found.reason else found.statuses  # in a run that cannot be believed no test passed
    fail_to_pass = {test: statuses.get(test, TestStatus.MISSING) for test in task.oracle.fail_to_pass}
    pass_to_pass = {test: statuses.get(test, TestStatus.MISSING) for test in task.oracle.pass_to_pass}
    reason = found.reason or shortfall(fail_to_pass.values(), pass_to_pass.values())
    return Verdict(
        resolved=not reason, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, reason=reason, **found.facts()
    )


TESTS = Grader(run_tests, decide_tests)
"""The grader "tests"."""


def find_statuses(task: Task, sandbox: Sandbox) -> dict[str, TestStatus]:
    """Run the hidden tests and return how every test ended, required or not: how tasks get their lists.

    Args:
        task: The task; of its oracle only the command and its timeout count.
        sandbox: Fresh, with the hidden tests and the work in it.

    Raises:
        GradingError: The run cannot be believed, or the runner is missing or unknown.
        SandboxError: The sandbox failed.
    """
    report, result = _run(task, sandbox)
    reason = contradiction(report, result, task.oracle.timeout)
    if reason:
        raise GradingError(f"task {task.task_id}: {reason}: {result.text[-2000:].strip()}")
    return {test: report.status(test) for test in report.tests}


def _run(task: Task, sandbox: Sandbox) -> tuple[Report, ExecResult]:
    command = parse_command(task.oracle.test_cmd, sandbox.workdir)
    if command is None:
        raise GradingError(
            f"task {task.task_id}: its test_cmd must call `python -m pytest` or `python -m unittest` exactly once; "
            "for another command use the grader 'exit_code'"
        )
    report, result = run_reporter(command, sandbox, task)
    if report.absent:
        raise GradingError(f"task {task.task_id}: {command.module} is not installed in its environment")
    if not report.began and command.only_runs_tests:
        raise GradingError(
            f"task {task.task_id}: the test runner did not start ({result.describe()}): {result.text[-2000:].strip()}"
        )
    return report, result


def run_reporter(command: TestCommand, sandbox: Sandbox, task: Task) -> tuple[Report, ExecResult]:
    """Run a test command of a task with our reporter in the runner's place.

    Raises:
        SandboxError: The sandbox failed.
    """
    key = secrets.token_bytes(32)
    folder = make_folder(sandbox)
    order = f"{key.hex()}\n{folder}/report\n{sandbox.workdir}\n".encode()
    sandbox.write_file(f"{folder}/order", order, mode=0o600)
    program = f"report_{command.module}"
    sandbox.write_file(f"{folder}/{program}.py", bundle(program).encode())
    result = sandbox.exec(
        command.text(f"{folder}/{program}.py", _options(command)),
        timeout=task.oracle.timeout,
        env=steady_env(sandbox),
        max_output=MAX_OUTPUT,
        merge=True,
    )
    report = read_report(_read(sandbox, f"{folder}/report"), key)
    waits = _read(sandbox, f"{folder}/order") == order  # it is gone before any code of the work runs
    return report.model_copy(update={"began": not waits}), result


def steady_env(sandbox: Sandbox) -> dict[str, str]:
    """What of `STEADY_ENV` the task does not set itself."""
    return {name: value for name, value in STEADY_ENV.items() if name not in sandbox.spec.env}


def _options(command: TestCommand) -> list[str]:
    """A file that cannot be imported, of the policy's own for instance, must not keep the others from running."""
    return ["--continue-on-collection-errors"] if command.module == "pytest" else []


def make_folder(sandbox: Sandbox) -> str:
    """A new folder for the reporter, outside of the workspace."""
    made = sandbox.exec(["mktemp", "-d"])
    folder = made.text.strip()
    if not made.ok or not folder.startswith("/"):
        raise SandboxError(f"no temporary folder could be made: {made.describe()}", detail=made.error_text[-2000:])
    return folder


def _read(sandbox: Sandbox, path: str) -> bytes:
    """A file of the run's; nothing where there is none, or where the tests did away with it."""
    try:
        return sandbox.read_file(path, max_bytes=MAX_REPORT)
    except FileError:
        return b""


# --- what the reporter said ------------------------------------------------------------------------------


class Report(Frozen):
    """The signed lines of one test run.

    Attributes:
        began: The reporter took its order, which it does before any code of the work runs.
        absent: The runner is not installed.
        started: The runner was there, and product code may have run since.
        tests: Test id -> how it ended, every time it ran.
        groups: Id of a module, class or file that did not come up -> how.
        exit_code: What the reporter ended with; None where it did not come to its end.
    """

    began: bool = True
    absent: bool = False
    started: bool = False
    tests: dict[str, tuple[TestStatus, ...]] = {}
    groups: dict[str, TestStatus] = {}
    exit_code: int | None = None

    def status(self, test_id: str) -> TestStatus:
        """How a test ended: as the worst of its runs; `MISSING` where there is no word of it.

        Published lists hold ids that were cut at their first blank. Such an id stands for all tests that it begins.
        """
        ends = self.tests.get(test_id, ())
        if not ends:
            ends = tuple(end for name, found in self.tests.items() if name.startswith(test_id + " ") for end in found)
        bad = [end for end in ends if end is not TestStatus.PASSED]
        group = [
            end for name, end in self.groups.items() if test_id == name or test_id.startswith((name + "::", name + "."))
        ]
        return next(iter([*bad, *group, *ends]), TestStatus.MISSING)


def read_report(data: bytes, key: bytes) -> Report:
    """Read a report; lines that do not bear the next valid signature do not count."""
    found: dict[str, Any] = {"tests": {}, "groups": {}}
    last = b""
    for line in data.split(b"\n"):
        signature, _, text = line.partition(b" ")
        if len(signature) != SIGNATURE_BYTES:
            continue
        expected = hmac.new(key, last + text, hashlib.sha256).hexdigest().encode()
        if hmac.compare_digest(signature, expected):
            last = signature
            _add(found, json.loads(text))
    return Report.model_validate(found)


def _add(found: dict[str, Any], event: Mapping[str, Any]) -> None:
    kind = event["event"]
    if kind == "test":
        found["tests"][event["id"]] = (*found["tests"].get(event["id"], ()), event["status"])
    elif kind == "group":
        found["groups"][event["id"]] = event["status"]
    elif kind == "end":
        found["exit_code"] = event["exit_code"]
    else:
        found["absent" if kind == "absent" else "started"] = True


# --- the verdict ------------------------------------------------------------------------------------------


def contradiction(report: Report, result: ExecResult, timeout: float) -> str:
    """Why nothing in the report counts; empty where it does."""
    if result.timed_out:
        return f"the hidden tests ran into their timeout of {timeout:g} s"
    if not report.started:
        return f"the test runner did not start, or its report is gone ({result.describe()})"
    if report.exit_code is None:
        return f"the test process ended before the test runner did ({result.describe()})"
    if result.exit_code != report.exit_code & 0xFF:
        return f"the command's end ({result.describe()}) contradicts the test runner's, exit code {report.exit_code}"
    return ""


def shortfall(fail_to_pass: Iterable[TestStatus], pass_to_pass: Iterable[TestStatus]) -> str:
    """Which required tests did not pass, in numbers: their names are the oracle's."""
    parts = []
    for statuses, what in ((list(fail_to_pass), "had to start passing"), (list(pass_to_pass), "had to keep passing")):
        failed = sum(status not in (TestStatus.PASSED, TestStatus.NOT_RUN) for status in statuses)
        if failed:
            parts.append(f"{failed} of {len(statuses)} tests that {what} did not pass")
    return "; ".join(parts)
