"""Log parsers for Maven, Ant and Gradle, and for JUnit's XML, as scripts print it at the end of a run.

The XML is read tag by tag: no XML parser sees text that a policy can write.
"""

import html
import re
from collections import deque
from collections.abc import Callable

from ...types import TestStatus
from .lines import ESCAPES, LogParser, Results, by_line, note, stripped_lines, worst

PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED

ASKED_FOR = re.compile(r"-Dtest=(\S+)")
BUILD = re.compile(r"BUILD (SUCCESS|FAILURE)$")

RUNNING = re.compile(r"(?:\[\w+\] )?Running (?P<test>[\w.$]+)")
CLASS = re.compile(
    r"Tests run: (?P<run>\d+), Failures: (?P<failed>\d+), Errors: (?P<errors>\d+), Skipped: (?P<skipped>\d+)"
    r", Time elapsed: (?P<rest>.+)"
)
METHOD = re.compile(
    r"(?:\[\w+\] )?(?P<test>[\w.$#-]+(?:\([\w.$]+\))?)(?: --)? +"
    r"Time elapsed: [\d.,]+ s(?:ec)? +<<< (?P<status>FAILURE|ERROR)!"
)

TASK = re.compile(r"> Task :(?P<test>\S+)(?: (?P<status>\S+))?")
TASK_ENDS = {
    **{"": PASSED, "UP-TO-DATE": PASSED, "FROM-CACHE": PASSED},
    **{"FAILED": FAILED, "SKIPPED": SKIPPED, "NO-SOURCE": SKIPPED},
}
METHOD_ENDS = {"PASSED": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}
GRADLE_NAME = re.compile(r"[^>\s]\S*\s+>\s+\S+")

parse_ant = by_line(
    r"\[junit\] +\[(?P<status>PASS|FAIL|ERR)\] +(?P<test>.+)", {"PASS": PASSED, "FAIL": FAILED, "ERR": ERROR}
)


def parse_maven(log: str) -> dict[str, TestStatus]:
    """Read Maven called for one test at a time, because Maven does not name tests that pass.

    The shell's trace of the commands (`-Dtest=NAME`) holds the names; Maven's last lines hold the results, in the same
    order. A build that ends before the first such command is preparation.
    """
    tests: deque[str] = deque()
    results: dict[str, TestStatus] = {}
    for line in stripped_lines(log):
        if match := ASKED_FOR.search(line):
            tests.append(match[1])
        if tests and (match := BUILD.search(line)):
            note(results, tests.popleft(), PASSED if match[1] == "SUCCESS" else FAILED)
    return results


@worst
def parse_maven_classes(log: str) -> Results:
    """Read the summaries that Maven's Surefire prints of each class, under the class's name, and failed methods.

    Before Surefire 2.19, the summary lacks the name: it is that of the class announced as running.
    """
    running = ""
    for line in stripped_lines(log):
        if match := CLASS.search(line):
            yield match["rest"].partition(" in ")[2] or running, _class_status(match)
            running = ""
        elif match := RUNNING.fullmatch(line):
            running = match["test"]
        elif match := METHOD.match(line):
            yield match["test"], FAILED if match["status"] == "FAILURE" else ERROR


def _class_status(summary: re.Match[str]) -> TestStatus:
    run, failed, errors, skipped = (int(summary[part][:9]) for part in ("run", "failed", "errors", "skipped"))
    if failed or errors:
        return FAILED if failed else ERROR
    return SKIPPED if skipped == run else PASSED  # a class whose tests did not run has not passed


@worst
def parse_gradle(log: str) -> Results:
    """Read tests as Gradle names them, `Class > method`. Other output may separate a name from its result."""
    pending = ""
    for line in stripped_lines(log):
        test, _, word = line.rpartition(" ")
        if word in METHOD_ENDS and test and not line.startswith(">"):
            yield test.rstrip(), METHOD_ENDS[word]
            pending = ""
        elif GRADLE_NAME.fullmatch(line):
            pending = line
        elif pending and line in METHOD_ENDS:
            yield pending, METHOD_ENDS[line]
            pending = ""


@worst
def parse_gradle_tasks(log: str) -> Results:
    """Read Gradle's tasks, `project:task`, and the tests that it names, `Class > method`."""
    for line in stripped_lines(log):
        test, _, word = line.rpartition(" ")
        task = TASK.fullmatch(line)
        if task:
            status = TASK_ENDS.get(task["status"] or "")
            if status is not None:
                yield task["test"], status
        elif " > " in test and word in METHOD_ENDS:
            yield test, METHOD_ENDS[word]


# --- JUnit's XML ------------------------------------------------------------------------------------------------------

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
