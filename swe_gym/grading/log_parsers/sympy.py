"""Log parser for sympy's own runner, `bin/test --verbose`: per test a line with a name, a blank and a letter."""

import re

from ...types import TestStatus
from .lines import Results, stripped_lines, worst

OUTCOMES = {
    "ok": TestStatus.PASSED,
    "F": TestStatus.FAILED,
    "E": TestStatus.ERROR,
    "f": TestStatus.XFAILED,
    "X": TestStatus.XPASSED,
    "s": TestStatus.SKIPPED,
    "w": TestStatus.SKIPPED,
}
FILE = re.compile(r"(\S+\.py)\[\d+\](?:\s|$)")
FILE_END = re.compile(r"\[(?:OK|FAIL)\]$")  # stands behind the last test of a file
FAILURE = re.compile(r"_+ (\S+\.py):(\w+) _+")


@worst
def parse_sympy(log: str) -> Results:
    """Read a run, under `test`, as published lists name tests, and under `file.py:test`.

    If several files share a short name, the worst status counts.
    """
    file = ""
    for line in stripped_lines(log):
        if match := FILE.match(line):
            file = match[1]
        elif match := FAILURE.fullmatch(line):
            yield f"{match[1]}:{match[2]}", TestStatus.FAILED
            yield match[2], TestStatus.FAILED
        elif line.startswith("test_"):
            name, _, rest = FILE_END.sub("", line).rstrip().partition(" ")
            status = OUTCOMES.get(rest.rpartition(" ")[2])
            if status is not None:
                yield name, status
                yield f"{file}:{name}", status
