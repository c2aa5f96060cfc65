"""Finds the ways to change an assertion so that right work must fail it."""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from random import Random
from typing import Literal, TypeAlias

from .finding import RAISING, find_types, may_leave, walk_reached
from .literals import any_number, changeable, draw_other_literal, draw_whole_other_text
from .source import Function, Source, TextEdit, name_of, remembered

Kind: TypeAlias = Literal[
    "literal", "pattern", "exception", "type", "comparison", "number", "helper", "negation", "local", "failure"
]
"""The kind of a change: see `docs/grading.md`."""

RANKS: dict[Kind, int] = {
    **{"literal": 0, "pattern": 1, "exception": 1, "type": 1, "comparison": 1},
    **{"number": 2, "negation": 3, "helper": 4, "local": 5, "failure": 6},
}
"""Kind -> rank; the lowest is preferred."""

WRITTEN = (ast.Name, ast.Call, ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.Dict)
"""Expressions that may be a value: a literal, a name, or a call that combines texts."""

VALUED: frozenset[Kind] = frozenset({"literal", "helper"})
"""The kinds that change a part of a value which a test expects."""

NATURAL: frozenset[Kind] = frozenset({"literal", "pattern", "exception", "type", "comparison", "helper"})
"""The kinds that read like a test that a person wrote."""

WARNING = frozenset({"warns", "deprecated_call", "assertWarns", "assertWarnsMessage", "assertWarnsRegex"})
EXCEPTIONS = ("BufferError", "ChildProcessError", "TabError", "StopAsyncIteration", "UnicodeTranslateError")
WARNINGS = ("BytesWarning", "ImportWarning", "UnicodeWarning")
TYPES = ("memoryview", "slice", "property", "classmethod", "staticmethod")
"""Types that right work does not choose, even if a test leaves it the choice, as by `Exception` or `Iterable`."""


EQUAL = re.compile(
    r"assert_?(equals?|almost_?equals?|count_?equal|list_?equal|dict_?equal|tuple_?equal|set_?equal|sequence_?equal|items_?equal"
    r"|multi_?line_?equal|html_?equal|xml_?equal|json_?equal|quer[yi]set_?equal|array_?equal|array_almost_equal|allclose"
    r"|approx_equal|series_equal|frame_equal|index_equal|extension_array_equal|identical|is|raw_?equal|redirects"
    r"|template_?used|num_?queries|signature|dictcontainssubset)|eq_",
    re.IGNORECASE,
)
"""Assertions that expect their last literal argument."""

PREDICATES = frozenset(
    {"isinstance", "issubclass", "allclose", "isclose", "array_equal", "hasattr", "equals", "startswith", "endswith"}
    | {"any", "all"}
)
"""Functions and methods that return true or false. Their result is not compared with a number."""

OPPOSITES = (
    *(("assertTrue", "assertFalse"), ("assertIn", "assertNotIn"), ("assertIs", "assertIsNot")),
    *(("assertIsNone", "assertIsNotNone"), ("assertIsInstance", "assertNotIsInstance")),
    *(("assertEqual", "assertNotEqual"), ("assertAlmostEqual", "assertNotAlmostEqual")),
    *(("assertRegex", "assertNotRegex"), ("assertGreater", "assertLessEqual"), ("assertLess", "assertGreaterEqual")),
    *(("assert_called_once", "assert_not_called"), ("assert_called", "assert_not_called")),
    *(("assertNotContains", "assertContains"), ("assertTemplateNotUsed", "assertTemplateUsed")),
)
OPPOSITE = {name: other for pair in OPPOSITES for name, other in (pair, pair[::-1])}
OPERATORS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.NotEq: (r"!=", "=="),
    ast.Lt: (r"<", ">="),
    ast.LtE: (r"<=", ">"),
    ast.Gt: (r">", "<="),
    ast.GtE: (r">=", "<"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
    ast.In: (r"\bin\b", "not in"),
}
"""Comparison -> pattern of its text, and its opposite."""

KNOWN = frozenset(
    {"assertTrue", "assertIn", "assertInHTML", "assertIsInstance", "assertRegex", "assertRegexpMatches"}
    | {"assertContains", "fnmatch_lines", "fnmatch_lines_random", "assert_outcomes"}
)
"""Further assertions that `_Finder._in_known` reads."""

CALLED = frozenset(
    {"assert_called_with", "assert_called_once_with", "assert_has_calls"}
    | {"assert_awaited_with", "assert_awaited_once_with", "assert_has_awaits"}
)
"""Assertions of mocks that expect all their arguments."""

TOLERANCES = frozenset(
    {"rel", "abs", "rel_tol", "abs_tol", "rtol", "atol", "delta", "places", "decimal", "significant"}
)
TOLERANT = re.compile(r"close|almost|approx", re.IGNORECASE)
"""Assertions whose third argument is a tolerance."""

Draw: TypeAlias = Callable[[Random], str]

THE_END = 0
"""Stands for the line after the last one of a function."""


@dataclass(frozen=True)
class Change:
    """One way to change a test.

    Attributes:
        kind: Kind of the change.
        start: Start of the replaced text.
        end: End of the replaced text.
        draw: Function that draws the new text.
        line: Line of the statement that fails then; `THE_END` if the change appends one.
    """

    kind: Kind
    start: int
    end: int
    draw: Draw
    line: int = THE_END

    def edit(self, rng: Random) -> TextEdit:
        """Draw the change."""
        return TextEdit(self.start, self.end, self.draw(rng))


@remembered
def changes(function: Function, source: Source) -> list[Change]:
    """Return all ways to change a test, best first: literals before the rest, late assertions before early ones."""
    finder = _Finder(function, source)
    found = [
        replace(change, line=statement.lineno)
        for statement in reversed(walk_reached(function, source))
        for change in finder.in_statement(statement)
    ]
    found += finder.at_the_end()
    ranked: dict[int, list[Change]] = {}
    for change in found:
        ranked.setdefault(RANKS[change.kind], []).append(change)
    return [*itertools.chain(*map(ranked.__getitem__, sorted(ranked)))]


def asserting(function: Function, source: Source) -> list[ast.stmt]:
    """Return the statements that can be changed, in order."""
    finder = _Finder(function, source)
    return [statement for statement in walk_reached(function, source) if any(finder.in_statement(statement))]


@remembered
def expected_value(function: Function, source: Source, statement: ast.stmt) -> ast.expr | None:
    """Return the whole value that an assertion expects, if the test alone decides it; None otherwise."""
    for change in _Finder(function, source).in_statement(statement):
        if change.kind not in VALUED:
            continue
        for node in source.walk(statement):  # outer ones come first
            if isinstance(node, WRITTEN):
                start, end = source.span(node)
                if start <= change.start and change.end <= end and _is_value(node, source):
                    return node
    return None


def _is_value(node: ast.expr, source: Source) -> bool:
    """Whether an expression is a number, a text or a container of them, or a name or call that stands for one."""
    if isinstance(node, ast.Name):
        return source.constant(node.id) is not None
    if isinstance(node, ast.Call):
        return bool(source.find_combined(node))
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return isinstance(value, int | float | str | bytes | list | tuple | dict) and not isinstance(value, bool)


class _Finder:
    """Finds the changes of one test."""

    def __init__(self, function: Function, source: Source) -> None:
        self._function = function
        self._source = source

    # --- statements -----------------------------------------------------------------------------------------

    def in_statement(self, statement: ast.stmt) -> list[Change]:
        match statement:
            case ast.Assert():
                return [*self._in_condition(statement.test), self._negation(statement.test)]
            case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
                return self._in_call(call)
            case ast.With() | ast.AsyncWith():
                calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
                return [*itertools.chain(*map(self._in_call, reversed(calls)))]
        return []

    def at_the_end(self) -> list[Change]:
        """The statements to append to a test without a changeable assertion."""
        body = self._function.body
        pad = self._source.before(body[0])
        kinds = find_types(self._function, self._source)
        if pad.strip() or ast.Yield in kinds:
            return []  # `def test(): pass` on one line, or a generator
        leaves = ast.Return in kinds or ast.Raise in kinds
        ends = [one for one in body if isinstance(one, ast.Raise) or may_leave(one)] if leaves else []
        leaving = ends[0] if ends else None
        sure = body[: body.index(leaving)] if leaving else body
        place = self._source.span(leaving)[0] if leaving else self._source.span(body[-1])[1]
        names = [
            name.id
            for statement in sure
            if isinstance(statement, ast.Assign)
            for name in statement.targets
            if isinstance(name, ast.Name)
        ]

        before, after = ("", f"\n{pad}") if leaving else (f"\n{pad}", "")

        def appended(left: str) -> Draw:
            return lambda rng: f"{before}assert {left} == {any_number(rng)}{after}"

        failing = Change("failure", place, place, lambda rng: f"{before}{self._failing(rng)}{after}")
        return [*([Change("local", place, place, appended(names[-1]))] if names else []), failing]

    def _failing(self, rng: Random) -> str:
        """A statement that fails whatever the product does."""
        word = rng.choice(self._source.words)
        return rng.choice(
            (
                f"assert len(__name__) == {any_number(rng)}",
                f'assert __name__ == "{word} {rng.choice(self._source.words)}"',
                f'assert "{word}" == "{word}{rng.randint(2, 9)}"',
                f"assert len({word!r}) > {any_number(rng)}",
            )
        )

    # --- conditions -----------------------------------------------------------------------------------------

    def _in_condition(self, test: ast.expr) -> list[Change]:
        match test:
            case ast.Compare():
                return self._in_comparison(test)
            case ast.BoolOp(op=ast.And()):
                return [*itertools.chain(*map(self._in_condition, reversed(test.values)))]
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self._source.span(test)
                return [Change("comparison", start, self._source.span(test.operand)[0], self._without_not(test))]
            case ast.Call() if name_of(test) in PREDICATES:
                return self._in_predicate(test)
            case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() | ast.Await():
                _, end = self._source.span(test)
                return [Change("number", end, end, lambda rng: f" == {any_number(rng)}")]
        return []

    def _in_predicate(self, call: ast.Call) -> list[Change]:
        match name_of(call), call.args:
            case "isinstance" | "issubclass", [_, kinds]:
                return [self._replace_type(kinds)]
            case "hasattr", [_, expected]:
                return self._patterns(expected)
            case "allclose" | "isclose" | "array_equal", [_, expected, *_] if _sets_tolerance(call):
                return [self._number(expected)]
            case "allclose" | "isclose" | "array_equal", [_, expected, *_]:
                return self._expectation(expected)
            case "equals" | "startswith" | "endswith", [ast.Constant() as expected]:
                return self._expectation(expected)
            case "equals" | "startswith" | "endswith", [expected]:
                return [self._number(expected)]  # one of `("a", "b")` is enough: a change of the other proves nothing
        return []

    def _in_comparison(self, test: ast.Compare) -> list[Change]:
        left, operator, right = [test.left, *test.comparators][-2], test.ops[-1], test.comparators[-1]
        single = len(test.ops) == 1
        found: list[Change] = []
        match operator:
            case ast.Eq():
                plain = single and _has_no_call(left)
                found += self._literals(right, *([left] if plain else []))
                found.append(self._number(left if plain and isinstance(right, ast.Call) else right))
            case ast.Is() if isinstance(right, ast.Constant) and isinstance(right.value, bool):
                found += self._literals(right)
            case ast.In() if single:
                found += self._draw_absent(left)
        if type(operator) in OPERATORS:
            found.append(self._opposite(left, operator, right))
        return found

    def _opposite(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Change:
        """The opposite comparison: only the operator changes."""
        pattern, other = OPERATORS[type(operator)]
        start, end = self._source.span(left)[1], self._source.span(right)[0]

        def draw(_: Random) -> str:
            gap = re.sub(r"#[^\r\n]*", "", self._source.text(start, end))
            return re.sub(pattern, other, gap, count=1)

        return Change("comparison", start, end, draw)

    def _without_not(self, test: ast.UnaryOp) -> Draw:
        start, end = self._source.span(test)[0], self._source.span(test.operand)[0]
        gap = self._source.text(start, end).removeprefix("not")
        return lambda _: gap.lstrip(" ")

    def _negation(self, test: ast.expr) -> Change:
        return self._replace("negation", test, lambda _: f"not ({self._source.text_of(test)})")

    # --- calls ----------------------------------------------------------------------------------------------

    def _in_call(self, call: ast.Call) -> list[Change]:
        name = name_of(call)
        if ast.Starred in map(type, call.args):
            return []
        if name in RAISING | WARNING:
            found = self._in_raises(call)
        elif name in KNOWN:
            found = self._in_known(name, call)
        elif EQUAL.fullmatch(name):
            found = self._in_equality(call)
        elif name in CALLED:
            found = self._change_helped(call.args)
        elif name in ("assert_any_call", "assert_any_await"):
            found = [*map(self._number, call.args[-1:])]
        elif name in self._source.named:
            found = self._change_helped(self._find_expected_by_helper(call, name))
        else:
            found = []
        return [*found, self._rename(call, name)] if name in OPPOSITE else found

    def _change_helped(self, expected: Sequence[ast.expr]) -> list[Change]:
        return [replace(change, kind="helper") for change in self._literals(*reversed(expected))]

    def _find_expected_by_helper(self, call: ast.Call, name: str) -> list[ast.expr]:
        """The arguments that a helper of this file only expects. The others may be inputs."""
        found = [self._find_expected_by(helper, call) for helper in self._source.named[name]]
        return found[0] if all([other == found[0] for other in found]) else []

    def _find_expected_by(self, helper: Function, call: ast.Call) -> list[ast.expr]:
        parameters = _find_expected(helper, self._source)
        if isinstance(call.func, ast.Attribute) and parameters[:1] == [("self", False)]:
            parameters = parameters[1:]
        return list(itertools.compress(call.args, map(itemgetter(1), parameters)))

    def _in_known(self, name: str, call: ast.Call) -> list[Change]:
        match name, call.args:
            case "assertTrue", [condition, *_]:
                return self._in_condition(condition)
            case "assertIn" | "assertInHTML", [member, *_]:
                return self._draw_absent(member)
            case "assertIsInstance", [_, kinds, *_]:
                return [self._replace_type(kinds)]
            case "assertRegex" | "assertRegexpMatches" | "assertContains", [_, pattern, *_]:
                return self._patterns(pattern)
            case "fnmatch_lines" | "fnmatch_lines_random", [ast.List(elts=[*_, line])]:
                return self._patterns(line)
            case "assert_outcomes", _:
                return self._literals(*(keyword.value for keyword in call.keywords))
        return []

    def _in_equality(self, call: ast.Call) -> list[Change]:
        if len(call.args) < 2:  # `assertNumQueries(2)`, `assertTemplateUsed("a.html")`
            return [*itertools.chain(*map(self._expectation, call.args))]
        first, second = call.args[:2]
        sides = (first, second) if name_of(call) == "assertNumQueries" else (second, first)
        literals = [] if _sets_tolerance(call) else self._literals(*sides)
        return [*literals, self._number(first if isinstance(second, ast.Call) and _has_no_call(first) else second)]

    def _rename(self, call: ast.Call, name: str) -> Change:
        """The opposite assertion: only its name changes."""
        _, end = self._source.span(call.func)
        return Change("comparison", end - len(name), end, lambda _: OPPOSITE[name])

    def _in_raises(self, call: ast.Call) -> list[Change]:
        name = name_of(call)
        matches = [keyword.value for keyword in call.keywords if keyword.arg in ("match", "expected_regex")]
        if re.search("Message|Reg|regex", name):
            matches += call.args[1:2]
        found = self._patterns(*matches)
        if call.args and name != "deprecated_call":
            expected = self._source.text_of(call.args[0])
            others = [other for other in (WARNINGS if name in WARNING else EXCEPTIONS) if other not in expected]
            found.append(self._replace("exception", call.args[0], lambda rng: rng.choice(others)))
        return found

    # --- expectations -----------------------------------------------------------------------------------------

    def _expectation(self, expected: ast.expr) -> list[Change]:
        return [*self._literals(expected), self._number(expected)]

    def _literals(self, *sides: ast.expr) -> list[Change]:
        """The literal of the first side that has one, directly or by a name."""
        for side in sides:
            literal = changeable(side) or self._find_assigned(side) or self._find_combined(side)
            if literal is not None:
                return [self._replace("literal", literal, self._draw_other(literal))]
            value = self._source.constant(side.id) if isinstance(side, ast.Name) else None
            if value is not None:
                return [self._replace("literal", side, self._inline(value))]
        return []

    def _draw_other(self, literal: ast.expr) -> Draw:
        return lambda rng: draw_other_literal(literal, self._source.text_of(literal), self._source.words, rng)

    def _inline(self, value: ast.expr) -> Draw:
        """Write another value in place of the name of a constant."""
        part = self._source.parts(value)[0]
        draw_part = self._draw_other(part)
        return lambda rng: self._source.inlined(value, [TextEdit(*self._source.span(part), draw_part(rng))])

    def _find_assigned(self, side: ast.expr) -> ast.expr | None:
        """The literal that is assigned to a local name, if only this assertion uses the name."""
        if not isinstance(side, ast.Name):
            return None
        uses = [node for node in self._source.walk(self._function) if isinstance(node, ast.Name) and node.id == side.id]
        values = [
            statement.value
            for statement in self._function.body
            if isinstance(statement, ast.Assign) and any(target in uses for target in statement.targets)
        ]
        return changeable(values[0]) if len(uses) == 2 and len(values) == 1 else None

    def _find_combined(self, side: ast.expr) -> ast.expr | None:
        """A string of which a function of the test file makes the expected value, if possible one with a word."""
        if not isinstance(side, ast.Call):
            return None
        texts = self._source.find_combined(side)
        words = [text for text in texts if re.search(r"\b[a-z]{4}", str(text.value))]
        return next(iter(words or texts), None)

    def _draw_absent(self, member: ast.expr) -> list[Change]:
        """A value that no right result contains."""
        match member:
            case ast.Constant(value=str() | bytes()):
                return self._patterns(member)
            case ast.Constant():
                return [self._replace("literal", member, any_number)]
        return [self._number(member)]

    def _patterns(self, *patterns: ast.expr) -> list[Change]:
        return [self._replace("pattern", pattern, self._draw_whole_other(pattern)) for pattern in patterns]

    def _draw_whole_other(self, pattern: ast.expr) -> Draw:
        return lambda rng: draw_whole_other_text(self._source.text_of(pattern), self._source.words, rng)

    def _replace_type(self, expected: ast.expr) -> Change:
        text = self._source.text_of(expected)
        others = [other for other in TYPES if other not in text]
        return self._replace("type", expected, lambda rng: rng.choice(others))

    def _number(self, expected: ast.expr) -> Change:
        return self._replace("number", expected, any_number)

    def _replace(self, kind: Kind, node: ast.expr, draw: Draw) -> Change:
        return Change(kind, *self._source.span(node), draw)


@remembered
def _find_expected(helper: Function, source: Source) -> list[tuple[str, bool]]:
    """The parameters of a function, and whether each is only a side of an equation that it asserts."""
    used = Counter([node.id for node in source.walk(helper) if isinstance(node, ast.Name)])
    compared = Counter(name for statement in walk_reached(helper, source) for name in _find_compared(statement))
    sides: list[ast.expr] = []
    for statement in walk_reached(helper, source):
        match statement:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
                sides += left, right
            case ast.Expr(value=ast.Call(args=[left, right, *_]) as call) if EQUAL.fullmatch(name_of(call)):
                sides += left, right
    expected = {side.id for side in sides if isinstance(side, ast.Name) and used[side.id] == compared[side.id]}
    return [(one.arg, one.arg in expected) for one in (*helper.args.posonlyargs, *helper.args.args)]


def _find_compared(statement: ast.stmt) -> Iterator[str]:
    """The names that an assertion compares, or their types, or that are its message."""
    parts: list[ast.expr] = []
    match statement:
        case ast.Assert(test=ast.Compare() as test):
            parts = [test.left, *test.comparators]
        case ast.Expr(value=ast.Call() as call) if name_of(call).startswith("assert"):
            parts = list(call.args)
    for part in parts:
        inner = part.args[0] if isinstance(part, ast.Call) and name_of(part) == "type" and part.args else part
        if isinstance(inner, ast.Name):
            yield inner.id


def _sets_tolerance(call: ast.Call) -> bool:
    """Whether an assertion sets a tolerance, which may accept the change of another right result."""
    if not TOLERANCES.isdisjoint(map(attrgetter("arg"), call.keywords)):
        return True
    return len(call.args) > 2 and bool(TOLERANT.search(name_of(call)))


def _has_no_call(node: ast.expr) -> bool:
    """Whether an expression contains no call."""
    return {ast.Call, ast.Await}.isdisjoint(map(type, ast.walk(node)))
