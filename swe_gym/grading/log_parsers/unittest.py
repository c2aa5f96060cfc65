"""Log parsers for unittest with `--verbosity 2` or `-v`, as Django's runner prints it, and for sympy's own runner.

A test is announced as `test_a (module.Class) ... `. Its result follows on the same line, or after the test's output. A
test with a docstring is announced with its first line, and published lists name it by that line: it has both names.
`bin/test --verbose` of sympy prints a line for each test, with a name, a blank and a letter.
"""

import re

from ...types import TestStatus
from .lines import Results, note, stripped_lines, worst

DOTS = " ... "
OUTCOMES = {
    "ok": TestStatus.PASSED,
    "OK": TestStatus.PASSED,
    "FAIL": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "expected failure": TestStatus.XFAILED,
    "unexpected success": TestStatus.XPASSED,
}
HEADER = re.compile(r"(FAIL|ERROR): (\w+ \([\w.]+\))(?=$|[\s(\[])")
PLACE = re.compile(r"[\w.]+")
WORD = re.compile(r"\w+")
RULES = ("-----", "=====")


def parse_django(log: str) -> dict[str, TestStatus]:
    """Read a unittest run, under `test (module.Class)` and under the first line of the docstring."""
    run = _Run()
    for line in stripped_lines(log):
        run.read(line)
    return run.results


class _Run:
    """The state after the lines read so far."""

    def __init__(self) -> None:
        self.results: dict[str, TestStatus] = {}
        self.title = ""  # the line before, if it names a test
        self.pending: tuple[str, ...] = ()  # names of the announced test that has no result yet
        self.failed: TestStatus | None = None  # status in the failure header before this line

    def read(self, line: str) -> None:
        header = HEADER.match(line)
        if header:
            self.failed = OUTCOMES[header[1]]
            note(self.results, header[2], self.failed)
        elif line.startswith(RULES):
            self.failed, self.pending = None, ()
        elif self.failed is not None:
            note(self.results, line, self.failed)
            self.failed = None
        else:
            self._read_progress(line)
        self.title = line if last_name(line) == line else ""

    def _read_progress(self, line: str) -> None:
        before, dots, after = f"{line} ".rpartition(DOTS)
        if not dots:
            self._end(self.pending, outcome(line))
            return
        status = outcome(after.strip())
        if status is None:
            self.pending = self._names(f"{line} ".partition(DOTS)[0])
        else:
            self._end(self._names(before), status)

    def _end(self, names: tuple[str, ...], status: TestStatus | None) -> None:
        if status is not None:
            for name in names:
                note(self.results, name, status)
            self.pending = ()

    def _names(self, announced: str) -> tuple[str, ...]:
        """The names in an announcement: all of it, and the test's name at its end, after another test's output."""
        name = last_name(announced) or self.title
        return tuple(dict.fromkeys(name for name in (announced, name) if name))


def last_name(text: str) -> str:
    """Return the name of a test at the end of a text, `test (module.Class)`; empty if there is none."""
    before, bracket, place = text.removesuffix(")").rpartition(" (")
    backwards = WORD.match(before[::-1])
    if not (text.endswith(")") and bracket and backwards and PLACE.fullmatch(place)):
        return ""
    return f"{backwards[0][::-1]} ({place})"


def outcome(text: str) -> TestStatus | None:
    """Return the status that a word or two stand for; None if they stand for none."""
    return TestStatus.SKIPPED if text.startswith("skipped") else OUTCOMES.get(text)


# --- sympy ------------------------------------------------------------------------------------------------------------

LETTERS = {
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
            status = LETTERS.get(rest.rpartition(" ")[2])
            if status is not None:
                yield name, status
                yield f"{file}:{name}", status
