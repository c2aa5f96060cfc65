"""Log parsers for JavaScript: jest, vitest, mocha, karma, tap."""

import re

from ...types import TestStatus
from .lines import LogParser, Results, by_line, clean_lines, stripped_lines, without_end, worst

PASSED, FAILED, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.SKIPPED
MARKS = {"✓": PASSED, "✔": PASSED, "✕": FAILED, "✖": FAILED, "×": FAILED, "○": SKIPPED, "↓": SKIPPED}  # noqa: RUF001  a mark, not a letter
MAX_DEPTH = 20
CALYPSO_TIME = re.compile(r"\(\d+ms\)$")
KARMA_LINE = re.compile(r"(?P<indent>\s*)(?P<mark>[✔✖])?\s(?P<text>.*)")
BROWSER = re.compile(r"Chrome [\d.]+ \([^()]*\) ")
NUMBERED = re.compile(r"\s*\d+\) (.*)")
JEST_TIME = re.compile(r" \(\d*\.?\d+ *\w+\)$")
JEST_MARKS = {"✓": PASSED, "✕": FAILED, "○": SKIPPED}
TIME = r"(?: \(\d[\d.]* ?m?s\))?"

parse_jest = by_line(rf"(?P<status>[✓✕○]) (?P<test>.+?){TIME}", MARKS)
parse_jest_json = by_line(
    r"\[(?P<status>PASSED|FAILED|PENDING)\] (?P<test>.+)", {"PASSED": PASSED, "FAILED": FAILED, "PENDING": SKIPPED}
)
parse_vitest = by_line(r"(?P<status>[✓×↓]) (?P<test>.+?)(?: (?:\d+ ?m?s?|\[skipped\]))?", MARKS)  # noqa: RUF001  see above
parse_mocha = by_line(
    rf"(?:(?P<status>[✓✔✖-]) (?P<test>.+?)|(?P<status2>\d)\d*\) (?P<test2>.+?)){TIME}",
    {**MARKS, "-": SKIPPED, **dict.fromkeys("123456789", FAILED)},
)
parse_tap = by_line(r"(?P<status>ok|not ok) \d+ (?P<test>.+)", {"ok": PASSED, "not ok": FAILED})
parse_jest_files = by_line(rf"(?P<status>PASS|FAIL) (?P<test>\S.*?){TIME}", {"PASS": PASSED, "FAIL": FAILED})


@worst
def parse_jest_suites(log: str) -> Results:
    """Read jest with the file before each test's name, `a.test.js:test`, and the files themselves."""
    suite = ""
    for line in stripped_lines(log):
        word, _, rest = line.partition(" ")
        if word in ("PASS", "FAIL") and rest:
            suite = without_end(rest, JEST_TIME)
            yield suite, PASSED if word == "PASS" else FAILED
        elif suite and word in JEST_MARKS and rest:
            yield f"{suite}:{without_end(rest, JEST_TIME)}", JEST_MARKS[word]


def parse_jest_or_json(log: str) -> dict[str, TestStatus]:
    """Read jest's own output, or its JSON made into lines by the evaluation script."""
    return {**parse_jest(log), **parse_jest_json(log)}


class Suites:
    """The names of the suites around a line, by its indentation."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, line: str) -> None:
        """Enter the suite that a line names."""
        indent = len(line) - len(line.lstrip())
        while self._open and self._open[-1][0] >= indent:
            self._open.pop()
        self._open.append((indent, line.strip()))

    def name(self, test: str, separator: str) -> str:
        """Return a test's name with those of its suites."""
        return separator.join([*(name for _, name in self._open[-MAX_DEPTH:]), test])


@worst
def parse_calypso(log: str) -> Results:
    """Read jest with suites, `suite - test`, from the shell's trace of each jest to its first failure or summary."""
    suites = Suites()
    reading = False
    for line in clean_lines(log):
        text = line.strip()
        if "./node_modules/.bin/jest " in line:
            reading = True
        elif line.startswith(("Test Suites", "  ● ")):
            reading = False
        elif reading and text[:1] in ("✓", "✕"):
            name = CALYPSO_TIME.sub("", text[1:].strip()).strip()
            yield suites.name(name, " - "), MARKS[text[0]]
        elif reading and text and line[0].isspace():
            suites.enter(line)


@worst
def parse_karma(log: str) -> Results:
    """Read karma's mocha reporter: `suite > test`, from the browser's start to the summary.

    The names are those of SWE-bench's lists: a suite begins where the indentation grows and ends where it shrinks. A
    suite that follows another of the same depth keeps the name of the first.
    """
    suites: list[str] = []
    depth, started = -1, False
    for line in clean_lines(log):
        match = KARMA_LINE.fullmatch(line)
        if line.startswith("SUMMARY:"):
            break
        if "Starting browser" in line:
            started = True
        elif not started or match is None:
            continue
        elif match["mark"]:
            yield " > ".join([*suites[-MAX_DEPTH:], match["text"]]), MARKS[match["mark"]]
        elif (indent := len(match["indent"])) > depth and indent:
            suites.append(match["text"])
            depth = indent
        elif indent and indent < depth:
            del suites[-1:]
            depth = indent


# --- logs that name failures only ---------------------------------------------------------------------------------


parse_marked: LogParser = by_line(r"(?P<status>\d)\d*\) (?P<test>.+)", dict.fromkeys("123456789", FAILED))


@worst
def parse_chart_js(log: str) -> Results:
    """Read karma's failures: `Chrome 100.0 (Linux) suite test FAILED`."""
    for line in stripped_lines(log):
        browser = BROWSER.search(line) if line.endswith("FAILED") else None
        if browser:
            yield line[browser.end() :].removesuffix("FAILED").strip(), FAILED


@worst
def parse_p5js(log: str) -> Results:
    """Read mocha's failures: a number, suites and the test, each deeper than the one before, the last with a colon."""
    names: list[str] = []
    depth = -1
    for line in clean_lines(log):
        match = NUMBERED.match(line)
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if match:
            names, depth, text = [], -1, match[1].strip()
        if not match and not names:
            continue
        if indent <= depth or not text or len(names) >= MAX_DEPTH:
            names = []
            continue
        names, depth = [*names, text.removesuffix(":")], indent
        if text.endswith(":"):
            yield ":".join(names), FAILED
            names = []
