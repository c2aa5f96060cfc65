"""Log parsers for pytest: its short summary, a verbose run, and the short names of R2E-Gym.

R2E-Gym names a test by the part of its node id after the file, with dots: `TestA.test_b[c]`.
"""

import re
from collections.abc import Callable

from ...types import TestStatus
from .lines import clean_lines, note

STATUSES = {
    "PASSED": TestStatus.PASSED,
    "FAILED": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "SKIPPED": TestStatus.SKIPPED,
    "XFAIL": TestStatus.XFAILED,
    "XPASS": TestStatus.XPASSED,
}
WORDS = "|".join(STATUSES)
SUMMARY = re.compile(rf"({WORDS})\s+(\S.*)")
VERBOSE = re.compile(rf"\s({WORDS})(?:\s+\(.*)?$")
WORKER = re.compile(r"\[gw\d+\]\s+(?:\[\s*\d+%\]\s+)?")  # pytest-xdist names the worker and puts the status first
PERCENT = re.compile(r"\[\s*\d+%\]$")
BARE_COLOUR = re.compile(r"\[\d+(?:;\d+)*m")  # its escape character is lost
PROGRESS = re.compile(r"\[\s*\d+%\]")  # stands in published lists, from a status that live logging put on its own line


def parse_pytest(log: str) -> dict[str, TestStatus]:
    """Read a pytest run, under full node ids, blanks included.

    A file that could not be collected is there under its path. Of progress lines, the last counts.
    """
    results: dict[str, TestStatus] = {}
    for line in clean_lines(log):
        found = _result(line)
        if found is not None and PROGRESS.match(found[0]):
            results[found[0]] = found[1]
        elif found is not None:
            note(results, *found)
    return results


def parse_pytest_options(log: str) -> dict[str, TestStatus]:
    """Read pytest with absolute paths as parameters cut to the last part: `test_a[/x/y.py]` becomes `test_a[/y.py]`."""
    return _rename_tests(parse_pytest(log), short_path)


def parse_matplotlib(log: str) -> dict[str, TestStatus]:
    """Read pytest with mouse buttons as numbers, as older versions of Python write them."""
    return _rename_tests(parse_pytest(log), number_buttons)


def parse_pytest_colours(log: str) -> dict[str, TestStatus]:
    """Read pytest in logs whose colours may have lost their escape characters."""
    return parse_pytest(BARE_COLOUR.sub("", log) if "\x1b" not in log else log)


def short_path(test: str) -> str:
    """Cut the absolute path that is a test id's only parameter to its last part."""
    name, bracket, option = test.partition("[")
    option, closing, _ = option.rpartition("]")
    is_path = option.startswith("/") and not option.startswith("//") and "*" not in option
    if not (bracket and closing and is_path) or " " in test:
        return test
    return f"{name}[/{option.rpartition('/')[2]}]"


def number_buttons(test: str) -> str:
    """Replace the names of mouse buttons in a test id by numbers."""
    return test.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")


def _rename_tests(found: dict[str, TestStatus], rename: Callable[[str], str]) -> dict[str, TestStatus]:
    results: dict[str, TestStatus] = {}
    for test, status in found.items():
        note(results, rename(test), status)
    return results


# --- one line --------------------------------------------------------------------------------------------------


def _result(line: str) -> tuple[str, TestStatus] | None:
    line = WORKER.sub("", line, count=1) if line.startswith("[gw") else line
    if match := SUMMARY.match(line):
        word, text = match.groups()
        test = text.rstrip() if word == "PASSED" else without_reason(text.rstrip())
    else:
        text = _without_percent(line)
        found = VERBOSE.search(text)
        if found is None:
            return None
        word, test = found[1], text[: found.start()].strip()
    return (test, STATUSES[word]) if _is_test(test) else None


def _without_percent(line: str) -> str:
    """A line of a verbose run without the progress at its end."""
    line = line.rstrip()
    return line[: line.rfind("[")].rstrip() if PERCENT.search(line[-6:]) else line


def without_reason(text: str) -> str:
    """Return a test id without the " - reason" that follows it. A parameter may hold such a dash too."""
    first, position, depth = -1, 0, 0
    while (dash := text.find(" - ", position)) != -1:
        depth += text.count("[", position, dash) - text.count("]", position, dash)
        if depth == 0:
            return text[:dash]
        first = dash if first == -1 else first
        position = dash + 3
    return text if first == -1 or text.endswith("]") else text[:first]


def _is_test(text: str) -> bool:
    """Whether a text can be a node id, and not a log message or a count of skipped tests."""
    return "::" in text or (text.endswith(".py") and " " not in text) or bool(PROGRESS.match(text))


# --- short names of R2E-Gym ------------------------------------------------------------------------------------

HEADLINE = "short test summary info"
SHORT_WORDS = (("PASSED", TestStatus.PASSED), ("FAILED", TestStatus.FAILED), ("ERROR", TestStatus.ERROR))
ORDER = (TestStatus.PASSED, TestStatus.ERROR, TestStatus.FAILED)


def parse_r2e(log: str) -> dict[str, TestStatus]:
    """Read the short summary of a run. Skipped tests and expected failures are not in maps.

    If two tests have the same short name, the later line counts, as when the maps were made. No map was made from a log
    with several summaries: there the worst status counts.
    """
    results: dict[str, TestStatus] = {}
    section: dict[str, TestStatus] | None = None
    for line in [*clean_lines(log), HEADLINE]:
        if HEADLINE in line:
            for test, status in (section or {}).items():
                results[test] = max(status, results.get(test, status), key=ORDER.index)
            section = {}
        elif section is not None:
            _read(line, section)
    return results


def _read(line: str, section: dict[str, TestStatus]) -> None:
    for word, status in SHORT_WORDS:
        if word in line:
            test = short_name(line)
            if test:
                section[test] = status
            return


def short_name(test: str) -> str:
    """Return R2E-Gym's name for the test of a node id; empty if it is not a test."""
    return test.partition("::")[2].replace("::", ".").partition(" - ")[0].strip()
