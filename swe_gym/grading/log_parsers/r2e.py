"""Log parser for R2E-Gym's short names: the part of a node id after the file, with dots: `TestA.test_b[c]`."""

from ...types import TestStatus
from .lines import clean_lines

SUMMARY = "short test summary info"
WORDS = (("PASSED", TestStatus.PASSED), ("FAILED", TestStatus.FAILED), ("ERROR", TestStatus.ERROR))
ORDER = (TestStatus.PASSED, TestStatus.ERROR, TestStatus.FAILED)


def parse_r2e(log: str) -> dict[str, TestStatus]:
    """Read the short summary of a run. Skipped tests and expected failures are not in maps.

    If two tests have the same short name, the later line counts, as when the maps were made. No map was made from a log
    with several summaries: there the worst status counts.
    """
    results: dict[str, TestStatus] = {}
    section: dict[str, TestStatus] | None = None
    for line in [*clean_lines(log), SUMMARY]:
        if SUMMARY in line:
            for test, status in (section or {}).items():
                results[test] = max(status, results.get(test, status), key=ORDER.index)
            section = {}
        elif section is not None:
            _read(line, section)
    return results


def _read(line: str, section: dict[str, TestStatus]) -> None:
    for word, status in WORDS:
        if word in line:
            test = short_name(line)
            if test:
                section[test] = status
            return


def short_name(test: str) -> str:
    """Return R2E-Gym's name for the test of a node id; empty if it is not a test."""
    return test.partition("::")[2].replace("::", ".").partition(" - ")[0].strip()
