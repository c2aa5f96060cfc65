"""Log parsers for JUnit's XML, as scripts print it at the end of a run.

They read tag by tag: no XML parser sees text that a policy can write.
"""

import html
import re
from collections.abc import Callable

from ...types import TestStatus
from .lines import ESCAPES, LogParser, Results, worst

TAG = re.compile(r'<(?P<kind>testcase|/testcase|failure|error|skipped)\b(?P<attributes>(?:[^<>"]++|"[^"<]*+")*+)>')
ATTRIBUTE = re.compile(r'\b(\w++)="([^"]{0,4000})"')  # Python reads no number of more digits, as in "&#65;"
ENDS = {"failure": TestStatus.FAILED, "error": TestStatus.ERROR, "skipped": TestStatus.SKIPPED}


def junit(name: Callable[[str, str], str]) -> LogParser:
    """Return a parser of JUnit's XML.

    Args:
        name: Makes a test's name from the XML's class, which may be empty, and name.
    """

    @worst
    def parse(log: str) -> Results:
        test, ends = "", list[TestStatus]()
        for tag in TAG.finditer(ESCAPES.sub("", log)):
            kind, attributes = tag["kind"], tag["attributes"]
            if kind == "testcase":
                values = dict(ATTRIBUTE.findall(attributes))
                test, ends = name(values.get("classname", ""), values.get("name", "")), []
            elif kind in ENDS:
                ends.append(ENDS[kind])
            if test and (kind == "/testcase" or (kind == "testcase" and attributes.endswith("/"))):
                yield test, ends[0] if ends else TestStatus.PASSED
                test = ""

    return parse


parse_junit = junit(lambda place, test: f"{place} {test}".strip())
parse_gradle_junit = junit(lambda place, test: html.unescape(f"{test} ({place})" if place and test else test))
parse_junit_nodes = junit(lambda place, test: html.unescape(f"{place}::{test}" if place else test))
