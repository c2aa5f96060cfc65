"""Finds the function of a required test, by its id in a published list, in the files of a sandbox."""

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ...errors import FileError
from ...sandboxes import Sandbox
from ...types import Oracle
from ..diff import touched_files
from ..ids import ParsedId, parse_id
from ..patch import parents
from .source import Function, Source, parse

MENTIONED = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
MAX_LISTING = 8 << 20


class FunctionPlace(NamedTuple):
    """A test function.

    Attributes:
        path: File, relative to the workspace.
        names: Enclosing classes and the function's own name.
    """

    path: str
    names: tuple[str, ...]


class Finder:
    """Finds test functions in a grading sandbox.

    Files that the hidden tests bring come first, then files whose path ends as the id says.

    Args:
        oracle: Names the files of the hidden tests.
        sandbox: Holds the hidden tests and the work. No code of the work runs in it.
        work: Paths that the work changes. They are not searched: work could plant another test of the same name.
    """

    def __init__(self, oracle: Oracle, sandbox: Sandbox, work: Collection[str] = ()) -> None:
        mentioned = MENTIONED.findall(f"{oracle.eval_script} {oracle.test_cmd}")
        named = [*touched_files(oracle.test_patch), *oracle.test_files, *mentioned]
        self._near = [path for path in dict.fromkeys(map(posixpath.normpath, named)) if path.endswith(".py")]
        self._sandbox = sandbox
        self._work = frozenset(work)
        self._sources: dict[str, Source | None] = {}
        self._places: dict[str, FunctionPlace | None] = {}
        self._listed: list[str] | None = None
        self._by_name: dict[str, list[str]] | None = None

    def source(self, path: str) -> Source | None:
        """Parse a file of the workspace. Return None if it is missing or not Python."""
        if path not in self._sources:
            try:
                trusted = self._work.isdisjoint((path, *parents(path)))
                self._sources[path] = parse(self._sandbox.read_file(path)) if trusted else None
            except FileError:
                self._sources[path] = None
        return self._sources[path]

    def place(self, test: str) -> FunctionPlace | None:
        """Find a test's function. Return None if the id is ambiguous or the function is not there."""
        if test not in self._places:
            self._places[test] = self._find(test)
        return self._places[test]

    def _find(self, test: str) -> FunctionPlace | None:
        want = parse_id(test)
        candidates = self._candidates(want)
        for path in candidates:
            source = self.source(path)
            names = source and _find(source, want)
            if names:
                return FunctionPlace(path, names)
        return self._find_inherited(want, candidates) if want.names and any(map(self.source, candidates)) else None

    def _candidates(self, want: ParsedId) -> list[str]:
        if not want.path:
            return self._near
        if want.path in self._near or self.source(want.path) is not None:
            return [want.path]
        ends = (want.path, want.path.removesuffix(".py") + "/__init__.py")
        near = [path for path in self._near if _ends(path, ends)]
        listed = [path for end in ends for path in self._find_listed(posixpath.basename(end)) if _ends(path, ends)]
        return near or sorted(listed) or _shorter(want.path, self._near)

    def _find_inherited(self, want: ParsedId, candidates: Iterable[str]) -> FunctionPlace | None:
        """The only function nearby that can be the test.

        It is the method of a base class in another file, under the test's name. Or it is an asserting function within
        another function, from which a program makes tests.
        """
        folders = {posixpath.dirname(path) for path in candidates}
        near = [*self._near, *(path for path in self._listing() if posixpath.dirname(path) in folders)]
        importing = any(source.imports(want.names[-1]) for source in map(self.source, candidates) if source)
        named, nested = set(), set()
        for path in dict.fromkeys(near):
            source = self.source(path)
            if source is not None:
                if importing or len(want.names) > 1 or not want.path:  # else it would stand in the file itself
                    named |= {FunctionPlace(path, names) for names in source.functions if names[-1] == want.names[-1]}
                nested |= {FunctionPlace(path, names) for names in source.nested}
        found = named or nested
        return found.pop() if len(found) == 1 else None

    def _find_listed(self, name: str) -> list[str]:
        if self._by_name is None:
            self._by_name = _index_last_parts(self._listing())
        return self._by_name.get(name, [])

    def _listing(self) -> list[str]:
        """The Python files of the workspace whose path contains "test"."""
        if self._listed is None:
            command = ["find", ".", "-name", "*.py", "-path", "*test*", "-not", "-path", "./.git/*"]
            found = self._sandbox.exec(command, max_output=MAX_LISTING)
            self._listed = sorted(line[2:] for line in found.text.splitlines())
        return self._listed


def _index_last_parts(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[posixpath.basename(path)].append(path)
    return found


def _ends(path: str, ends: Iterable[str]) -> bool:
    return any(f"/{path}".endswith(f"/{end}") for end in ends)


def _shorter(path: str, near: Iterable[str]) -> list[str]:
    """The nearby files whose path ends the one in the id: ids may begin above the workspace."""
    return [known for known in near if path.endswith(f"/{known}")]


def _find(source: Source, want: ParsedId) -> tuple[str, ...] | None:
    if want.names:
        return source.find(want.names)
    titled = [names for names, function in source.functions.items() if _title(function) == want.title]
    return titled[0] if len(titled) == 1 and want.title else None


def _title(function: Function) -> str:
    return (ast.get_docstring(function) or "").strip().partition("\n")[0].strip()
