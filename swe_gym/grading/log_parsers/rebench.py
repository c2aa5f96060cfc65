"""Log parsers for twenty languages, with the test names of SWE-rebench V2's lists."""

import json
import re
from collections.abc import Iterator

from ...types import JsonObject, TestStatus
from .jvm import RUNNING, parse_junit, parse_maven
from .lines import TAIL, Results, by_line, clean_lines, note, stripped_lines, without_end, worst

PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED

# --- JavaScript and PHP: a mark and a name ------------------------------------------------------------------------

DURATION = re.compile(r"(?:\(\s*)?(?<!\d)\d+(?:\.\d+)?\s*m?s(?:\s*\))?\s*$", re.IGNORECASE)
"""A duration at the end of a name. It is found in linear time: no part of it can begin within a longer one."""

NUMBERED = re.compile(r"(?:\[W\]\s*)?\d+\)\s+")
SYMBOLS = {
    **dict.fromkeys("✔✓", PASSED),
    **dict.fromkeys("✘✖✕⨯×", FAILED),  # noqa: RUF001  marks, not letters
    **dict.fromkeys("○◌◦⚪", SKIPPED),
}
CHECKED = {"✔": PASSED, "-": SKIPPED}
PEST = {"✔": PASSED, "✓": PASSED, "⨯": FAILED, "x": FAILED, "-": SKIPPED}  # noqa: RUF001  a mark, not a letter
PEST_DURATION = re.compile(r"\s\d+(?:\.\d+)?s$")
TAP = re.compile(r"(?P<status>ok|not ok)\s+\d+\s+-\s+(?P<test>.+)")


@worst
def parse_js(log: str) -> Results:
    """Read mocha: a check mark or a dash, or a number if the test failed."""
    for line in stripped_lines(log):
        numbered = NUMBERED.match(line)
        if numbered:
            name = line[numbered.end() :]
            for test in {name, name.removesuffix(":")}:
                yield without_end(test, DURATION), FAILED
        elif line[:1] in CHECKED and line[1:2].isspace():
            yield without_end(line[1:], DURATION), CHECKED[line[0]]


parse_npx = by_line(
    r"(?:(?P<status>✔) +(?P<test>\S.*?)(?: \(\d+(?:ms)?\))?|(?P<status2>\d)\d*\) +(?P<test2>\S.*?)(?: \([^()]+\))?)",
    {"✔": PASSED, **dict.fromkeys("0123456789", FAILED)},
)


@worst
def parse_js_symbols(log: str) -> Results:
    """Read jest, vitest and the like: one of many marks, and sometimes a label before the name, "[unit]: "."""
    for line in stripped_lines(log):
        if line[:1] in SYMBOLS and line:
            name = line[1:].strip()
            if name.startswith("["):
                name = name.partition("]:")[2].strip() or name
            yield without_end(name.removeprefix(":"), DURATION), SYMBOLS[line[0]]


@worst
def parse_js_tap(log: str) -> Results:
    """Read TAP with blocks in braces: `suite :: test`. Directives are ignored."""
    suites: list[str] = []
    for line in filter(None, stripped_lines(log)):
        if not line.strip("}"):
            del suites[max(0, len(suites) - len(line)) :]
            continue
        match = TAP.fullmatch(line.removesuffix("{").rstrip())
        if match is None:
            continue
        name = without_end(re.split(r"\s#", match["test"], maxsplit=1)[0], DURATION)
        yield " :: ".join([*suites[-20:], name]), PASSED if match["status"] == "ok" else FAILED
        if line.endswith("{") and name:
            suites.append(name)


parse_pest = by_line(r"(?P<status>\S)\s(?P<test>.*)", PEST, PEST_DURATION)  # also `artisan test`


# --- Java and Kotlin ----------------------------------------------------------------------------------------------

MODULE = re.compile(r" (?P<status>SUCCESS|FAILURE|SKIPPED)(?: ?\[[^\[\]]*\])?$")
MODULE_ENDS = {"SUCCESS": PASSED, "FAILURE": FAILED, "SKIPPED": SKIPPED}
COUNTS = re.compile(r"Tests run: *(\d+), *Failures: *(\d+), *Errors: *(\d+), *Skipped: *(\d+)")


def parse_maven_or_junit(log: str) -> dict[str, TestStatus]:
    """Read Maven's classes, which a skipped test makes skipped; else JUnit's XML; else one Maven per test."""
    results: dict[str, TestStatus] = {}
    running = ""
    for line in stripped_lines(log):
        if match := RUNNING.fullmatch(line):
            running = match["test"]
        elif match := COUNTS.search(line):
            name = (line.rpartition(" in ")[2] if " in " in line else running).strip().rstrip(".:;")
            note(results, name, _judge_counts(match))
            running = ""
    return {**parse_maven(log), **parse_junit(log), **results}


def parse_maven_modules(log: str) -> dict[str, TestStatus]:
    """Read Maven's summary of a build of several modules, and the first count of tests as "__suite__"."""
    results: dict[str, TestStatus] = {}
    for line in stripped_lines(log):
        if line.startswith("[INFO] ") and (match := MODULE.search(line, max(0, len(line) - TAIL))):
            name = line[len("[INFO] ") : match.start()].rstrip()
            if name.endswith(".."):
                note(results, name.rstrip(".").strip(), MODULE_ENDS[match["status"]])
        elif (match := COUNTS.search(line)) and "__suite__" not in results:
            run, *_, skipped = (int(number[:9]) for number in match.groups())
            status = _judge_counts(match)
            results["__suite__"] = PASSED if status is SKIPPED and skipped != run else status
    return results


def _judge_counts(match: re.Match[str]) -> TestStatus:
    _, failures, errors, skipped = (int(number[:9]) for number in match.groups())
    if failures or errors:
        return FAILED if failures else ERROR
    return SKIPPED if skipped else PASSED


# --- one line for each test ---------------------------------------------------------------------------------------

parse_lua = by_line(
    r"(?P<status>Success|Fail|Failed|Skip|Skipped)\s*\|\|\s*(?P<test>\S.*)",
    {"Success": PASSED, "Fail": FAILED, "Failed": FAILED, "Skip": SKIPPED, "Skipped": SKIPPED},
)
parse_swift = by_line(
    r"Test Case '(?P<test>[^']+)' (?P<status>passed|failed|skipped) \([\d.]+ seconds\)",
    {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED},
)
parse_cpp_words = by_line(
    r"Test +(?P<test>\S.*) (?P<status>passed|failed|skipped)", {"passed": PASSED, "failed": FAILED, "skipped": SKIPPED}
)
OCAML = {
    **dict.fromkeys(("OK", "PASS", "PASSED", "SUCCESS"), PASSED),
    **dict.fromkeys(("SKIP", "SKIPPED", "TODO", "PENDING", "DISABLED"), SKIPPED),
    **dict.fromkeys(("FAIL", "FAILED", "ERROR", "ERR", "EXCEPTION", "CRASH", "FATAL", "KO", "PANIC"), FAILED),
}
parse_alcotest = by_line(r"\[(?P<status>[A-Z]+)\]\s+(?P<test>\S.*\s\d+\s+\S.*)", OCAML)
parse_ocaml = by_line(r"\[(?P<status>[A-Z]+)\]\s+(?P<test>\S.*)", OCAML)
parse_scala = by_line(  # a time stands behind what passed
    r"\[info\] +- (?:(?P<test>\S.*) (?:\*{3}|!{3}) (?P<status>FAILED|CANCELED|IGNORED) .*"
    r"|(?P<test2>\S.*) \([^()]+(?P<status2>\)))",
    {")": PASSED, "FAILED": FAILED, "CANCELED": SKIPPED, "IGNORED": SKIPPED},
)
VSTEST = {"Passed": PASSED, "Failed": FAILED, "Skipped": SKIPPED}
ELIXIR_PLACE = re.compile(r" \[L#\d+\]$")
ELIXIR_TIME = re.compile(r" \(\d+(?:\.\d+)?ms\)$")
ELIXIR_FAILURE = re.compile(r"\d+\) test (?P<test>.+) \([^()]+\)")
parse_testthat = by_line(  # R's
    r"(?P<status>[✔✖])\s+\|[^|]+\|\s+(?P<test>\S.*)",
    {"✔": PASSED, "✖": FAILED},
    re.compile(r"\[\s*\d+(?:\.\d+)?\s*[a-zA-Z]+\]$"),
)
RUBY_TIME = re.compile(r"\([\d.]+s\)\s*$")
RUBY_WORDS = {
    **dict.fromkeys(("PASS", "PASSED"), PASSED),
    **dict.fromkeys(("FAIL", "FAILURE"), FAILED),
    **dict.fromkeys(("SKIP", "SKIPPED"), SKIPPED),
    "ERROR": ERROR,
}
RUBY_LETTERS = {".": PASSED, "F": FAILED, "E": FAILED, "S": SKIPPED}
WORD = re.compile(r"\s(?P<status>PASSED|FAILED|SKIPPED|ERROR)")


@worst
def parse_csharp(log: str) -> Results:
    """Read the .NET runner: an indented word, the test and its duration."""
    for line in clean_lines(log):
        word, _, rest = line.strip().partition(" ")
        if word in VSTEST and line[:1].isspace():
            yield rest.partition(" [")[0].strip(), VSTEST[word]
        elif line.startswith("[xUnit.net ") and line.rstrip().endswith(" [FAIL]"):
            yield line.partition("]")[2].rpartition(" [FAIL]")[0].strip(), FAILED


@worst
def parse_elixir(log: str) -> Results:
    """Read ExUnit with `--trace`: `* test NAME (1.2ms) [L#3]`, and a number before each failure."""
    for line in stripped_lines(log):
        name = without_end(line.removeprefix("* test "), ELIXIR_PLACE)
        if line.startswith("* test ") and not line.endswith(name):
            skipped = name.endswith(" (skipped)")
            name = name.removesuffix(" (skipped)") if skipped else without_end(name, ELIXIR_TIME)
            yield name.strip(), SKIPPED if skipped else PASSED
        elif match := ELIXIR_FAILURE.fullmatch(line):
            yield match["test"].strip(), FAILED


@worst
def parse_ruby_suites(log: str) -> Results:
    """Read minitest's reporters: a class on a line of its own, then `test_a PASS (0.02s)`."""
    suite = ""
    for line in clean_lines(log):
        if line[:1].isupper() and line.isascii() and line.rstrip().replace("_", "a").isalnum():
            suite = line.rstrip()
            continue
        name, _, word = without_end(line, RUBY_TIME).rpartition(" ")
        name = name.strip()
        if name.startswith("test") and word in RUBY_WORDS and name == name.lower():
            yield f"{suite}::{name}" if suite else name, RUBY_WORDS[word]


@worst
def parse_ruby_letters(log: str) -> Results:
    """Read minitest: `Class#test = 0.02 s = .`."""
    for line in stripped_lines(log):
        head, _, letter = line.rpartition(" = ")
        name, _, time = head.rpartition(" = ")
        if "#" in name and letter in RUBY_LETTERS and re.fullmatch(r"[\d.]+ s", time):
            yield name.strip(), RUBY_LETTERS[letter]


@worst
def parse_cpp_nodes(log: str) -> Results:
    """Read the text between the last "::" and a word for a result."""
    for line in stripped_lines(log):
        if match := WORD.search(line):
            yield line[: match.start()].rpartition("::")[2].strip(), TestStatus[match["status"]]


# --- several lines for each test ----------------------------------------------------------------------------------

DART = {"success": PASSED, "failure": FAILED, "error": ERROR}
DART_LINE = re.compile(
    r"\d+:\d+ \+\d+(?: ~\d+)?(?: -\d+)?: (?P<loading>loading )?(?P<place>/[^:]+\.dart)(?:: (?P<test>.+))?"
)


@worst
def parse_dart_events(log: str) -> Results:
    """Read Dart's events, one JSON object per line."""
    names: dict[object, str] = {}
    for event in _objects(log):
        test = event.get("test")
        if event.get("type") == "testStart" and isinstance(test, dict):
            names[str(test.get("id"))] = str(test.get("name") or "")
        elif event.get("type") == "testDone" and not event.get("hidden"):
            name, status = names.get(str(event.get("testID")), ""), DART.get(str(event.get("result")))
            if status is not None and not name.startswith("loading "):
                yield name, SKIPPED if event.get("skipped") and status is PASSED else status


def _objects(log: str) -> Iterator[JsonObject]:
    for line in stripped_lines(log):
        if not line.startswith(("{", "[")):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict))


@worst
def parse_dart_lines(log: str) -> Results:
    """Read Dart's expanded output: a test that started and is not marked `[E]` has passed."""
    for line in stripped_lines(log):
        failed = line.endswith(" [E]")
        match = DART_LINE.fullmatch(line.removesuffix(" [E]"))
        if match and match["test"] and not match["loading"]:
            yield f"{match['place']}: {match['test'].strip()}", FAILED if failed else PASSED
        elif match and match["loading"] and failed:
            yield match["place"], ERROR


@worst
def parse_lein(log: str) -> Results:
    """Read Leiningen: a namespace that started and in which nothing failed has passed."""
    place = ""
    for line in stripped_lines(log):
        if line.startswith("lein test "):
            names = line.split()[2:]
            for place in [name.partition("/")[0] for name in names[1:2]] if names[0] == ":only" else names:
                yield place, PASSED
        elif place and line.startswith(("FAIL in", "ERROR in")):
            yield place, FAILED if line.startswith("FAIL") else ERROR


@worst
def parse_julia(log: str) -> Results:
    """Read Julia's table of test sets: a count ends where the word of its column does."""
    columns: list[tuple[int, str]] = []
    for line in clean_lines(log):
        name, bar, counts = line.rpartition("|")
        words = [(len(name) + match.end(), match[0]) for match in re.finditer(r"\S+", counts)]
        if "Test Summary:" in name:
            columns = words
        elif bar and columns and name.strip():
            found = {_column(columns, end) for end, word in words if word.isdigit() and word.strip("0")}
            if "Error" in found or "Fail" in found:
                yield name.strip(), ERROR if "Error" in found else FAILED
            elif "Pass" in found:
                yield name.strip(), PASSED


def _column(columns: list[tuple[int, str]], end: int) -> str:
    """The column whose word ends at or after a number's end."""
    return next((word for at, word in columns if at >= end), "")
