"""Finds the call of a test runner in a shell command, so that the reporter can replace it."""

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

    def text(self, script: str, options: Sequence[str] = ()) -> str:
        """Return the command with a script in place of the runner and options before the runner's arguments."""
        words = [self.before.rstrip(" \t") or "python", shlex.quote(script), *map(shlex.quote, options)]
        return " ".join(words) + self.after


def parse_command(command: str) -> RunnerCall | None:
    """Split a command at its call of pytest or unittest. Return None unless there is exactly one call."""
    found = [*MODULE.finditer(command)] or [*BARE.finditer(command)]
    if len(found) != 1:
        return None
    match = found[0]
    before = command[: match.start("runner")]
    if "folder" in match.groupdict():
        before += f"{match['folder'] or ''}python "
    module = "unittest" if match["module"] == "unittest" else "pytest"
    return RunnerCall(module=module, before=before, after=command[match.end("runner") :])
