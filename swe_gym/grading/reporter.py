"""Runs tests under the reporter, a guest program whose first process plays counter-tests and signs all results."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import FileError, SandboxError
from ..guests import bundle
from ..sandboxes import Sandbox
from ..types import ExecResult, Frozen, JsonMapping, JsonObject, TestStatus
from .plan import RunnerCall

STEADY_ENV: Mapping[str, str] = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
"""Variables of the hidden tests, unless the task sets them: the same work gets the same verdict."""

MAX_OUTPUT = 1 << 18

EXTRA = 3.0
"""Seconds that twins may add to the time limit of the tests."""

TWIN_SHARE, TWIN_LIMITS = 0.1, (1.0, 10.0)
"""Time limit of a twin: a share of the tests', within these seconds. One that runs into it ends the proof."""

STARTER = """\
\""":"
swe_gym_real() {{
    case "$1" in /*) ;; *) set -- "./$1" ;; esac
    CDPATH= cd -- "$1" >&- 2>&- && pwd -P
}}
swe_gym_hold() {{
    work=$(swe_gym_real {workdir}) path= rest="$1:"
    while [ -n "$rest" ]; do
        folder="${{rest%%:*}}" rest="${{rest#*:}}"
        case "$(swe_gym_real "${{folder:-.}}")/" in / | "$work"/*) folder="${{0%/*}}/held/$folder" ;; esac
        path="$path:$folder"
    done
    printf %s "${{path#:}}"
}}
if [ -n "$PYTHONPATH" ]; then PYTHONPATH=$(swe_gym_hold "$PYTHONPATH"); fi
swe_gym_after=
for swe_gym_word; do
    shift
    case "$swe_gym_after$swe_gym_word" in
        "$0") swe_gym_after=/ ;;
        [!/]*PYTHONPATH=?* | [!/]*PYTHONPATH+=?*)
            echo "swe-gym: '$swe_gym_word' sets PYTHONPATH out of reach: set it before the program" >&2
            exit 96
            ;;
        PYTHONPATH=?*) swe_gym_word="PYTHONPATH=$(swe_gym_hold "${{swe_gym_word#*=}}")" ;;
    esac
    set -- "$@" "$swe_gym_word"
done
exec "$@"
":\"""
"""
"""Head of a program that is a shell script too, which starts Python without the folders of the workspace.

Python imports modules at its start, such as those that files `*.pth` of an environment name. Those of the workspace
would run before the keeper forks. So `PYTHONPATH`, also where an argument before the program sets it, names folders
that do not exist in their place. The program puts the folders back. A text that sets it, which `env -S` or another
shell would read, is refused.
"""

START = "${{BASH:-/bin/sh}} ${{BASH:+--posix}} {script}"
"""Runs the starter in the shell of the command, since others drop variables. Bash must not read `BASH_ENV` twice."""

SIGNATURE_BYTES = 64
MAX_REPORT = 16 << 20


class TwinGroup(Frozen):
    """Test functions that twins play together.

    Attributes:
        places: Path and names of each function.
        callers: Path and names of functions that may call them: twins play before those too.
        required: Required tests of the group, by the names that the task gives them.
        texts: Source of each function, for each text, in the order of play.
        plain: Source of each function as it is played after the twins.
        passing: Numbers of the texts that right work passes.
    """

    places: tuple[tuple[str, tuple[str, ...]], ...]
    callers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    required: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...]
    plain: tuple[str, ...]
    passing: tuple[int, ...]


class TwinOrder(Frozen):
    """What the keeper of a run is to play.

    Attributes:
        groups: The groups.
        stops: Whether twins stop after a text failed that right work passes, because the reward needs no more.
        only: Places of the only tests to run; None runs all.
    """

    groups: tuple[TwinGroup, ...] = ()
    stops: bool = True
    only: tuple[tuple[str, tuple[str, ...]], ...] | None = None

    def text(self, *, key: bytes, report: str, workdir: str, deadline: float) -> bytes:
        """Return the order as the keeper reads it. Under `known` is what it tells the session."""
        return json.dumps(
            {
                "key": key.hex(),
                "report": report,
                "stops": self.stops,
                "groups": [
                    {
                        "texts": group.texts,
                        "plain": group.plain,
                        "passing": group.passing,
                        "required": group.required,
                    }
                    for group in self.groups
                ],
                "known": {
                    "workdir": workdir,
                    "deadline": deadline,
                    "only": self.only,
                    "groups": [{"places": group.places, "callers": group.callers} for group in self.groups],
                },
            }
        ).encode()


class PlayedText(Frozen):
    """The end of one text of a group, played by a twin.

    Attributes:
        statuses: Status of each test that the twin ran, by the name that the task gives it.
        error: Why the twin could not play; empty if it could.
    """

    statuses: dict[str, TestStatus] = {}
    error: str = ""


class TwinEnd(Frozen):
    """A signed line about a twin.

    Attributes:
        group: Number of the group.
        text: Number of the text.
        ends: Status of each test, by the name that the session would report.
        error: Why the twin could not play; empty if it could.
    """

    group: int
    text: int
    ends: dict[str, TestStatus] = {}
    error: str = ""

    def report(self) -> SignedReport:
        """Return the ends as a report of their own."""
        tests: dict[str, tuple[TestStatus, ...]] = {}
        bad: dict[str, TestStatus] = {}
        for test, end in self.ends.items():
            tests[test] = (end,)
            if end is not TestStatus.PASSED:
                bad[test] = end
        return SignedReport(tests=tests, groups=bad)


class SignedReport(Frozen):
    """The signed lines of one test run.

    Attributes:
        began: The reporter read its order, which it does before any code of the work runs.
        absent: The runner is not installed.
        started: The runner was imported; product code may have run since.
        tests: Test id -> status of each time it ran.
        groups: Id of a module, class or file that failed to load -> status.
        exit_code: The reporter's exit code; None if it did not finish.
        twins: Ends of the twins, in the order of play.
        unsettled: Group into whose functions the session could not put the original -> why.
    """

    began: bool = True
    absent: bool = False
    started: bool = False
    tests: dict[str, tuple[TestStatus, ...]] = {}
    groups: dict[str, TestStatus] = {}
    exit_code: int | None = None
    twins: tuple[TwinEnd, ...] = ()
    unsettled: dict[int, str] = {}

    def status(self, test_id: str) -> TestStatus:
        """Return the worst status of a test; `MISSING` if the report does not name it.

        Published lists hold ids cut at their first blank. Such an id stands for all tests that it begins.
        """
        ends = self.tests.get(test_id, ())
        if not ends:
            ends = tuple(end for name, found in self.tests.items() if name.startswith(test_id + " ") for end in found)
        if ends == (TestStatus.PASSED,) and not self.groups:
            return TestStatus.PASSED
        for end in ends:
            if end is not TestStatus.PASSED:
                return end
        for name, end in self.groups.items():
            if test_id == name or test_id.startswith((name + "::", name + ".")):
                return end
        return ends[0] if ends else TestStatus.MISSING

    def statuses(self, tests: Iterable[str]) -> dict[str, TestStatus]:
        """Return the status of each test that the report names, and of these tests."""
        named = tuple(dict.fromkeys((*self.tests, *tests)))
        return dict(zip(named, map(self.status, named), strict=True))

    def played(
        self, statuses: Callable[[SignedReport, Sequence[str]], dict[str, TestStatus]], order: TwinOrder
    ) -> dict[int, dict[int, PlayedText]]:
        """Return how twins ended: number of a group -> number of a text -> its end.

        Args:
            statuses: Returns the status of each test of a report, and of these tests, by the names that the task gives
                them.
            order: What the keeper was to play.
        """
        found: dict[int, dict[int, PlayedText]] = {}
        required = {number: group.required for number, group in enumerate(order.groups)}
        for twin in self.twins:
            ends = PlayedText(statuses=statuses(twin.report(), required.get(twin.group, ())), error=twin.error)
            found.setdefault(twin.group, {})[twin.text] = ends
        return found

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
    return f"the hidden tests ran into their timeout of {round(timeout, 1):g} s"


def run_reporter(
    call: RunnerCall, sandbox: Sandbox, timeout: float, options: Sequence[str] = (), twins: TwinOrder | None = None
) -> tuple[SignedReport, ExecResult]:
    """Run a test command with the reporter in place of its runner.

    Args:
        call: The test command.
        sandbox: Holds the hidden tests and the work.
        timeout: Time limit in seconds. Twins may take a little more.
        options: Options for pytest.
        twins: The twins to play.

    Raises:
        SandboxError: The sandbox failed.
    """
    twins = twins or TwinOrder()
    key = secrets.token_bytes(32)
    folder = name_folder(sandbox)
    least, most = TWIN_LIMITS
    deadline = min(max(least, TWIN_SHARE * timeout), most)
    order = twins.text(key=key, report=f"{folder}/report", workdir=sandbox.workdir, deadline=deadline)
    sandbox.write_file(f"{folder}/order", order, mode=0o600)
    program = f"report_{call.module}"
    script = f"{folder}/{program}.py"
    starter = STARTER.format(workdir=shlex.quote(sandbox.workdir))
    sandbox.write_file(script, f"{starter}{bundle(program)}".encode())
    # A file that cannot be imported, perhaps one of the policy's own, must not stop the others.
    options = [*options, "--continue-on-collection-errors"] if call.module == "pytest" else []
    result = sandbox.exec(
        call.text(script, options, starter=START.format(script=shlex.quote(script))),
        timeout=timeout + (EXTRA if twins.groups else 0.0),
        env=steady_env(sandbox),
        max_output=MAX_OUTPUT,
        merge=True,
    )
    if result.timed_out:  # only what twins said counts: a guess that failed is not repeated
        return SignedReport(twins=_twins_so_far(sandbox, f"{folder}/report", key)), result
    report = read_report(_read(sandbox, f"{folder}/report"), key)
    waits = _read(sandbox, f"{folder}/order") == order  # the keeper deletes it before any code of the work runs
    return report.model_copy(update={"began": not waits}), result


def _twins_so_far(sandbox: Sandbox, report: str, key: bytes) -> tuple[TwinEnd, ...]:
    try:
        return read_report(_read(sandbox, report), key).twins
    except SandboxError:  # code of the work that still runs there need not let us read
        return ()


def steady_env(sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of `STEADY_ENV` that the task does not set itself."""
    return {name: value for name, value in STEADY_ENV.items() if name not in sandbox.spec.env}


def name_folder(sandbox: Sandbox) -> str:
    """Return the path of a new temporary folder outside the workspace. It is made when a file is written into it."""
    return sandbox.resolve(f"{sandbox.environment().get('TMPDIR') or '/tmp'}/swe-gym-{secrets.token_hex(8)}")


def _read(sandbox: Sandbox, path: str) -> bytes:
    """The content of a file; empty if it is missing, as after tests that delete it."""
    try:
        return sandbox.read_file(path, max_bytes=MAX_REPORT)
    except FileError:
        return b""


def read_report(data: bytes, key: bytes) -> SignedReport:
    """Read a report. Lines without the next valid signature, and events of no known form, are ignored."""
    found: JsonObject = {"tests": {}, "groups": {}, "twins": [], "unsettled": {}}
    last = b""
    for line in data.split(b"\n"):
        signature, _, text = line.partition(b" ")
        if len(signature) != SIGNATURE_BYTES:
            continue
        expected = hmac.new(key, last + text, hashlib.sha256).hexdigest().encode()
        if hmac.compare_digest(signature, expected):
            last = signature
            try:
                _add(found, json.loads(text))
            except (
                KeyError,
                TypeError,
                ValueError,
                OverflowError,
                RecursionError,
            ):  # code of the work can have the keeper sign nonsense
                continue
    return SignedReport.model_validate(found)


def _add(found: JsonObject, event: JsonMapping) -> None:
    match event["event"]:
        case "test":
            test = str(event["id"])
            found["tests"][test] = (*found["tests"].get(test, ()), TestStatus(event["status"]))
        case "group":
            found["groups"][str(event["id"])] = TestStatus(event["status"])
        case "twin":
            ends = {"group": event["group"], "text": event["text"], "ends": event["ends"], "error": event["error"]}
            found["twins"].append(TwinEnd.model_validate(ends))
        case "unsettled":
            found["unsettled"][int(event["group"])] = str(event["error"])
        case "end":
            found["exit_code"] = int(event["exit_code"])
        case "absent" | "started":
            found[event["event"]] = True
