"""How the tests of a task run: its evaluation, split into the steps that grading carries out.

The reporter replaces the call of the test runner, if the command has exactly one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..types import Evaluation, ExitCode, Frozen, ParserProgram, RewardScript, TestCommand
from .log_parsers import runner_of

MODULE = re.compile(r"(?P<runner>-m[ \t]+(?P<module>pytest|py\.test|unittest)(?![\w./-]))")
SUBSTITUTED = r"""(?:\$\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\)|`[^`]*+`|\$\{[^}]{0,999}+\})"""
QUOTED = rf"""(?:'[^']*+'|"(?:[^"\\$`]|\\.|{SUBSTITUTED}|\$(?![({{]))*+")"""
VALUE = rf"""(?:{QUOTED}|{SUBSTITUTED}|\\"[^"\\]*+\\"|\\.|[^\s'"\\;&|()`])*+"""
BARE = re.compile(
    rf"(?P<before>(?:^|[;&|(]|\b(?:exec|time))[ \t]*(?:\w+={VALUE}[ \t]+)*)"
    r"(?P<runner>(?P<folder>[\w./-]*/)?(?P<module>pytest|py\.test)(?=\s|$))",
    re.MULTILINE,
)
INTERPRETER_ONLY = re.compile(
    rf"\s*(?:(?!PATH=)\w+={VALUE}\s+)*"
    r"(?:/\S*/)?python[\d.]*"
    r"(?:[ \t]+-[A-Zbdsuvx]\S*(?:[ \t]+(?!-)\S+)?)*\s*"  # its options
)
SPLIT = re.compile(rf"""\\.|{QUOTED}|{SUBSTITUTED}|(?<![^\s;&|()])#[^\n]*|>&|&>|(?P<ends>[;&|()\n'"`])""", re.DOTALL)
"""What ends a simple command, among what does not. A quote without its second one begins a command within a string."""

PRECEDES = re.compile(
    rf"(?:\s|\\\n)*(?:(?:eval|if|then|else|elif|while|until|do|!|\{{|exec(?:[ \t]+-(?:[cl]+|a[ \t]+\S+))*"
    rf"|command(?:[ \t]+-p)?|function[ \t]+[\w-]+(?:[ \t]*\{{)?|time(?:[ \t]+-p)?|\w+\+?={VALUE})(?:[ \t]|\\\n)+)*",
    re.DOTALL,
)
"""Variables, and words of the shell that are no program, before a program."""

DEFINED = re.compile(r"(?:\bfunction[ \t]+|\balias[ \t]+)([\w.-]+)|([\w.-]+)[ \t]*\(\)")
"""A function or an alias, which a program cannot call."""


class RunnerCall(Frozen):
    """A shell command, split at its call of a test runner.

    Attributes:
        module: The runner: "pytest" or "unittest".
        before: Text before the runner: other commands, variables, the interpreter and its options.
        after: The runner's arguments and the rest of the command.
    """

    module: str
    before: str
    after: str

    @property
    def only_runs_tests(self) -> bool:
        """Whether only an interpreter from outside the workspace precedes the runner, so that work cannot stop it."""
        substitutes = "`" in self.before or "$(" in self.before
        return not substitutes and bool(INTERPRETER_ONLY.fullmatch(self.before))

    def text(self, script: str, options: Sequence[str] = (), starter: str = "") -> str:
        """Return the command with a script in place of the runner.

        Args:
            script: The script.
            options: Options before the runner's arguments.
            starter: Command that gets the program which runs the script, and its arguments; empty for none.
        """
        before = self.before.rstrip(" \t") or "python"
        if starter:
            begin = _find_program(before)
            before = f"{before[:begin]}{starter} {before[begin:]}"
        return " ".join([before, shlex.quote(script), *map(shlex.quote, options)]) + self.after


def parse_command(command: str) -> RunnerCall | None:
    """Split a command at its call of pytest or unittest.

    Return None unless there is exactly one call, by a program: no starter can call a function of the shell.
    """
    found = [*MODULE.finditer(command)] or [*BARE.finditer(command)]
    if len(found) != 1:
        return None
    match = found[0]
    before = command[: match.start("runner")]
    if "folder" in match.groupdict():
        before += f"{match['folder'] or ''}python "
    program = before[_find_program(before) :].split(maxsplit=1)
    if program and any(program[0] in defined.groups() for defined in DEFINED.finditer(before)):
        return None
    module = "unittest" if match["module"] == "unittest" else "pytest"
    return RunnerCall(module=module, before=before, after=command[match.end("runner") :])


def _find_program(before: str) -> int:
    """Return where the program of the last simple command begins."""
    begin = max([match.end() for match in SPLIT.finditer(before) if match["ends"]], default=0)
    preceding = PRECEDES.match(before, begin)
    return preceding.end() if preceding else begin


START_TEXT, END_TEXT = ">>>>> Start Test Output", ">>>>> End Test Output"
START_MARK = re.compile(rf"^(?::|echo)[ \t]+['\"]?{START_TEXT}['\"]?[ \t]*$", re.MULTILINE)
END_MARK = re.compile(rf"^(?::|echo)[ \t]+['\"]?{END_TEXT}['\"]?[ \t]*$", re.MULTILINE)
CALLED_FILE = re.compile(r"(?:^|\n)(?:bash|sh|/bin/bash|/bin/sh)[ \t]+(?P<path>[\w./-]+\.sh)\s*$")
DJANGO_RUNNER = re.compile(r"(?P<python>\bpython[\d.]*[ \t]+)?(?P<script>(?<!\S)[\w./-]*runtests\.py)(?=\s|$)")
"""A call of Django's own runner, which calls unittest's."""

Parser = str | ParserProgram


@dataclass(frozen=True)
class EvaluationPlan:
    """The steps of a task's evaluation.

    Attributes:
        prepare: Shell commands that run before the tests: change folder, activate, build. May be empty.
        command: Shell commands that run the tests. Their output is the log.
        runner: The runner call in `command` that the reporter replaces. None if there is none, or if the reporter
            cannot name tests as `parser` does.
        parser: Log parser; empty if no log is read.
    """

    prepare: str = ""
    command: str = ""
    runner: RunnerCall | None = None
    parser: Parser = ""

    @property
    def prepares_python(self) -> bool:
        """Whether commands of a Python project, such as an installation, run before the tests."""
        return bool(self.prepare.strip()) and (self.runner is not None or runner_of(self.parser) == "sympy")

    def inlined(self, read: Callable[[str], str | None]) -> EvaluationPlan:
        """Return the plan of a script with a called file's content in place of a final `bash run_tests.sh`.

        A test command stays as it is: its one shell has the variables and the folder of the whole file.

        Args:
            read: Reads a file of the sandbox. Returns None if it is missing.
        """
        match = CALLED_FILE.search(self.command) if self.parser else None
        content = read(match["path"]) if match else None
        if match is None or content is None:
            return self
        return _script_plan(f"{self.prepare}{self.command[: match.start()]}\n{content}", self.parser)


def read_plan(evaluation: Evaluation, workdir: str) -> EvaluationPlan:
    """Split an evaluation into steps.

    A script is split at SWE-bench's two marks; the part after the second mark is dropped, because it only tidies up.
    Without marks, it is split before the line that calls pytest or unittest, if there is exactly one. Otherwise the
    whole script is the test command.

    Args:
        evaluation: The evaluation of a task.
        workdir: Replaces `{workdir}`.
    """
    if isinstance(evaluation, TestCommand | ExitCode):
        command = evaluation.test_cmd.replace("{workdir}", workdir)
        return EvaluationPlan(command=command, runner=parse_command(command))
    if isinstance(evaluation, RewardScript):  # it is judged in place
        return EvaluationPlan()
    return _script_plan(evaluation.eval_script.replace("{workdir}", workdir), evaluation.log_parser)


def _script_plan(text: str, parser: Parser) -> EvaluationPlan:
    prepare, command = split_script(text)
    return EvaluationPlan(prepare, command, _find_replaceable(command, parser), parser)


def split_script(text: str) -> tuple[str, str]:
    """Split a script into the commands before its tests and the test command."""
    start = START_MARK.search(text)
    if start:
        end = END_MARK.search(text, start.end())
        return text[: start.start()], text[start.end() : end.start() if end else None].strip()
    found = parse_command(text)
    if found is None:
        return "", text.strip()
    line = text.rfind("\n", 0, len(found.before)) + 1
    return text[:line], text[line:].strip()


def _find_replaceable(command: str, parser: Parser) -> RunnerCall | None:
    """The runner call that the reporter can replace, if it can name tests as the parser does."""
    runner = runner_of(parser)
    if runner == "pytest":
        found = parse_command(command)
        return found if found is not None and found.module == "pytest" else None
    calls = [*DJANGO_RUNNER.finditer(command)] if runner == "django" else []
    if len(calls) != 1:
        return None
    before, script = command[: calls[0].start()], calls[0]["script"]
    python = calls[0]["python"] or "python "
    after = f" --script={script}{command[calls[0].end() :]}"
    return RunnerCall(module="unittest", before=f"{before}{python}", after=after)


def cut_to_marks(log: str) -> str:
    """Return the part of a log from the first start mark to the last end mark, or all of it if a mark is missing."""
    start, end = log.find(START_TEXT), log.rfind(END_TEXT)
    return log if start == -1 or end < start else log[start + len(START_TEXT) : end]
