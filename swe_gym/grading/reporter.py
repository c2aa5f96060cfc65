"""Runs tests under the reporter, a guest program that signs the result of each test."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence

from ..errors import FileError, SandboxError
from ..guests import bundle
from ..sandboxes.base import Sandbox
from ..types import ExecResult, Frozen, JsonMapping, JsonObject, TestStatus
from .command import RunnerCall

STEADY_ENV: Mapping[str, str] = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
"""Variables of the hidden tests, unless the task sets them: the same work gets the same verdict."""

MAX_OUTPUT = 1 << 18
SIGNATURE_BYTES = 64
MAX_REPORT = 16 << 20


class Report(Frozen):
    """The signed lines of one test run.

    Attributes:
        began: The reporter read its order, which it does before any code of the work runs.
        absent: The runner is not installed.
        started: The runner was imported; product code may have run since.
        tests: Test id -> status of each time it ran.
        groups: Id of a module, class or file that failed to load -> status.
        exit_code: The reporter's exit code; None if it did not finish.
    """

    began: bool = True
    absent: bool = False
    started: bool = False
    tests: dict[str, tuple[TestStatus, ...]] = {}
    groups: dict[str, TestStatus] = {}
    exit_code: int | None = None

    def status(self, test_id: str) -> TestStatus:
        """Return the worst status of a test; `MISSING` if the report does not name it.

        Published lists hold ids cut at their first blank. Such an id stands for all tests that it begins.
        """
        ends = self.tests.get(test_id, ())
        if not ends:
            ends = tuple(end for name, found in self.tests.items() if name.startswith(test_id + " ") for end in found)
        bad = [end for end in ends if end is not TestStatus.PASSED]
        group = [
            end for name, end in self.groups.items() if test_id == name or test_id.startswith((name + "::", name + "."))
        ]
        return next(iter([*bad, *group, *ends]), TestStatus.MISSING)

    def contradiction(self, result: ExecResult, timeout: float) -> str:
        """Return why the report does not count, given the result of the command; empty if it counts."""
        if result.timed_out:
            return timeout_reason(timeout)
        if not self.started:
            return f"the test runner did not start, or its report is gone ({result.describe()})"
        if self.exit_code is None:
            return f"the test process ended before the test runner did ({result.describe()})"
        if result.exit_code != self.exit_code & 0xFF:
            return f"the command's end ({result.describe()}) contradicts the test runner's, exit code {self.exit_code}"
        return ""


def timeout_reason(timeout: float) -> str:
    """Return the reason of a verdict on tests that timed out."""
    return f"the hidden tests ran into their timeout of {timeout:g} s"


def run_reporter(
    call: RunnerCall, sandbox: Sandbox, timeout: float, options: Sequence[str] = ()
) -> tuple[Report, ExecResult]:
    """Run a test command with the reporter in place of its runner.

    Args:
        call: The test command.
        sandbox: Holds the hidden tests and the work.
        timeout: Time limit in seconds.
        options: Options for pytest.

    Raises:
        SandboxError: The sandbox failed.
    """
    key = secrets.token_bytes(32)
    folder = make_folder(sandbox)
    order = f"{key.hex()}\n{folder}/report\n{sandbox.workdir}\n".encode()
    sandbox.write_file(f"{folder}/order", order, mode=0o600)
    program = f"report_{call.module}"
    sandbox.write_file(f"{folder}/{program}.py", bundle(program).encode())
    # A file that cannot be imported, perhaps one of the policy's own, must not stop the others.
    options = [*options, "--continue-on-collection-errors"] if call.module == "pytest" else []
    result = sandbox.exec(
        call.text(f"{folder}/{program}.py", options),
        timeout=timeout,
        env=steady_env(sandbox),
        max_output=MAX_OUTPUT,
        merge=True,
    )
    report = read_report(_read(sandbox, f"{folder}/report"), key)
    waits = _read(sandbox, f"{folder}/order") == order  # the reporter deletes it before any code of the work runs
    return report.model_copy(update={"began": not waits}), result


def steady_env(sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of `STEADY_ENV` that the task does not set itself."""
    return {name: value for name, value in STEADY_ENV.items() if name not in sandbox.spec.env}


def make_folder(sandbox: Sandbox) -> str:
    """Make a temporary folder outside the workspace.

    Raises:
        SandboxError: The sandbox failed.
    """
    made = sandbox.exec(["mktemp", "-d"])
    folder = made.text.strip()
    if not made.ok or not folder.startswith("/"):
        raise SandboxError(f"cannot make a temporary folder: {made.describe()}", detail=made.error_text[-2000:])
    return folder


def _read(sandbox: Sandbox, path: str) -> bytes:
    """The content of a file; empty if it is missing, as after tests that delete it."""
    try:
        return sandbox.read_file(path, max_bytes=MAX_REPORT)
    except FileError:
        return b""


def read_report(data: bytes, key: bytes) -> Report:
    """Read a report. Lines without the next valid signature are ignored."""
    found: JsonObject = {"tests": {}, "groups": {}}
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


def _add(found: JsonObject, event: JsonMapping) -> None:
    kind = event["event"]
    if kind == "test":
        found["tests"][event["id"]] = (*found["tests"].get(event["id"], ()), event["status"])
    elif kind == "group":
        found["groups"][event["id"]] = event["status"]
    elif kind == "end":
        found["exit_code"] = event["exit_code"]
    else:
        found["absent" if kind == "absent" else "started"] = True
