"""Parses a test file, and edits it without changing anything else."""

import ast
import builtins
import contextlib
import functools
import io
import itertools
import re
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from ... import syntax

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

LARGEST_PARSED = 1 << 20
"""Bytes of a test file beyond which it is not parsed."""

MOST_KEPT, LEAST_COUNTED = 1 << 20, 1 << 12
"""Bytes of parsed files that are kept, and those as which a small file counts. The last file is always kept."""

WORD = re.compile(r"\b[a-z]{4,9}\b")


N = TypeVar("N", bound=ast.AST)
T = TypeVar("T")
P = ParamSpec("P")


class TextEdit(NamedTuple):
    """A replacement: UTF-8 bytes from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


class Source:
    """A parsed Python file.

    Positions are byte offsets into the UTF-8 text, as in `ast`.

    Args:
        data: Content of the file.

    Raises:
        ValueError: The content is not Python 3, or too large.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) > LARGEST_PARSED:
            raise ValueError(f"the file is too large to parse: {len(data)} bytes")
        try:
            self._encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(self._encoding)
            self.tree = syntax.parse(text)
        except (SyntaxError, LookupError, RecursionError, MemoryError) as error:
            raise ValueError(f"not Python 3: {error}") from error
        self.findings: dict[tuple[object, ...], object] = {}  # of `remembered`
        self._walked: dict[ast.AST, list[ast.AST]] = {}
        self._utf8 = text.encode()
        self._lines = [0]
        for line in self._utf8.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the start and end of a node."""
        last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[last_line - 1] + last_column

    def spans(self, nodes: Iterable[ast.stmt]) -> list[tuple[int, int]]:
        """Return the start and end of each node."""
        found = []
        for node in nodes:
            last_line, last_column = node.end_lineno or node.lineno, node.end_col_offset or 0
            found.append((self._lines[node.lineno - 1] + node.col_offset, self._lines[last_line - 1] + last_column))
        return found

    def text(self, start: int, end: int) -> str:
        """Return the text between two positions."""
        return self._utf8[start:end].decode()

    def beginning(self, length: int) -> str:
        """Return the text up to a number of bytes."""
        return self._utf8[:length].decode(errors="ignore")

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        return self.text(*self.span(node))

    def before(self, node: ast.expr | ast.stmt) -> str:
        """Return the text before a node on its line: the indentation of its block, if the node is first there."""
        start = self._lines[node.lineno - 1]
        return self._utf8[start : start + node.col_offset].decode()

    def continues(self, node: ast.expr | ast.stmt) -> bool:
        """Whether the line of a node continues the one before by a backslash."""
        return self._utf8[: self._lines[node.lineno - 1]].rstrip(b"\r\n").endswith(b"\\")

    def after(self, node: ast.expr | ast.stmt) -> str:
        """Return the text after a node on its last line."""
        return self.text(self.span(node)[1], self._lines[node.end_lineno or node.lineno])

    def apply_edits(self, edits: Iterable[TextEdit]) -> bytes:
        """Return the file's content after edits that do not overlap, in the file's own encoding."""
        data = self._utf8
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode().encode(self._encoding)

    def cut(self, start: int, end: int, edits: Iterable[TextEdit]) -> str:
        """Return the text between two positions after edits that lie between them."""
        data = self._utf8[:end]
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data[start:].decode()

    def walk(self, node: ast.AST) -> list[ast.AST]:
        """Return a node and all below it, as `ast.walk` does, which takes longer."""
        if node not in self._walked:
            self._walked[node] = list(ast.walk(node))
        return self._walked[node]

    @functools.cached_property
    def future(self) -> tuple[str, ...]:
        """The imports from `__future__`."""
        found = [node for node in self.tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        return tuple(map(self.text_of, found))

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """The sorted words of the file. A text made of them looks like the file's other texts."""
        return tuple(sorted(set(WORD.findall(self._utf8.decode())))) or ("other",)

    @functools.cached_property
    def strings(self) -> tuple[str, ...]:
        """The texts of the file's string literals."""
        values = [node.value for node in self.walk(self.tree) if isinstance(node, ast.Constant)]
        return tuple([value for value in values if isinstance(value, str)])

    @functools.cached_property
    def functions(self) -> dict[tuple[str, ...], Function]:
        """Functions of the module and of its classes, by their names: `("TestCase", "test_a")`."""
        return _functions(self.tree.body, ())

    @functools.cached_property
    def nested(self) -> dict[tuple[str, ...], Function]:
        """Functions within those functions that assert something."""
        found = {}
        for names, function in self.functions.items():
            for node in self.walk(function):
                if isinstance(node, Function) and node is not function and _asserts(node):
                    found[(*names, node.name)] = node
        return found

    @functools.cached_property
    def classes(self) -> dict[str, list[str]]:
        """Class -> the last names of its bases, for every class of the file."""
        found = [node for node in self.walk(self.tree) if isinstance(node, ast.ClassDef)]
        return {node.name: [name_of(base) for base in node.bases] for node in found}

    def mentioning(self, name: str) -> set[tuple[str, ...]]:
        """Return the functions that mention a name, as a variable or an attribute."""
        return self._mentions.get(name, set())

    @functools.cached_property
    def _mentions(self) -> dict[str, set[tuple[str, ...]]]:
        found: dict[str, set[tuple[str, ...]]] = {}
        for names, function in self.functions.items():
            for node in self.walk(function):
                if isinstance(node, ast.Attribute | ast.Name):
                    found.setdefault(node.attr if isinstance(node, ast.Attribute) else node.id, set()).add(names)
        return found

    @functools.cached_property
    def named(self) -> dict[str, list[Function]]:
        """Name -> the functions of the module and of its classes with this name."""
        found: dict[str, list[Function]] = {}
        for names, function in self.functions.items():
            found.setdefault(names[-1], []).append(function)
        return found

    def imports(self, name: str) -> bool:
        """Whether the module imports a name from another one, by name or by `*`."""
        found = (node for node in self.tree.body if isinstance(node, ast.ImportFrom))
        return any(alias.name in ("*", name) for node in found for alias in node.names)

    def find_combined(self, call: ast.expr) -> list[ast.Constant]:
        """Return the strings that a call combines, by a function of the module that does nothing else."""
        match call:
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if (name,) in self.functions:
                texts = [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
                return texts if len(texts) == len(parts) and _is_pure(self.functions[name,], self) else []
        return []

    def constant(self, name: str) -> ast.expr | None:
        """Return the value of a name that the module assigns once: a number, a text, or a call that combines texts."""
        value = self._constants.get(name)
        return value if value is not None and self.parts(value) else None

    def parts(self, value: ast.expr) -> list[ast.Constant]:
        """Return the numbers and texts that make a value."""
        if isinstance(value, ast.Constant) and isinstance(value.value, str | bytes | int | float):
            return [] if isinstance(value.value, bool) else [value]
        return self.find_combined(value)

    def inlined(self, value: ast.expr, edits: Iterable[TextEdit] = ()) -> str:
        """Return the text of a constant's value after edits, as an expression that can stand for its name."""
        return f"({self.cut(*self.span(value), edits)})"

    @functools.cached_property
    def _constants(self) -> dict[str, ast.expr]:
        nodes = self.walk(self.tree)
        stored = Counter([node.id for node in nodes if isinstance(node, ast.Name) and type(node.ctx) is not ast.Load])
        stored.update([node.arg for node in nodes if isinstance(node, ast.arg)])
        return {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and stored[target.id] == 1
        }

    def calls_super(self, names: tuple[str, ...]) -> bool:
        """Whether a function calls the method of the same name of a base class."""
        if names in self.functions and names not in self.mentioning(names[-1]):
            return False
        named = [node for node in self.walk(self.function(names)) if getattr(node, "attr", "") == names[-1]]
        return any(isinstance(node, ast.Attribute) and name_of(node.value) == "super" for node in named)

    def function(self, names: tuple[str, ...]) -> Function:
        """Return the function of these names, also one within another function."""
        return self.functions.get(names) or self.nested[names]

    def find(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the names of a function, or of the one that its class inherits within the file; None if missing."""
        if names in self.functions:
            return names
        seen, todo = {""}, list(self.classes.get(names[-2], ())) if len(names) > 1 else []
        while todo:
            base = todo.pop(0)
            if base in seen:
                continue
            seen.add(base)
            todo += self.classes.get(base, ())
            inherited = next((known for known in self.functions if known[-2:] == (base, names[-1])), None)
            if inherited:
                return inherited
        return None


def remembered(find: Callable[Concatenate[N, Source, P], T]) -> Callable[Concatenate[N, Source, P], T]:
    """Keep what `find` returns for a node of a file as long as its source lives, and no longer: trees are large.

    All threads get the same object: callers must not change it. Other arguments must be few and small: they are kept.
    """

    @functools.wraps(find)
    def recall(node: N, source: Source, /, *more: P.args, **options: P.kwargs) -> T:
        known, key = source.findings, (find, node, *more, *options.items())
        if key not in known:
            known[key] = find(node, source, *more, **options)
        return cast("T", known[key])

    return recall


_parsed: dict[bytes, Source | None] = {}
_parsed_lock = threading.Lock()


def parse(data: bytes) -> Source | None:
    """Parse a file, with a cache of those used last. Return None if it cannot be parsed."""
    with _parsed_lock:
        if data in _parsed:
            _parsed[data] = source = _parsed.pop(data)  # used last
            return source
    source = None
    with contextlib.suppress(ValueError):
        source = Source(data)
    with _parsed_lock:
        source = _parsed.setdefault(data, source)  # another thread may have been first: all share one
        sizes = itertools.accumulate([max(LEAST_COUNTED, len(content)) for content in reversed(_parsed)])
        for content in [content for content, size in zip(reversed(_parsed), sizes, strict=True) if size > MOST_KEPT]:
            if content != data:
                del _parsed[content]
    return source


def _functions(body: Iterable[ast.stmt], names: tuple[str, ...]) -> dict[tuple[str, ...], Function]:
    found: dict[tuple[str, ...], Function] = {}
    for node in body:
        if isinstance(node, Function):
            found[(*names, node.name)] = node
        elif isinstance(node, ast.ClassDef):
            found |= _functions(node.body, (*names, node.name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                found |= _functions(getattr(node, part, ()), names)
    return found


def _asserts(function: Function) -> bool:
    """Whether a function asserts something itself, not only in a function within it."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and name_of(node).startswith("assert")):
            return True
        if not isinstance(node, Function):
            todo += ast.iter_child_nodes(node)
    return False


@remembered
def _is_pure(function: Function, source: Source) -> bool:
    """Whether a function uses only its parameters, its variables and builtins."""
    nodes = source.walk(function)
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    foreign = {node.id for node in names} - own - vars(builtins).keys()
    return not foreign and not [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def name_of(node: ast.expr) -> str:
    """Return the last name of `a.b.name` or `name`, also of a call; empty for other expressions."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
