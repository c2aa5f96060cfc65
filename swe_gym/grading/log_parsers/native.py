"""Log parsers for Go, Rust, C, C++, Ruby and PHP: one line per test, or doctest's XML."""

import html
import re

from ...types import TestStatus
from .lines import ESCAPES, Results, by_line, clean_lines, stripped_lines, worst

PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED

parse_gotest = by_line(
    r"--- (?P<status>PASS|FAIL|SKIP): (?P<test>.+) \([^()]*\)", {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
)
parse_cargo = by_line(
    r"test (?P<test>\S+(?: \S+)*) +\.\.\. +(?P<status>ok|FAILED|ignored)(?:, .*)?",
    {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED},
)
parse_googletest = by_line(  # `ctest -V` puts a number before the line; a parameter's value may follow the name
    r"(?>.*\[ *(?P<status>OK|FAILED|SKIPPED) *\] (?P<test>[^\s,()]+))(?:, where .*)? \([^()]*\)",
    {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED},
)
parse_ctest = by_line(
    r"\d+/\d+ Test +#\d+: (?P<test>\S+) \.* *(?:\*{3})?(?P<status>Passed|Failed|Exception|Timeout|Not Run|Skipped)\b.*",
    {"Passed": PASSED, "Failed": FAILED, "Exception": ERROR, "Timeout": ERROR, "Not Run": SKIPPED, "Skipped": SKIPPED},
)
parse_redis = by_line(  # a failed test's line ends with its file
    r"\[(?:(?P<status>ok|skip|ignore)\]: (?P<test>.+?)(?: \(\d+ ?m?s\))?"
    r"|(?P<status2>err)\]: (?P<test2>.+?)(?: in \S+)?)",
    {"ok": PASSED, "err": FAILED, "skip": SKIPPED, "ignore": SKIPPED},
)
parse_jq = by_line(  # automake's; the makefile, which is product, decides what XFAIL is
    r"(?P<status>PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): (?P<test>.+)",
    {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED, "XFAIL": SKIPPED, "XPASS": TestStatus.XPASSED, "ERROR": ERROR},
)
parse_micropython = by_line(
    r"(?P<status>pass|FAIL|skip)\s+(?P<test>\S.*)", {"pass": PASSED, "FAIL": FAILED, "skip": SKIPPED}
)

MAX_DEPTH = 20
TAG = re.compile(r"<(?P<end>/?)(?P<kind>TestCase|SubCase|Expression)\b(?P<attributes>[^<>]*)>")
NAME = re.compile(r'\bname="([^"]{0,4000})"')  # Python does not read numbers of more digits, as in "&#65;"


@worst
def parse_doctest(log: str) -> Results:
    """Read doctest's XML (`-s -r=xml`): `test case > sub-case`, which fails with any expression in it.

    It reads tag by tag: no XML parser sees text that a policy can write.
    """
    case, open_parts = "", list[str]()
    for tag in TAG.finditer(ESCAPES.sub("", log)):
        kind, attributes = tag["kind"], tag["attributes"]
        if kind == "TestCase":
            case, open_parts = _name(attributes), []
        elif kind == "SubCase" and tag["end"]:
            del open_parts[-1:]
        elif kind == "SubCase":
            test = f"{case} > {_name(attributes)}"
            yield test, PASSED
            if not attributes.endswith("/"):
                open_parts.append(test)
        elif 'success="true"' not in attributes and not tag["end"]:
            for test in open_parts[-MAX_DEPTH:]:
                yield test, FAILED


def _name(attributes: str) -> str:
    match = NAME.search(attributes)
    return html.unescape(match[1]) if match else ""


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
