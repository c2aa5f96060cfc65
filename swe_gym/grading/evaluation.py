"""Runs a dataset's evaluation script and reads how the tests ended: from our reporter where it can, else from the log.

The script runs in two commands. The first prepares; we carry its variables, functions and folder over, and end its
processes. The second runs the tests alone, so what it prints is the log and needs no marks that a test could print too.
The reporter gets its key only between the two: code of the work may have run in the first.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import FileError, GradingError, TaskError, UsageError
from ..sandboxes.base import Sandbox
from ..types import ExecResult, Task, TestStatus
from .base import Evaluation, OpenSandbox, Ready
from .command import TestCommand, parse_command
from .log_parsers import is_django, load_parser, pytest_name
from .log_parsers.lines import note
from .protect import hidden_files
from .script import END_TEXT, START_TEXT, EvalScript, called_file, inline, split_script
from .tests import contradiction, make_folder, run_reporter, steady_env

MAX_LOG = 64 << 20
"""Bytes of a log that are read. What is more loses its middle, and the tests named there."""

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
"""What runners print at their end when they ran tests."""

DJANGO_RUNNER = re.compile(r"(?P<python>\bpython[\d.]*[ \t]+)?(?P<script>(?<!\S)[\w./-]*runtests\.py)(?=\s|$)")
"""Django's own runner, which calls unittest's."""

STATE = "declare -p; declare -f; printf 'cd %q\\n' \"$PWD\"; set +o"
MARK = "swe_gym_mark"
FIRST_PART = f"""\
exec 3>&1 1>&2
IFS= read -r {MARK}
{{before}}
{{{{ printf '%s\\n' "${MARK}"; {{unset}}{STATE}; printf '%s\\n' "${MARK}"; }}}} >&3
"""
"""Runs what comes before the tests. Its state is all that reaches standard output between two marks that only the shell
knows: nothing of it is on a disk where another process could change it."""

OFFLINE = {"PIP_RETRIES": "0"}
"""Set while a script prepares without network: pip gives up at once, not after eight seconds a package."""


def evaluate(ready: Ready, sandbox: Sandbox) -> Evaluation:
    """Run the tests of an evaluation script whose first part has run.

    Args:
        ready: What `begin` returned.
        sandbox: Holds the hidden tests and the work.

    Raises:
        GradingError: What the script printed cannot be read.
        TaskError: The log parser is unknown.
        SandboxError: The sandbox failed.
    """
    task, oracle = ready.task, ready.task.oracle
    if not oracle.eval_script.strip():
        raise GradingError(f"task {task.task_id}: its oracle has no eval_script")
    script = split_script(oracle.eval_script)
    state = _restore(ready.state, sandbox)
    command = reportable(script.command, oracle.log_parser)
    if command is not None:
        carried = command.model_copy(update={"before": f"{state}{command.before}"})
        found = _by_reporter(task, carried, sandbox)
        if found is not None:
            return found
    if "\n" in oracle.log_parser:
        return _by_own_parser(ready, f"{state}{script.command}", sandbox)
    return _by_log(task, f"{state}{script.command}", sandbox)


def builds_python(task: Task) -> bool:
    """Whether the script of a Python project does something before its tests, such as installing the product."""
    script = split_script(task.oracle.eval_script)
    python = reportable(script.command, task.oracle.log_parser) is not None or "sympy" in task.oracle.log_parser
    return python and bool(script.before.strip())


def begin(task: Task, sandbox: Sandbox, open_fresh: OpenSandbox) -> Ready:
    """Run the part of a task's evaluation script that comes before the tests. Of the script only the tests are left.

    Raises:
        GradingError: The script did not reach its tests.
        SandboxError: The sandbox failed.
    """
    script = _whole_script(task.oracle.eval_script.replace("{workdir}", sandbox.workdir), sandbox)
    state = _prepare(task, script, sandbox) if script.before.strip() else b""
    rest = f": '{START_TEXT}'\n{script.command}\n: '{END_TEXT}'\n" if script.command else ""
    return Ready(
        task.model_copy(update={"oracle": task.oracle.model_copy(update={"eval_script": rest})}), open_fresh, state
    )


def reportable(command: str, log_parser: str) -> TestCommand | None:
    """The test command, where our reporter can stand in for its runner and name tests as the parser does."""
    if pytest_name(log_parser) is not None:
        found = parse_command(command, "{workdir}")
        return found if found is not None and found.module == "pytest" else None
    if not is_django(log_parser):
        return None
    calls = [*DJANGO_RUNNER.finditer(command)]
    if len(calls) != 1:
        return None
    before, script = command[: calls[0].start()], calls[0]["script"]
    python = calls[0]["python"] or "python "
    after = f" --script={script}{command[calls[0].end() :]}"
    return TestCommand(module="unittest", before=f"{before}{python}", after=after)


def _whole_script(text: str, sandbox: Sandbox) -> EvalScript:
    """The script in parts, with the file that its last line calls in the place of the call."""
    script = split_script(text)
    path = called_file(script)
    if path is None:
        return script
    try:
        return inline(script, sandbox.read_file(path).decode("utf-8", "replace"))
    except FileError:  # it is made on the way, or called from another folder
        return script


def _prepare(task: Task, script: EvalScript, sandbox: Sandbox) -> bytes:
    """Run what comes before the tests and end the processes that it left; returns commands that restore its state."""
    hurry = OFFLINE if sandbox.capabilities.network == "none" else {}
    unset = f"unset {' '.join(hurry)}; " if hurry else ""  # the tests know nothing of it
    mark = secrets.token_hex(16)
    folder = make_folder(sandbox)
    path = f"{folder}/before.sh"
    sandbox.write_file(path, FIRST_PART.format(before=script.before, unset=unset).encode())
    result = sandbox.exec(
        ["bash", path],
        stdin=f"{mark}\n".encode(),
        timeout=task.oracle.timeout,
        env={**steady_env(sandbox), **hurry},
        max_output=MAX_LOG,
    )
    sandbox.end_processes()
    sandbox.exec(["rm", "-rf", "--", folder])  # it may hold the hidden tests as they are
    parts = result.stdout.split(f"{mark}\n".encode())
    if len(parts) != 3:
        raise GradingError(
            f"task {task.task_id}: its eval_script did not reach the tests ({result.describe()}): "
            f"{result.error_text[-2000:].strip()}"
        )
    return re.sub(rb"(?m)^declare -- %s=.*\n" % MARK.encode(), b"", parts[1])


def _restore(state: bytes, sandbox: Sandbox) -> str:
    """The line that restores a state; empty if there is none."""
    if not state:
        return ""
    path = f"{make_folder(sandbox)}/state"
    sandbox.write_file(path, state)
    return f". {path} 2>/dev/null\n"


# --- three ways to read the results -------------------------------------------------------------------------------


def _by_reporter(task: Task, command: TestCommand, sandbox: Sandbox) -> Evaluation | None:
    """What our reporter signs; None where it does not find the runner, or cannot run in the task's Python."""
    required = {*task.oracle.fail_to_pass, *task.oracle.pass_to_pass}
    files = _files_of(task, sandbox)  # now, for code of the work that runs could do away with them
    report, result = run_reporter(command, sandbox, task)
    if report.absent or not report.began:
        return None
    name = pytest_name(task.oracle.log_parser) or str
    statuses: dict[str, TestStatus] = {}
    for test in report.groups:
        note(statuses, name(test), report.status(test))
    for test, ends in report.tests.items():
        # Of unittest's names, several tests may share one; a node id of pytest's is one test, however often it ran.
        for status in ends if command.module == "unittest" else [report.status(test)]:
            note(statuses, name(test), status)
    printed = load_parser(task.oracle.log_parser)(result.text) if command.module == "pytest" else {}
    asked = {test: end for test, end in printed.items() if test in required or test.startswith("[")}
    unknown = {test: end for test, end in asked.items() if test not in statuses}
    odd = {test: end for test, end in unknown.items() if _is_no_test(test, files)}
    return Evaluation(
        judge="reporter",
        statuses={**odd, **statuses},
        ran=True,
        reason=contradiction(report, result, task.oracle.timeout),
        result=result,
    )


def _files_of(task: Task, sandbox: Sandbox) -> set[str] | None:
    """The files of the repository and of the hidden tests; None where there is no repository."""
    found = sandbox.exec(["git", "ls-files", "-z"], max_output=MAX_LOG)
    return {*found.text.split("\0"), *hidden_files(task.oracle)} if found.ok else None


def _is_no_test(test: str, files: Collection[str] | None) -> bool:
    """Whether a required id that was printed, and that the runner does not know, is none of its tests.

    Lists hold "[100%]": where live logging parts a status from its test, progress is printed there. And they hold tests
    of files that no repository has: pytest's own tests run pytest on files that they make, and print what it says.
    """
    if test.startswith("["):
        return True
    path = test.partition("::")[0]
    return files is not None and not any(f"/{file}".endswith(f"/{path}") for file in files)


def _by_log(task: Task, command: str, sandbox: Sandbox) -> Evaluation:
    """What the parser finds in what the tests print."""
    try:
        parser = load_parser(task.oracle.log_parser)
    except UsageError as error:
        raise TaskError(f"task {task.task_id}: {error}") from error
    result = _run(task, command, sandbox)
    statuses, ran = parser(result.text), counts_tests(result.text)
    _check_command(task, result, ran=bool(statuses))
    reason = contradicted(statuses, result, task.oracle.timeout, fails_only=task.oracle.fails_only)
    if ran and not statuses and not reason and not task.oracle.fails_only:
        raise GradingError(
            f"task {task.task_id}: tests ran, but the log parser {task.oracle.log_parser!r} finds none in the log: "
            f"{result.text[-2000:].strip()}"
        )
    return Evaluation(judge="log", statuses=statuses, ran=ran or bool(statuses), reason=reason, result=result)


def _by_own_parser(ready: Ready, command: str, sandbox: Sandbox) -> Evaluation:
    """Use the dataset's own parser: a Python program that runs in a sandbox of its own, never in our process."""
    task = ready.task
    result = _run(task, command, sandbox, merge=False)
    _check_command(task, result, ran=bool(result.stdout))
    with ready.open_fresh() as fresh:  # the work may have filled the disk of the other one, or replaced its Python
        statuses = _parse(task, result, fresh)
    reason = contradicted({}, result, task.oracle.timeout)
    return Evaluation(judge="own_parser", statuses=statuses, ran=bool(statuses), reason=reason, result=result)


def _parse(task: Task, result: ExecResult, fresh: Sandbox) -> dict[str, TestStatus]:
    """Run a dataset's parser on files of standard output, standard error and for its result.

    The result is `{"tests": [{"name": ..., "status": ...}]}`.
    """
    folder = make_folder(fresh)
    files = {"parser.py": task.oracle.log_parser, "stdout": result.text, "stderr": result.error_text}
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


def _run(task: Task, command: str, sandbox: Sandbox, *, merge: bool = True) -> ExecResult:
    folder = make_folder(sandbox)
    sandbox.write_file(f"{folder}/tests.sh", f"{command}\n".encode())
    return sandbox.exec(
        ["bash", f"{folder}/tests.sh"],
        timeout=task.oracle.timeout,
        env=steady_env(sandbox),
        max_output=MAX_LOG,
        merge=merge,
    )


def _check_command(task: Task, result: ExecResult, *, ran: bool) -> None:
    """A command that could not even be run says nothing about the work."""
    if not ran and result.exit_code in NOT_RUN:
        raise GradingError(
            f"task {task.task_id}: the test command cannot be run ({result.describe()}): {result.text[-2000:].strip()}"
        )


def counts_tests(log: str) -> bool:
    """Whether the end of a runner that ran tests is in a log."""
    return bool(COUNTS.search(log))


def contradicted(
    statuses: Mapping[str, TestStatus], result: ExecResult, timeout: float, *, fails_only: bool = False
) -> str:
    """Why a log does not count, whatever it says; empty where it does."""
    if result.timed_out:
        return f"the hidden tests ran into their timeout of {timeout:g} s"
    if result.signal is not None:
        return f"the test command did not come to its end ({result.describe()})"
    if (statuses or fails_only) and not names_failure(statuses) and result.exit_code != 0:
        return f"the command's end ({result.describe()}) contradicts its log, which names no failed test"
    return ""


def names_failure(statuses: Mapping[str, TestStatus]) -> bool:
    """Whether any of the tests failed."""
    return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in statuses.values())


def read_results(data: Any) -> dict[str, TestStatus]:
    """The results that a parser wrote; where several tests share a name, the worst counts, as in our own parsers."""
    words = {"XFAIL": TestStatus.XFAILED, "XPASS": TestStatus.XPASSED}
    words |= {status.name: status for status in TestStatus}
    results: dict[str, TestStatus] = {}
    for test in data["tests"]:
        status = words.get(str(test["status"]).upper())
        if status is not None and status is not TestStatus.MISSING:
            note(results, str(test["name"]), status)
    return results
