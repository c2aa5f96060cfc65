"""Finds the function of a required test by its id in a published list, and the statements of it that are sure to run.

A changed assertion proves something only if it is reached by every passing run, whatever right work is tested. The
search for such statements enters `with` blocks that do not swallow exceptions, `try` without handlers, `finally`, and
loops over literals. It does not enter `if`, `try` with handlers, `while`, loops over results of the product, and nested
functions. It ends where `return`, `break` or `continue` may skip the rest.
"""

import ast
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ...errors import FileError
from ...sandboxes import Sandbox
from ...types import Oracle
from ..diff import touched_files
from ..ids import ParsedId, parse_id
from ..patch import parents
from ..plan import START_TEXT
from ..protect import hidden_files
from .source import Function, Source, name_of, parse, remembered

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

    Attributes:
        hidden: Files of the hidden tests, in all languages.
    """

    def __init__(self, oracle: Oracle, sandbox: Sandbox, work: Collection[str] = ()) -> None:
        mentioned = MENTIONED.findall(f"{oracle.eval_script} {oracle.test_cmd}")
        named = [*touched_files(oracle.test_patch), *oracle.test_files, *mentioned]
        self._near = [path for path in dict.fromkeys(map(posixpath.normpath, named)) if path.endswith(".py")]
        brought = oracle.test_paths if START_TEXT in oracle.eval_script else ()  # by its preparation
        hidden = (*hidden_files(oracle), *(re.sub(r"\[([*?[])\]", r"\1", path) for path in brought))
        self.hidden = sorted({path for path in hidden if posixpath.splitext(path)[1]})
        self._sandbox = sandbox
        command = oracle.eval_script.rpartition(START_TEXT)[2]
        later = touched_files(oracle.test_patch) if oracle.test_patch.strip() in command else ()
        self._changing = frozenset((*work, *later))  # the test command itself applies the patch: these are old yet
        self._sources: dict[str, Source | None] = {}
        self._places: dict[str, FunctionPlace | None] = {}
        self._listed: list[str] | None = None
        self._by_name: dict[str, list[str]] | None = None

    def source(self, path: str) -> Source | None:
        """Parse a file of the workspace. Return None if it is missing or not Python."""
        if path not in self._sources:
            data = self.read(path)
            self._sources[path] = None if data is None else parse(data)
        return self._sources[path]

    def read(self, path: str) -> bytes | None:
        """Return the content of a file. Return None if it is missing, or the work or the test command changes it."""
        try:
            return self._sandbox.read_file(path) if self._changing.isdisjoint((path, *parents(path))) else None
        except FileError:
            return None

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


# --- statements that are sure to run ----------------------------------------------------------------------------------

RAISING = frozenset(
    {"raises", "assertRaises", "assertRaisesMessage", "assertRaisesRegex", "assertRaisesRegexp", "assert_raises"}
    | {"assert_raises_regex", "raises_regex", "failUnlessRaises"}
)
"""Context managers that an exception satisfies."""

SWALLOWING = RAISING | {"suppress", "xfail", "XFAIL", "ignore_exceptions"}
LOOPING = frozenset({"enumerate", "zip", "product", "sorted", "reversed"})
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@remembered
def walk_reached(function: Function, source: Source) -> tuple[ast.stmt, ...]:
    """Return the statements that run whenever a test passes, in order."""
    kinds = find_types(function, source)
    literals = _literal_names(function, source) if ast.For in kinds else ()
    leaves = not kinds.isdisjoint((ast.Return, ast.Break, ast.Continue))
    return tuple(_walk_reached(function.body, literals, leaves=leaves))


def _walk_reached(
    body: Sequence[ast.stmt], literals: Collection[str], *, leaves: bool, in_loop: bool = False
) -> list[ast.stmt]:
    """Return the statements of a block that run for sure.

    Args:
        body: The block.
        literals: Names of non-empty literals.
        leaves: Whether the function has a statement that may skip others.
        in_loop: Whether the block is in a loop.
    """
    found: list[ast.stmt] = []
    for statement in body:
        found.append(statement)
        match statement:
            case ast.With() | ast.AsyncWith() if not any(map(_swallows, statement.items)):
                found += _walk_reached(statement.body, literals, leaves=leaves, in_loop=in_loop)
            case ast.For() if _runs(statement.iter, literals):
                found += _walk_reached(statement.body, literals, leaves=leaves, in_loop=True)
            case ast.Try():
                for part in (() if statement.handlers else statement.body), statement.finalbody:
                    found += _walk_reached(part, literals, leaves=leaves, in_loop=in_loop)
        if leaves and may_leave(statement, in_loop=in_loop):
            break
    return found


@remembered
def find_types(function: Function, source: Source) -> frozenset[type]:
    """Return the types of all nodes of a function."""
    return frozenset(map(type, source.walk(function)))


def _swallows(item: ast.withitem) -> bool:
    return name_of(item.context_expr) in SWALLOWING


def may_leave(statement: ast.stmt, *, in_loop: bool = False) -> bool:
    """Whether a passing test may skip the statements after this one."""
    leaving: tuple[type[ast.stmt], ...] = (ast.Return, ast.Break, ast.Continue) if in_loop else (ast.Return,)
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, leaving):
            return True
        if not isinstance(node, NESTED):
            todo += ast.iter_child_nodes(node)
    return False


def _runs(items: ast.expr, literals: Collection[str]) -> bool:
    """Whether a loop over `items` runs at least once, whatever the product returns."""
    match items:
        case ast.List() | ast.Tuple() | ast.Set():
            return bool(items.elts)
        case ast.Dict():
            return bool(items.keys)
        case ast.Constant():
            return bool(items.value)
        case ast.Name():
            return items.id in literals
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "keys" | "values")):
            return _runs(value, literals)
        case ast.Call(func=ast.Name(id="range"), args=[_, *_]) if all(map(_is_whole, items.args)):
            numbers = [ast.literal_eval(argument) for argument in items.args]
            return len(numbers) < 3 and bool(range(*numbers))
        case ast.Call(args=[_, *_]) if name_of(items) in LOOPING:
            return all(_runs(argument, literals) for argument in items.args)
    return False


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _stores(body: Sequence[ast.stmt]) -> tuple[Counter[str], Counter[str]]:
    """Count how often each name is assigned a non-empty literal, and how often it is assigned at all."""
    filled, stored = Counter[str](), Counter[str]()
    for statement in body:
        for node in ast.walk(statement) if not isinstance(statement, NESTED) else ():
            if isinstance(node, ast.Assign) and _runs(node.value, ()):
                filled.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
    return filled, stored


@remembered
def _module_stores(module: ast.Module, _source: Source) -> tuple[Counter[str], Counter[str]]:
    return _stores(module.body)


def _literal_names(function: Function, source: Source) -> set[str]:
    """The names that are assigned only non-empty literals."""
    filled, stored = (
        outer + inner for outer, inner in zip(_module_stores(source.tree, source), _stores(function.body), strict=True)
    )
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return {name for name in filled if filled[name] == stored[name]} - parameters
