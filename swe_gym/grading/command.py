"""The task's test command: which runner it calls, and the same command with our reporter in the runner's place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..types import Frozen

MODULE = re.compile(r"(?P<runner>-m[ \t]+(?P<module>pytest|py\.test|unittest)(?![\w./-]))")
VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"])*"""
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


class TestCommand(Frozen):
    """A shell command, cut around the place where it calls the test runner.

    Attributes:
        module: The runner: "pytest" or "unittest".
        before: What stands before the runner: other commands, variables, the interpreter and its options.
        after: The runner's arguments, and what follows.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name

    module: str
    before: str
    after: str

    @property
    def only_runs_tests(self) -> bool:
        """Nothing but an interpreter from outside the workspace comes before the runner, so nothing can stop it."""
        substitutes = "`" in self.before or "$(" in self.before
        return not substitutes and bool(INTERPRETER_ONLY.fullmatch(self.before))

    def text(self, script: str | None = None, options: Sequence[str] = ()) -> str:
        """The command again, with a script in the runner's place and options before the runner's arguments."""
        runner = f"-m {self.module}" if script is None else shlex.quote(script)
        return " ".join([self.before.rstrip(" \t") or "python", runner, *map(shlex.quote, options)]) + self.after


def parse_command(command: str, workdir: str) -> TestCommand | None:
    """Find the runner in a task's test command.

    Args:
        command: As in `Oracle.test_cmd`.
        workdir: What `{workdir}` stands for.

    Returns:
        The command in parts; None where it calls no known runner, or more than once.
    """
    command = command.replace("{workdir}", workdir)
    found = [*MODULE.finditer(command)] or [*BARE.finditer(command)]
    if len(found) != 1:
        return None
    match = found[0]
    before = command[: match.start("runner")]
    if "folder" in match.groupdict():
        before += f"{match['folder'] or ''}python "
    module = "unittest" if match["module"] == "unittest" else "pytest"
    return TestCommand(module=module, before=before, after=command[match.end("runner") :])
