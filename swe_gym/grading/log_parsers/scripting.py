"""Log parsers for Ruby and PHP."""

import re

from ...types import TestStatus
from .lines import Results, by_line, clean_lines, stripped_lines, worst

PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED

parse_minitest = by_line(
    r"(?P<test>.+)\. *= ?[\d.]+ s = (?P<status>[.FES])", {".": PASSED, "F": FAILED, "E": ERROR, "S": SKIPPED}
)
parse_ruby_unit = by_line(
    r"(?:test: )?(?P<test>.+):\s+(?P<status>[.FEOP])(?::.*)?",
    {".": PASSED, "F": FAILED, "E": ERROR, "O": SKIPPED, "P": SKIPPED},
)
parse_rspec = by_line(  # rspec's JSON, made into lines by the evaluation script
    r"(?P<test>.+) - (?P<status>passed|failed|pending)", {"passed": PASSED, "failed": FAILED, "pending": SKIPPED}
)

TESTDOX = {"✔": PASSED, "✘": FAILED, "↩": SKIPPED, "∅": SKIPPED}
TESTDOX_SUITE = re.compile(r"(\w.*) \([^()]+\)")
TESTDOX_TIME = re.compile(r"\[ *[\d.]+ m?s *\]$")


@worst
def parse_cucumber(log: str) -> Results:
    """Read cucumber's progress: a scenario, and a character for each of its steps, the first of them a dot."""
    for line in stripped_lines(log):
        test, _, steps = line.rpartition(" ")
        if steps.startswith(".") and not steps.strip(".F-UPS"):
            yield test.strip(), FAILED if "F" in steps else PASSED


def parse_jekyll(log: str) -> dict[str, TestStatus]:
    """Read either of jekyll's two runners."""
    return parse_minitest(log) or parse_cucumber(log)


@worst
def parse_phpunit(log: str) -> Results:
    """Read PHPUnit with `--testdox`: `Suite > test`."""
    suite = ""
    for line in clean_lines(log):
        if match := TESTDOX_SUITE.fullmatch(line):
            suite = match[1]
        elif (text := line.strip())[:1] in TESTDOX:
            yield f"{suite} > {TESTDOX_TIME.sub('', text[1:].strip()).rstrip()}", TESTDOX[text[0]]
