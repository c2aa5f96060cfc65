"""Where a required test stands: from its id in a published list to a function in a file of the sandbox."""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ...errors import FileError
from ...sandboxes.base import Sandbox
from ...types import Oracle
from ..patch import parents
from ..protect import touched_files
from .source import Function, Source, parse

DJANGO = re.compile(r"(?P<name>\w+) \((?P<module>[\w.]+)\)")
DOTTED = re.compile(r"[\w.]+")
MENTIONED = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
MAX_LISTING = 8 << 20


class Place(NamedTuple):
    """A test function.

    Attributes:
        path: The file, relative to the workspace.
        names: The classes that it stands in, and its name.
    """

    path: str
    names: tuple[str, ...]


class Wanted(NamedTuple):
    """What the id of a test says of its place.

    Attributes:
        path: The end of the file's path; empty if the id names none.
        names: Class and function, or the function alone; empty if the id is the first line of a docstring.
        title: The first line of the docstring.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    title: str = ""


def wanted(test: str) -> Wanted:
    """Take the id of a test apart: pytest's, unittest's, Django's, sympy's."""
    if "::" in test:
        path, *names = test.partition("[")[0].split("::")
        return Wanted(posixpath.normpath(path), tuple(names))
    match = DJANGO.match(test)
    if match:  # "test_a (package.module.Class)", since Python 3.11 "test_a (package.module.Class.test_a)"
        dotted = match["module"].removesuffix(f".{match['name']}")
        return _dotted([*dotted.split("."), match["name"]])
    if DOTTED.fullmatch(test):
        return _dotted(test.split("."))
    return Wanted(title=test.strip())


def _dotted(parts: list[str]) -> Wanted:
    if len(parts) < 3:
        return Wanted(names=tuple(parts))
    return Wanted("/".join(parts[:-2]) + ".py", tuple(parts[-2:]))


class Finder:
    """Finds test functions in a sandbox that is about to judge.

    Files that the hidden tests bring are looked at first, then files whose path ends as the id says.

    Args:
        oracle: Names the files of the hidden tests.
        sandbox: Holds the hidden tests and the work. No code of the work runs in it.
        work: Paths that the work changes. No test is looked for there: work could plant another one of its name.
    """

    def __init__(self, oracle: Oracle, sandbox: Sandbox, work: Collection[str] = ()) -> None:
        mentioned = MENTIONED.findall(f"{oracle.eval_script} {oracle.test_cmd}")
        named = [*touched_files(oracle.test_patch), *oracle.test_files, *mentioned]
        self._near = [path for path in dict.fromkeys(map(posixpath.normpath, named)) if path.endswith(".py")]
        self._sandbox = sandbox
        self._work = frozenset(work)
        self._sources: dict[str, Source | None] = {}
        self._places: dict[str, Place | None] = {}
        self._listed: list[str] | None = None
        self._by_name: dict[str, list[str]] | None = None

    def source(self, path: str) -> Source | None:
        """A file of the workspace, parsed; None if it is missing or not Python."""
        if path not in self._sources:
            try:
                trusted = self._work.isdisjoint((path, *parents(path)))
                self._sources[path] = parse(self._sandbox.read_file(path)) if trusted else None
            except FileError:
                self._sources[path] = None
        return self._sources[path]

    def place(self, test: str) -> Place | None:
        """Where a test stands; None if that cannot be told."""
        if test not in self._places:
            self._places[test] = self._find(test)
        return self._places[test]

    def _find(self, test: str) -> Place | None:
        want = wanted(test)
        candidates = self._candidates(want)
        for path in candidates:
            source = self.source(path)
            names = source and _find(source, want)
            if names:
                return Place(path, names)
        return self._inherited(want, candidates) if want.names and any(map(self.source, candidates)) else None

    def _candidates(self, want: Wanted) -> list[str]:
        if not want.path:
            return self._near
        if want.path in self._near or self.source(want.path) is not None:
            return [want.path]
        ends = (want.path, want.path.removesuffix(".py") + "/__init__.py")
        near = [path for path in self._near if _ends(path, ends)]
        listed = [path for end in ends for path in self._listed_as(posixpath.basename(end)) if _ends(path, ends)]
        return near or sorted(listed) or _shorter(want.path, self._near)

    def _inherited(self, want: Wanted, candidates: Iterable[str]) -> Place | None:
        """The only function near by that can be the test.

        It may have the test's name: the method of a base class in another file. Or it stands within another function
        and asserts something: a program makes the tests of it.
        """
        folders = {posixpath.dirname(path) for path in candidates}
        near = [*self._near, *(path for path in self._listing() if posixpath.dirname(path) in folders)]
        importing = any(source.imports(want.names[-1]) for source in map(self.source, candidates) if source)
        named, nested = set(), set()
        for path in dict.fromkeys(near):
            source = self.source(path)
            if source is not None:
                if importing or len(want.names) > 1 or not want.path:  # else it would stand in the file itself
                    named |= {Place(path, names) for names in source.functions if names[-1] == want.names[-1]}
                nested |= {Place(path, names) for names in source.nested}
        found = named or nested
        return found.pop() if len(found) == 1 else None

    def _listed_as(self, name: str) -> list[str]:
        if self._by_name is None:
            self._by_name = _last_parts(self._listing())
        return self._by_name.get(name, [])

    def _listing(self) -> list[str]:
        """The Python files of the workspace whose path speaks of tests."""
        if self._listed is None:
            command = ["find", ".", "-name", "*.py", "-path", "*test*", "-not", "-path", "./.git/*"]
            found = self._sandbox.exec(command, max_output=MAX_LISTING)
            self._listed = sorted(line[2:] for line in found.text.splitlines())
        return self._listed


def _last_parts(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[posixpath.basename(path)].append(path)
    return found


def _ends(path: str, ends: Iterable[str]) -> bool:
    return any(f"/{path}".endswith(f"/{end}") for end in ends)


def _shorter(path: str, near: Iterable[str]) -> list[str]:
    """The files near by whose path is the end of the one in the id: ids may begin above the workspace."""
    return [known for known in near if path.endswith(f"/{known}")]


def _find(source: Source, want: Wanted) -> tuple[str, ...] | None:
    if want.names:
        return source.find(want.names)
    titled = [names for names, function in source.functions.items() if _title(function) == want.title]
    return titled[0] if len(titled) == 1 and want.title else None


def _title(function: Function) -> str:
    return (ast.get_docstring(function) or "").strip().partition("\n")[0].strip()
