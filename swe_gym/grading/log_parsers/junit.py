"""Log parsers for JUnit's XML, as scripts print it at the end of a run.

They read tag by tag: no XML parser sees text that a policy can write.
"""

import html
import re
from collections.abc import Callable

from ...types import TestStatus
from .lines import ESCAPES, LogParser, note

TAG = re.compile(r'<(?P<kind>testcase|/testcase|failure|error|skipped)\b(?P<attributes>(?:[^<>"]++|"[^"<]*+")*+)>')
ATTRIBUTE = re.compile(r'\b(\w++)="([^"]{0,4000})"')  # Python reads no number of more digits, as in "&#65;"
ENDS = {"failure": TestStatus.FAILED, "error": TestStatus.ERROR, "skipped": TestStatus.SKIPPED}


def junit(name: Callable[[str, str], str]) -> LogParser:
    """Return a parser of JUnit's XML.

    Args:
        name: Makes a test's name from the XML's class, which may be empty, and name.
    """

    def parse(log: str) -> dict[str, TestStatus]:
        results: dict[str, TestStatus] = {}
        test, ends = "", list[TestStatus]()
        for tag in TAG.finditer(ESCAPES.sub("", log)):
            kind, attributes = tag["kind"], tag["attributes"]
            if kind == "testcase":
                values = dict(ATTRIBUTE.findall(attributes))
                test, ends = name(values.get("classname", ""), values.get("name", "")), []
            elif kind in ENDS:
                ends.append(ENDS[kind])
            if test and (kind == "/testcase" or (kind == "testcase" and attributes.endswith("/"))):
                note(results, test, ends[0] if ends else TestStatus.PASSED)
                test = ""
        return results

    return parse


def _spaced(place: str, test: str) -> str:
    return f"{place} {test}".strip()


def _bracketed(place: str, test: str) -> str:
    return html.unescape(f"{test} ({place})" if place and test else test)


def _joined(place: str, test: str) -> str:
    return html.unescape(f"{place}::{test}" if place else test)


parse_junit = junit(_spaced)
parse_gradle_junit = junit(_bracketed)
parse_junit_nodes = junit(_joined)
