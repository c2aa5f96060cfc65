"""Takes the ids of tests apart: pytest's, unittest's, Django's, sympy's, R2E-Gym's."""

import posixpath
import re
from typing import NamedTuple

DJANGO = re.compile(r"(?P<name>\w+) \((?P<module>[\w.]+)\)")
DOTTED = re.compile(r"[\w.]+|(?:\w+\.){2,}[^\s.()\[\]]+(?: ?(?:\(.*\)|\[.*\]))?", re.DOTALL)
"""Names with dots. With three parts or more, the last may hold other characters, and parameters may follow."""


class ParsedId(NamedTuple):
    """The parts of a test's id.

    Attributes:
        path: End of the file's path; empty if the id does not name it.
        names: Class and function, or the function alone; empty if the id is the first line of a docstring.
        title: First line of the docstring.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    title: str = ""


def parse_id(test: str) -> ParsedId:
    """Take the id of a test apart."""
    path, colons, names = test.partition("::")
    if colons:
        return ParsedId(posixpath.normpath(path), tuple(names.partition("[")[0].split("::")))
    match = DJANGO.match(test)
    if match:  # "test_a (package.module.Class)", since Python 3.11 "test_a (package.module.Class.test_a)"
        dotted = match["module"].removesuffix(f".{match['name']}")
        return _read_dotted([*dotted.split("."), match["name"]])
    if DOTTED.fullmatch(test):
        return _read_dotted(re.split(r" ?[(\[]", test, maxsplit=1)[0].split("."))
    return ParsedId(title=test.strip())


def _read_dotted(parts: list[str]) -> ParsedId:
    if len(parts) < 3:
        return ParsedId(names=tuple(parts))
    return ParsedId("/".join(parts[:-2]) + ".py", tuple(parts[-2:]))
