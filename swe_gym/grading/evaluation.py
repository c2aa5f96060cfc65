"""Runs the tests of an evaluation script and reads their results: from the reporter if possible, else from the log."""

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from ..errors import FileError, GradingError, TaskError, UsageError
from ..sandboxes import Sandbox
from ..types import ExecResult, JsonObject, Oracle, ParserProgram, Task, TestStatus
from .base import Ready, Results
from .log_parsers import load_parser, pytest_name
from .log_parsers.lines import note
from .plan import RunnerCall
from .protect import hidden_files
from .reporter import SignedReport, name_folder, run_reporter, steady_env, timeout_reason
from .staging import MAX_LOG, restore

NOT_RUN = (126, 127)
"""Exit codes of a shell that cannot run a command."""

COUNTS = re.compile(
    r"\b[1-9]\d* (?:passed|passing|failed|failing|tests? passed)\b"
    r"|\bRan [1-9]\d* tests?\b"
    r"|\bTests run: [1-9]"
    r"|\btests finished: [1-9]"
    r"|\bExecuted [1-9]\d* of \d"
    r"|^TOTAL: [1-9]"
    r"|^Tests:\s+[1-9]|^Test Suites:\s+[1-9]"
    r"|^# tests [1-9]"
    r"|\b[1-9]\d* specs?, \d",
    re.MULTILINE,
)
"""The last lines of runners that ran tests."""


def evaluate(ready: Ready, sandbox: Sandbox) -> Results:
    """Run the tests of an evaluation script whose preparation has run.

    Raises:
        GradingError: The output cannot be read.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    if not ready.plan.command:
        raise GradingError(f"task {ready.task.task_id}: its oracle has no eval_script")
    state = restore(ready.state, sandbox)
    if ready.plan.runner is not None:
        carried = ready.plan.runner.model_copy(update={"before": f"{state}{ready.plan.runner.before}"})
        results = _by_reporter(ready, carried, sandbox)
        if results is not None:
            return results
        if ready.twins.groups:  # files hold the covers of tests that nobody plays
            return Results(judge="log", forked=False, result=ExecResult(exit_code=None))
    command = f"{state}{ready.command}"
    if isinstance(ready.plan.parser, ParserProgram):
        return _by_program(ready, ready.plan.parser, command, sandbox)
    return _by_log(ready, ready.plan.parser, command, sandbox)


def _by_reporter(ready: Ready, call: RunnerCall, sandbox: Sandbox) -> Results | None:
    """The signed results; None if the runner is missing or the reporter cannot run in the task's Python."""
    oracle = ready.task.oracle
    files = _files_of(oracle, sandbox)  # read now: code of the work could delete them
    is_pytest = call.module == "pytest"
    report, result = run_reporter(call, sandbox, ready.limit, ready.options if is_pytest else (), ready.twins)
    if report.absent or not report.began:
        return None
    name = pytest_name(ready.plan.parser) or str

    def named(of: SignedReport, _required: Sequence[str] = ()) -> dict[str, TestStatus]:
        found: dict[str, TestStatus] = {}
        for test in of.groups:
            note(found, name(test), of.status(test))
        for test, ends in of.tests.items():
            # Several of unittest's tests may share a name. One of pytest's node ids is one test, however often it ran.
            for status in [of.status(test)] if is_pytest else ends:
                note(found, name(test), status)
        return found

    statuses = named(report)
    required = {*oracle.fail_to_pass, *oracle.pass_to_pass}
    printed = load_parser(oracle.log_parser)(result.text) if is_pytest else {}
    asked = {test: end for test, end in printed.items() if test in required or test.startswith("[")}
    unknown = {test: end for test, end in asked.items() if test not in statuses}
    odd = {test: end for test, end in unknown.items() if _is_not_a_test(test, files)}
    return Results(
        judge="reporter",
        statuses={**odd, **statuses},
        ran=True,
        reason=report.contradiction(result, ready.limit),
        result=result,
        twins=report.played(named, ready.twins),
        unsettled=report.unsettled,
    )


def _files_of(oracle: Oracle, sandbox: Sandbox) -> set[str] | None:
    """The files of the repository and of the hidden tests; None without a repository."""
    found = sandbox.exec(["git", "ls-files", "-z"], max_output=MAX_LOG)
    return {*found.text.split("\0"), *hidden_files(oracle)} if found.ok else None


def _is_not_a_test(test: str, files: Collection[str] | None) -> bool:
    """Whether a required id, which was printed and is unknown to the runner, is not one of its tests.

    Lists hold "[100%]": live logging prints progress where the test's name should be. They also hold tests of files
    that no repository has: pytest's own tests run pytest on files that they make, and print its output.
    """
    if test.startswith("["):
        return True
    path = test.partition("::")[0]
    return files is not None and not any(f"/{file}".endswith(f"/{path}") for file in files)


def _by_log(ready: Ready, parser: str, command: str, sandbox: Sandbox) -> Results:
    """The results that a log parser finds in the output."""
    task = ready.task
    try:
        parse = load_parser(parser)
    except UsageError as error:
        raise TaskError(f"task {task.task_id}: {error}") from error
    fails_only = task.oracle.fails_only
    result = _run(ready, command, sandbox)
    statuses, ran = parse(result.text), counts_tests(result.text)
    _check_command(task, result, ran=bool(statuses))
    reason = explain_contradiction(statuses, result, ready.limit, fails_only=fails_only)
    if ran and not statuses and not reason and not fails_only:
        raise GradingError(
            f"task {task.task_id}: tests ran, but the log parser {parser!r} finds none in the log: "
            f"{result.text[-2000:].strip()}"
        )
    return Results(judge="log", statuses=statuses, ran=ran or bool(statuses), reason=reason, result=result)


def _by_program(ready: Ready, program: ParserProgram, command: str, sandbox: Sandbox) -> Results:
    """The results that a dataset's own parser finds. It runs in a sandbox of its own, never in our process."""
    task = ready.task
    result = _run(ready, command, sandbox, merge=False)
    _check_command(task, result, ran=bool(result.stdout))
    with ready.open_fresh() as fresh:  # the work may have filled the other one's disk, or replaced its Python
        statuses = _parse(task, program, result, fresh)
    reason = explain_contradiction({}, result, ready.limit)
    return Results(judge="own_parser", statuses=statuses, ran=bool(statuses), reason=reason, result=result)


def _parse(task: Task, program: ParserProgram, result: ExecResult, fresh: Sandbox) -> dict[str, TestStatus]:
    """Run a parser program on files of standard output, standard error and its results.

    The results are `{"tests": [{"name": ..., "status": ...}]}`.
    """
    folder = name_folder(fresh)
    files = {"parser.py": program.root, "stdout": result.text, "stderr": result.error_text}
    for name, text in files.items():
        fresh.write_file(f"{folder}/{name}", text.encode())
    python = "$(command -v python3 || command -v python)"
    arguments = shlex.join(f"{folder}/{name}" for name in (*files, "results.json"))
    parsed = fresh.exec(f"{python} -I {arguments}", cwd=folder, timeout=task.oracle.timeout, merge=True)
    try:
        return read_results(json.loads(fresh.read_file(f"{folder}/results.json")))
    except (FileError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GradingError(
            f"task {task.task_id}: its own log parser gave no results ({parsed.describe()}, {error!r}): "
            f"{parsed.text[-2000:].strip()}"
        ) from error


def _run(ready: Ready, command: str, sandbox: Sandbox, *, merge: bool = True) -> ExecResult:
    folder = name_folder(sandbox)
    sandbox.write_file(f"{folder}/tests.sh", f"{command}\n".encode())
    return sandbox.exec(
        ["bash", f"{folder}/tests.sh"],
        timeout=ready.limit,
        env=steady_env(sandbox),
        max_output=MAX_LOG,
        merge=merge,
    )


def _check_command(task: Task, result: ExecResult, *, ran: bool) -> None:
    """A command that the shell cannot run says nothing about the work."""
    if not ran and result.exit_code in NOT_RUN:
        raise GradingError(
            f"task {task.task_id}: the test command cannot be run ({result.describe()}): {result.text[-2000:].strip()}"
        )


def counts_tests(log: str) -> bool:
    """Whether a log holds the last line of a runner that ran tests."""
    return bool(COUNTS.search(log))


def explain_contradiction(
    statuses: Mapping[str, TestStatus], result: ExecResult, timeout: float, *, fails_only: bool = False
) -> str:
    """Return why a log does not count; empty if it counts."""
    if result.timed_out:
        return timeout_reason(timeout)
    if result.signal is not None:
        return f"the test command did not finish ({result.describe()})"
    if (statuses or fails_only) and not names_failure(statuses) and result.exit_code != 0:
        return f"the command's end ({result.describe()}) contradicts its log, which names no failed test"
    return ""


def names_failure(statuses: Mapping[str, TestStatus]) -> bool:
    """Whether any test failed."""
    return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in statuses.values())


def read_results(data: JsonObject) -> dict[str, TestStatus]:
    """Read the results of a parser program. If several tests share a name, the worst status counts."""
    words = {"XFAIL": TestStatus.XFAILED, "XPASS": TestStatus.XPASSED}
    words |= {status.name: status for status in TestStatus}
    results: dict[str, TestStatus] = {}
    for test in data["tests"]:
        status = words.get(str(test["status"]).upper())
        if status is not None and status is not TestStatus.MISSING:
            note(results, str(test["name"]), status)
    return results
