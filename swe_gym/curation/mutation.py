"""Bugs for new tasks: small changes of a function, and behaviour that is taken out of it.

A mutation replaces only the characters of the nodes that it changes, so comments and layout stay as they are.
"""

import ast
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..grading.counter import Source, TextEdit
from ..syntax import parse

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

TWO_SITES = 0.15
"""Share of the mutations of operators that get a second one in the same function."""

SELDOM_FOUND = ("keyword", "default", "missing-parameter")
"""Kinds of mutation that tests rarely find."""

LARGEST_NUMBER = 1000
"""Numbers beyond it are not changed: they are seldom limits or offsets."""

_OTHER: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "//",
    ast.FloorDiv: "/",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.And: "or",
    ast.Or: "and",
}
"""Operator -> the operator that replaces it."""

_OPERATOR = re.compile(r"not\s+in|is\s+not|[<>=!]=|<<|>>|//|[-+*/<>&|]|\b(?:in|is|and|or)\b")


class Mutation(NamedTuple):
    """A bug.

    Attributes:
        path: File, relative to the project.
        names: Function, within its classes.
        kind: What is changed; see `KINDS`.
        edits: The changes.
        lines: Lines of the statements that change or, if none does, where the function begins. One must run.
    """

    path: str
    names: tuple[str, ...]
    kind: str
    edits: tuple[TextEdit, ...]
    lines: frozenset[int] = frozenset()


class Site(NamedTuple):
    """A function in which bugs are looked for."""

    source: Source
    function: Function

    @property
    def nodes(self) -> list[ast.AST]:
        """What the function holds, without what other functions and classes in it hold."""
        found, todo = [], list[ast.AST](self.function.body)
        while todo:
            node = todo.pop(0)
            found.append(node)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                todo += ast.iter_child_nodes(node)
        return found

    def replace(self, node: ast.expr | ast.stmt, text: str) -> TextEdit:
        """Return the edit that replaces a node."""
        return TextEdit(*self.source.span(node), text)

    def swap(self, before: ast.expr, after: ast.expr, operator: ast.AST) -> Iterator[TextEdit]:
        """Yield the edit that replaces the operator between two operands."""
        other = _OTHER.get(type(operator))
        start, end = self.source.span(before)[1], self.source.span(after)[0]
        between = self.source.text(start, end)
        found = _OPERATOR.search(between)
        if other and found and "#" not in between:
            yield TextEdit(start + found.start(), start + found.end(), other)

    def remove(self, statement: ast.stmt, block: Sequence[ast.stmt]) -> Iterator[TextEdit]:
        """Yield the edit that removes a statement with its lines, if others of its block remain."""
        source = self.source
        alone = not source.before(statement).strip() and not source.after(statement).strip()
        if alone and len(block) > 1:
            start, end = source.span(statement)
            yield TextEdit(start - len(source.before(statement).encode()), end + len(source.after(statement)), "")


# --- wrong operators, conditions, values, statements --------------------------------------------------------------


def _comparison(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from site.swap(node.left, node.comparators[0], node.ops[0])


def _arithmetic(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
            yield from site.swap(node.left, node.right, node.op)


def _connective(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            yield from site.swap(node.values[0], node.values[1], node.op)


def _condition(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            test = node.test
            text = site.source.text_of(test)
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                yield site.replace(test, site.source.text_of(test.operand))
            elif isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield site.replace(test, f"not {text}")


def _number(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool) and number <= LARGEST_NUMBER:
                if site.source.text_of(node) == str(number):
                    yield from (site.replace(node, str(other)) for other in (number + 1, number - 1) if other >= 0)


def _truth(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield site.replace(node, str(not node.value))


def _bound(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Slice):
            for end in filter(None, (node.lower, node.upper)):
                if not isinstance(end, ast.Constant):
                    yield site.replace(end, f"{site.source.text_of(end)} + 1")


def _result(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp):
            yield site.replace(node.value, site.source.text_of(node.value.body))
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.BoolOp):
            yield site.replace(node.value, site.source.text_of(node.value.values[0]))


def _jump(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Break | ast.Continue):
            yield site.replace(node, "continue" if isinstance(node, ast.Break) else "break")


def _effect(site: Site) -> Iterator[TextEdit]:
    """A statement that changes something is missing."""
    for block in _blocks(site):
        for statement in block:
            stored = isinstance(statement, ast.Assign | ast.AugAssign) and _stores(statement)
            called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
            if stored or called:
                yield from site.remove(statement, block)


def _stores(statement: ast.Assign | ast.AugAssign) -> bool:
    """Whether a statement changes an object or a variable that has a value already."""
    if isinstance(statement, ast.AugAssign):
        return True
    return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)


def _arguments(site: Site) -> Iterator[tuple[TextEdit, ...]]:
    """Two arguments of a call are swapped."""
    for node in site.nodes:
        if isinstance(node, ast.Call) and not any(isinstance(one, ast.Starred) for one in node.args):
            for first, second in zip(node.args, node.args[1:], strict=False):
                texts = [site.source.text_of(one) for one in (first, second)]
                if texts[0] != texts[1] and not any(isinstance(one, ast.GeneratorExp) for one in node.args):
                    yield site.replace(first, texts[1]), site.replace(second, texts[0])


def _keyword(site: Site) -> Iterator[TextEdit]:
    """A keyword argument of a call is missing."""
    for node in site.nodes:
        if isinstance(node, ast.Call) and (node.args or len(node.keywords) > 1):
            for number, keyword in enumerate(node.keywords):
                before = [*node.args, *(one.value for one in node.keywords[:number])]
                if keyword.arg and before and not _is_message(keyword.value):
                    start = max(site.source.span(one)[1] for one in before)
                    end = site.source.span(keyword.value)[1]
                    if start < end and "#" not in site.source.text(start, end):
                        yield TextEdit(start, end, "")


def _lost_await(site: Site) -> Iterator[TextEdit]:
    for node in site.nodes:
        if isinstance(node, ast.Await):
            yield site.replace(node, site.source.text_of(node.value))


def _default(site: Site) -> Iterator[TextEdit]:
    """A parameter has a wrong default."""
    arguments = site.function.args
    for value in filter(None, (*arguments.defaults, *arguments.kw_defaults)):
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield site.replace(value, str(not value.value))
        elif isinstance(value, ast.Constant) and type(value.value) is int:
            yield site.replace(value, str(value.value + 1))
        elif isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
            yield site.replace(value, "''")


# --- behaviour that is missing -----------------------------------------------------------------------------------


def _branch(site: Site) -> Iterator[TextEdit]:
    """A case is not treated: an `if` without `else`, or one `elif`."""
    for block in _blocks(site):
        for statement in block:
            if isinstance(statement, ast.If) and not statement.orelse:
                yield from site.remove(statement, block)
            if isinstance(statement, ast.If) and [type(one) for one in statement.orelse] == [ast.If]:
                other = statement.orelse[0]
                assert isinstance(other, ast.If)
                start, end = site.source.span(other)
                if site.source.text(start, start + 4) == "elif" and not other.orelse:
                    yield TextEdit(site.source.span(statement.body[-1])[1], end, "")


def _body(site: Site) -> Iterator[TextEdit]:
    """A function does nothing yet."""
    body = site.function.body
    rest = body[1:] if ast.get_docstring(site.function) is not None else body
    if len(rest) > 1 and not site.source.before(rest[0]).strip() and site.function.name[:2] != "__":
        yield TextEdit(site.source.span(rest[0])[0], site.source.span(rest[-1])[1], "raise NotImplementedError")


def _parameter(site: Site) -> Iterator[tuple[TextEdit, ...]]:
    """A parameter is ignored: its default counts wherever it is read."""
    arguments = site.function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    with_default = [*zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    with_default += [
        (one, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    ]
    for argument, value in with_default:
        named = [node for node in site.nodes if isinstance(node, ast.Name) and node.id == argument.arg]
        if isinstance(value, ast.Constant) and named and all(isinstance(node.ctx, ast.Load) for node in named):
            yield tuple(site.replace(node, site.source.text_of(value)) for node in named)


def _blocks(site: Site) -> Iterator[list[ast.stmt]]:
    yield site.function.body
    for node in site.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.IfExp):
            yield from (block for name in ("body", "orelse", "finalbody") if (block := getattr(node, name, None)))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_message(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


Maker: TypeAlias = Callable[[Site], Iterator[TextEdit] | Iterator[tuple[TextEdit, ...]]]

KINDS: dict[str, Maker] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "connective": _connective,
    "condition": _condition,
    "number": _number,
    "truth": _truth,
    "bound": _bound,
    "result": _result,
    "jump": _jump,
    "effect": _effect,
    "arguments": _arguments,
    "keyword": _keyword,
    "await": _lost_await,
    "default": _default,
    "missing-branch": _branch,
    "missing-function": _body,
    "missing-parameter": _parameter,
}
"""Kind of mutation -> the function that finds its places. Those that begin with "missing" take behaviour out."""


def find_mutations(
    files: Mapping[str, bytes], only: Callable[[str, Function], bool] = lambda *_: True
) -> list[Mutation]:
    """Return all mutations of the functions of some files, in the order of the files.

    Args:
        files: Path -> content. Files that are not Python 3 have none.
        only: Tells whether a function of a file counts.
    """
    found: list[Mutation] = []
    for path in sorted(files):
        try:
            source = Source(files[path])
        except ValueError:
            continue
        for names, function in source.functions.items():
            if only(path, function):
                found += _mutations_of(path, names, Site(source, function))
    return found


def _mutations_of(path: str, names: tuple[str, ...], site: Site) -> Iterator[Mutation]:
    for kind, make in KINDS.items():
        for made in make(site):
            edits = (made,) if isinstance(made, TextEdit) else made
            if _changes(site, edits):
                lines = frozenset(_changed_lines(site, kind, edits)) or first_lines(site.function)
                yield Mutation(path, names, kind, edits, lines)


def first_lines(function: Function) -> frozenset[int]:
    """Return the lines where a function may begin: that of its first decorator, and its own."""
    return frozenset({min(node.lineno for node in (function, *function.decorator_list)), function.lineno})


def _changed_lines(site: Site, kind: str, edits: Sequence[TextEdit]) -> Iterator[int]:
    """Yield the lines of the statements that edits change: of a branch that is missing, those within it."""
    heads = sorted((*_head(site, node), node.lineno) for node in site.nodes if isinstance(node, ast.stmt))
    changed = [head for head in heads if any(edit.start < head[1] and head[0] < edit.end for edit in edits)]
    for start, end, first in changed[kind == "missing-branch" :]:
        yield from range(first, first + site.source.text(start, end).count("\n") + 1)


def _head(site: Site, node: ast.stmt) -> tuple[int, int]:
    """Return the start and end of a statement without the blocks that it holds."""
    start, end = site.source.span(node)
    inner: list[ast.stmt] = getattr(node, "body", [])
    if isinstance(node, ast.Match):
        inner = node.cases[0].body
    if not inner:
        return start, end
    text = site.source.text(start, site.source.span(inner[0])[0])
    return start, start + len(text.rstrip().encode())


def _changes(site: Site, edits: Sequence[TextEdit]) -> bool:
    """Whether the function is still Python after the edits, and another one."""
    start, end = site.source.span(site.function)
    pad = site.source.before(site.function)
    if pad.strip():
        return False
    text = f"if 1:\n{pad or ' '}" if pad else ""
    try:
        after = parse(text + site.source.cut(start, end, edits))
    except SyntaxError:
        return False
    return ast.dump(after) != ast.dump(parse(text + site.source.text(start, end)))


def draw_mutations(found: Iterable[Mutation], seed: int, *, seldom: Collection[str] = ()) -> Iterator[Mutation]:
    """Yield mutations in random order, the kinds in turn. Some have two changes of one function.

    Args:
        found: Mutations to choose from, in a fixed order.
        seed: Equal seeds draw the same.
        seldom: Kinds that every other turn leaves out, while there are others.
    """
    rng = random.Random(seed)
    kinds: dict[str, list[Mutation]] = defaultdict(list)
    functions: dict[tuple[str, tuple[str, ...]], list[Mutation]] = defaultdict(list)
    for mutation in found:
        kinds[mutation.kind].append(mutation)
        functions[mutation.path, mutation.names].append(mutation)
    for mutations in kinds.values():
        rng.shuffle(mutations)
    for turn in itertools.count():
        if not kinds:
            return
        for kind in [*kinds]:
            if turn % 2 and kind in seldom and kinds.keys() - {*seldom}:
                continue
            mutation = kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]
            again = not kind.startswith("missing") and rng.random() < TWO_SITES
            yield _join(mutation, functions[mutation.path, mutation.names], rng) if again else mutation


def _join(mutation: Mutation, others: Sequence[Mutation], rng: random.Random) -> Mutation:
    """Return a mutation with the changes of another one of the same function, if one fits."""
    first, last = min(edit.start for edit in mutation.edits), max(edit.end for edit in mutation.edits)
    apart = [
        other
        for other in others
        if not other.kind.startswith("missing") and all(edit.end < first or edit.start > last for edit in other.edits)
    ]
    if not apart:
        return mutation
    other = rng.choice(apart)
    kind, lines = f"{mutation.kind}+{other.kind}", mutation.lines | other.lines
    return mutation._replace(kind=kind, edits=(*mutation.edits, *other.edits), lines=lines)


def spread_mutations(mutations: Iterable[Mutation]) -> Iterator[Mutation]:
    """Yield mutations in rounds, in each of them one of every function. Within a round, the order stays."""
    left = [*mutations]
    while left:
        seen, later = set[tuple[str, tuple[str, ...]]](), []
        for mutation in left:
            place = mutation.path, mutation.names
            if place in seen:
                later.append(mutation)
            else:
                seen.add(place)
                yield mutation
        left = later


def mutate(data: bytes, mutation: Mutation) -> bytes:
    """Return the content of a file with a bug.

    Raises:
        ValueError: It is not Python any more.
    """
    changed = Source(data).apply_edits(mutation.edits)
    Source(changed)
    return changed
