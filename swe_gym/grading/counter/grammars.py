"""Counter-tests in other languages: finds and changes tests of JavaScript, TypeScript and Go by their grammars.

No fork of a test process of these languages can play a text: fresh sandboxes do. A language is one line of `LANGUAGES`.
"""

import importlib
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

from .changes import Kind
from .source import LARGEST_PARSED, TextEdit

Node: TypeAlias = Any
"""A node of tree-sitter, which is optional."""

Spots: TypeAlias = "tuple[Spot, ...]"

NO_PARSER = "its language needs a parser: pip install 'swe-gym[languages]'"
RANKS: Mapping[Kind, int] = {"literal": 0, "comparison": 1, "failure": 2}


class Spot(NamedTuple):
    """A place of a test that can change so that right work must fail the test.

    Attributes:
        kind: Kind of the change, as in Python.
        edit: The change. Of a literal, `text` is the old text.
    """

    kind: Literal["literal", "comparison", "failure"]
    edit: TextEdit


class SubTest(NamedTuple):
    """A sub-test of a Go function: a row of its table, or the function that `Run` gets.

    Attributes:
        name: Name; empty if it is computed.
        spots: What can change in it.
        sure: Whether it runs whenever its function passes.
    """

    name: str
    spots: Spots
    sure: bool = True


@dataclass(frozen=True)
class WrittenTest:
    """A test as a grammar finds it.

    Attributes:
        names: Names of its suites and its own.
        start: Where its body starts, in bytes; -1 if it is a single expression.
        spots: What can change in its own statements.
        parts: Its sub-tests.
    """

    names: tuple[str, ...]
    start: int
    spots: Spots
    parts: tuple[SubTest, ...] = ()

    def all_spots(self) -> Spots:
        """Return what can change of what is sure to run, its own statements first."""
        return (*self.spots, *(spot for part in self.parts if part.sure for spot in part.spots))


@dataclass(frozen=True)
class ForeignTests:
    """A parsed test file of another language.

    Attributes:
        data: Its content.
        tests: Its tests.
        fits: Returns how well an id fits a test; 0 if it does not.
        words: The words of the file.
    """

    data: bytes
    tests: tuple[WrittenTest, ...]
    fits: Callable[[str, WrittenTest], int]
    words: tuple[str, ...] = field(repr=False, default=())

    def apply_edits(self, edits: Iterable[TextEdit]) -> bytes:
        """Return the content after edits that do not overlap."""
        pieces, at = [], 0
        for edit in sorted(edits):
            pieces += [self.data[at : edit.start], edit.text.encode()]
            at = edit.end
        return b"".join((*pieces, self.data[at:]))

    def find(self, test: str) -> tuple[int, WrittenTest | None]:
        """Return the test that an id fits best, and how well; 0 and None if it fits none."""
        said = _normalise(test).split()
        ends = {*said, *(" ".join(said[number:]) for number in range(len(said)))}
        places = sorted(place for end in ("", *ends) for place in self._titled.get(end, ()))
        scores = [self.fits(test, self.tests[place]) for place in places]
        best = max(scores, default=0)
        return best, self.tests[places[scores.index(best)]] if best else None

    @cached_property
    def _titled(self) -> Mapping[str, Sequence[int]]:
        """Last name of a test, empty if a part of it is computed -> numbers of the tests."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, test in enumerate(self.tests):
            name = test.names[-1]
            found["" if PLACEHOLDER.search(name) else _normalise(name)].append(number)
        return found

    def draw(
        self, test: WrittenTest, ids: Collection[str], unfit: Collection[str], rng: Random
    ) -> tuple[list[TextEdit], set[str], set[str]]:
        """Draw one changed text.

        Args:
            test: The test.
            ids: Ids of required tests that run it.
            unfit: Kinds of changes that right work survives.
            rng: Random number generator.

        Returns:
            The edits, their kinds, and the ids that fail by them.
        """
        chosen: set[Spot] = set()
        failing: set[str] = set()
        for one in sorted(ids, key=_sub_test, reverse=True):  # sub-tests first: their function fails with them
            found = list(_select(test, _sub_test(one), unfit, rng)) if _sub_test(one) or not chosen else [*chosen]
            chosen.update(found)
            failing |= {one} if found else set()
        edits = [_draw_edit(spot, self.words, rng) for spot in sorted(chosen)]
        return edits, {spot.kind for spot in chosen}, failing


def _sub_test(test: str) -> str:
    """The last name of a Go sub-test, "TestX/some_case"; empty for other ids."""
    found = re.fullmatch(r"(?:.*[./: ])?(?:Test|Fuzz)\w*/(?:.*/)?([^/]+)", test)
    return found[1] if found else ""


def _select(test: WrittenTest, part: str, unfit: Collection[str], rng: Random) -> Iterator[Spot]:
    """Choose what changes for a sub-test, or for the whole test: in each part that may be the sub-test's, one spot."""
    named = [one.spots for one in test.parts if one.name == part and part]
    computed = [one.spots for one in test.parts if not one.name]
    for spots in (named[:1] or computed) if part else [test.all_spots()]:
        fit = [spot for spot in spots if spot.kind not in unfit]
        best = min((RANKS[spot.kind] for spot in fit), default=0)
        fit = [spot for spot in fit if RANKS[spot.kind] == best]
        if fit:
            yield rng.choice(fit)


# --- other literals ---------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"\\(?:u\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|[A-Za-z]+|[0-9]+|.", re.DOTALL)
NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9]+)?n?")
DRAWS = 100
"""Words that are drawn before one of another length is taken."""

SWITCHED = {"true": "false", "false": "true"}


def _draw_edit(spot: Spot, words: Sequence[str], rng: Random) -> TextEdit:
    start, end, text = spot.edit
    return TextEdit(start, end, draw_literal(text, words, rng)) if spot.kind == "literal" else spot.edit


def draw_literal(text: str, words: Sequence[str], rng: Random) -> str:
    """Return another literal of the same form: another last digit, or a text with another word of the file."""
    if NUMBER.fullmatch(text):
        place = max(number for number, character in enumerate(text) if character.isdigit())
        return text[:place] + rng.choice("123456789".replace(text[place], "")) + text[place + 1 :]
    tokens = TOKEN.findall(text[1:-1])
    places = [place for place, token in enumerate(tokens) if token.isascii() and token.isalnum()]
    place = rng.choice(places) if places else len(tokens)
    old = tokens[place] if places else ""
    if old.isdigit():
        new = draw_literal(old, words, rng)
    else:
        like = str.upper if old.isupper() and len(old) > 1 else str.title if old.istitle() else str.lower
        others = [word for word in rng.choices(words or (old,), k=DRAWS) if word.lower() != old.lower()]
        near = [word for word in others if abs(len(word) - len(old)) < 3]
        new = like((near or others or [f"{old}s"])[0])
    return f"{text[0]}{''.join((*tokens[:place], new, *tokens[place + 1 :]))}{text[-1]}"


def _text(node: Node) -> str:
    return str(node.text.decode())


def _spot(kind: Literal["literal", "comparison", "failure"], node: Node, text: str = "") -> Spot:
    return Spot(kind, TextEdit(node.start_byte, node.end_byte, text or _text(node)))


LEAVES = re.compile(rb"\b(?:return|goto|[sS]kip\w*)\b")
"""Words of a statement that may skip those after it."""


def _failure(body: Node, statement: str) -> Spot:
    """A statement that fails: the last one of a body, or the first one if the body may skip it."""
    place = body.start_byte + 1 if LEAVES.search(body.text) else body.end_byte - 1
    return Spot("failure", TextEdit(place, place, f"\n{statement}\n"))


def _walk(node: Node, into: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield a node and all below it, in order, without what is below nodes that `into` refuses."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if into(node):
            todo += reversed(node.named_children)


# --- JavaScript and TypeScript ----------------------------------------------------------------------------------------

FUNCTIONS = ("arrow_function", "function_expression", "function")
JS_TESTS, JS_SUITES = frozenset({"it", "test", "specify"}), frozenset({"describe", "context", "suite"})
JS_EXPECTS = frozenset(
    {"toBe", "toEqual", "toStrictEqual", "toHaveLength", "toMatch", "toContain", "toContainEqual", "toThrow"}
    | {"toThrowError", "toMatchObject", "toHaveBeenCalledWith", "toHaveBeenLastCalledWith", "toHaveBeenCalledTimes"}
    | {"toMatchInlineSnapshot", "equal", "equals", "eq", "eql", "lengthOf", "include", "contain"}
)
JS_OPPOSITES = {
    **{"equal": "notEqual", "strictEqual": "notStrictEqual", "deepEqual": "notDeepEqual"},
    "deepStrictEqual": "notDeepStrictEqual",
}
"""Assertions whose second argument is expected, and their opposites."""

SEARCHING = frozenset(
    {"toMatch", "toContain", "toContainEqual", "toThrow", "toThrowError", "toHaveBeenCalledWith", "include", "contain"}
)
"""Assertions that other words of right work may satisfy too: only the comparison is turned."""

JS_EXPECT = ("expect(", "chai.expect(")
JS_STATEMENTS = ("expression_statement", "lexical_declaration", "variable_declaration", "return_statement", "comment")
COMPUTED = "${}"
"""Stands for a title that is not written out."""

PLACEHOLDER = re.compile(r"%[\w#%]|\$\{[^}]*\}|\$[\w.]+")


def find_in_javascript(root: Node) -> Iterator[WrittenTest]:
    """Yield the calls of `it` and `test`, however deep."""
    todo: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while todo:
        node, names = todo.pop()
        title, function, is_test = _read_test_call(node)
        if function is not None:
            names = (*names, title)
            if is_test:
                body = function.child_by_field_name("body")
                is_block = body.type == "statement_block"
                yield WrittenTest(
                    names, body.start_byte + 1 if is_block else -1, _find_in_body(body, is_block=is_block)
                )
        todo += [(child, names) for child in reversed(node.named_children)]


def _read_test_call(node: Node) -> tuple[str, Node | None, bool]:
    """The title and function of a call that makes a test or a suite, and whether it is a test."""
    arguments = node.child_by_field_name("arguments") if node.type == "call_expression" else None
    given = arguments.named_children if arguments is not None else []
    functions = [one for one in given if one.type in FUNCTIONS]
    if len(given) < 2 or not functions or given[0].type in FUNCTIONS:
        return "", None, False
    called = set(re.findall(r"\w+", _text(node.child_by_field_name("function"))[:80]))
    kind = called & (JS_TESTS | JS_SUITES) if "skip" not in called else set()
    parts = [part for part in _walk(given[0], _is_sum) if not _is_sum(part)]
    title = "".join(_text(part)[1:-1] if part.type in ("string", "template_string") else COMPUTED for part in parts)
    return title, functions[-1] if kind else None, not kind & JS_SUITES


def _is_sum(node: Node) -> bool:
    return bool(node.type == "binary_expression")


def _find_in_body(body: Node, *, is_block: bool) -> Spots:
    found: list[Spot] = []
    for statement in body.named_children if is_block else [body]:
        if statement.type not in JS_STATEMENTS and is_block:
            if LEAVES.search(statement.text):
                break
            continue
        node = statement
        while node.type in ("expression_statement", "return_statement", "await_expression") and node.named_children:
            node = node.named_children[0]
        if node.type == "call_expression":
            found += _find_in_assertion(node)
    if is_block:
        found.append(_failure(body, "throw new Error('unexpected state');"))
    return tuple(found)


def _find_in_assertion(call: Node) -> Iterator[Spot]:
    """The spots of `expect(...).toBe(...)`, `assert.equal(..., ...)` and supertest's `request(app).expect(200)`."""
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function.type != "member_expression" or arguments is None:
        return
    inner = function.child_by_field_name("object")
    if _text(function.child_by_field_name("property")) == "expect":
        yield from _find_literals(arguments)
    if inner.type == "call_expression" and not _text(inner).startswith(JS_EXPECT):
        yield from _find_in_assertion(inner)
    name, chain = _text(function.child_by_field_name("property")), function.child_by_field_name("object")
    base = chain
    while base.type == "member_expression":
        base = base.child_by_field_name("object")
    expects = base.type == "call_expression" and _text(base).startswith(JS_EXPECT)
    if re.search(r"\.not\b", _text(chain)[len(_text(base)) :]):
        return
    if expects and name in JS_EXPECTS:
        values = () if name in SEARCHING else arguments.named_children
        yield Spot("comparison", TextEdit(chain.end_byte, chain.end_byte, ".not"))
    elif not expects and name in JS_OPPOSITES and base.type == "identifier":
        values = arguments.named_children[1:2]
        yield _spot("comparison", function.child_by_field_name("property"), JS_OPPOSITES[name])
    else:
        return
    for value in values:
        yield from _find_literals(value)


def _is_written_out(node: Node) -> bool:
    """Whether a literal below this node is a part of the value."""
    return node.type in ("array", "object", "pair", "unary_expression", "parenthesized_expression", "arguments")


def _find_literals(value: Node) -> Iterator[Spot]:
    for node in _walk(value, _is_written_out):
        is_key = node.parent.type == "pair" and node == node.parent.child_by_field_name("key")
        is_text = node.type in ("string", "template_string") and b"${" not in node.text
        if (is_text or (node.type == "number" and NUMBER.fullmatch(_text(node)))) and not is_key:
            yield _spot("literal", node)
        elif node.type in SWITCHED:
            yield _spot("comparison", node, SWITCHED[node.type])


@lru_cache(maxsize=4096)
def _normalise(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


@lru_cache(maxsize=4096)
def _read_title(title: str) -> tuple[str, str]:
    """The pattern of a title, and its longest part without placeholders."""
    parts = [_normalise(part) for part in PLACEHOLDER.split(title)]
    return ".*".join(map(re.escape, parts)), max(parts, key=len)


def fit_title(test: str, written: WrittenTest) -> int:
    """Return a number that grows with the names of a test that an id ends with: logs name suites and files, or not."""
    said = _normalise(test)
    if _read_title(written.names[-1])[1] not in said:
        return 0
    for count in range(len(written.names), 0, -1):
        read = [_read_title(name) for name in written.names[-count:]]
        pattern = "".join(f" {one}" if core else "(?: .*)?" for one, core in read)
        before = "(?:.*(?= ))?" if count == len(written.names) else ""
        if any(core for _, core in read) and re.fullmatch(before + pattern, f" {said}"):
            return sum(1000 + len(core) for _, core in read if core)
    return 0


# --- Go ---------------------------------------------------------------------------------------------------------------

GO_LITERALS = ("int_literal", "float_literal", "interpreted_string_literal", "raw_string_literal")
GO_EXPECTED = re.compile(r"(?:want|expect|exp|output|out|result|res)(?:ed)?(?:[A-Z]\w*)?", re.IGNORECASE)
GO_OPPOSITES = {"Equal": "NotEqual", "True": "False", "False": "True", "Nil": "NotNil", "NotNil": "Nil"}
GO_OPPOSITES |= {
    "NoError": "Error",
    "Error": "NoError",
    "Contains": "NotContains",
    "Len": "",
    "EqualValues": "",
    "JSONEq": "",
}
"""Assertions of testify, and their opposites."""

GO_TEST = re.compile(r"(?:Test|Fuzz|Example)(?![a-z])")
FAILS = re.compile(rb"\.(?:Error(?!\(\))|Errorf|Fatal|Fatalf|Fail|FailNow)\(")
GO_BRANCHES = ("if_statement", "expression_switch_statement", "type_switch_statement", "select_statement")
GO_LEAVES = ("return_statement", "goto_statement", "continue_statement", "break_statement")
SWAPPED = {"==": "!=", "!=": "=="}


def find_in_go(root: Node) -> Iterator[WrittenTest]:
    """Yield the functions named `TestX`, `FuzzX` and `ExampleX`, with their sub-tests."""
    for function in root.named_children:
        body = function.child_by_field_name("body")
        name = function.child_by_field_name("name")
        if function.type == "function_declaration" and body is not None and GO_TEST.match(_text(name)):
            parts = tuple(_find_parts(body))
            spots = list(_find_in_go_body(body, function))
            printed = _find_printed(body) if _text(name).startswith("Example") else ()
            yield WrittenTest((_text(name),), body.start_byte + 1, (*printed, *spots), parts)


def _find_printed(body: Node) -> Iterator[Spot]:
    """The lines that an example is to print, in the comment at its end."""
    begun = False
    for comment in [node for node in _walk(body, bool) if node.type == "comment"]:
        head = re.match(r"(?i)//\s*(?:unordered )?output:", _text(comment))
        begun = begun or head is not None
        said = _text(comment)[head.end() if head else 2 :]
        if begun and len(said.strip()) > 1:
            end = comment.end_byte
            yield Spot("literal", TextEdit(end - len(said.encode()), end, said))


def _find_in_go_body(body: Node, function: Node) -> Iterator[Spot]:
    """The spots of the statements that are sure to run."""
    parameter = re.search(r"(\w+)\s+\*?testing\.T\b", _text(function.child_by_field_name("parameters")))
    for statement in _reach(body):
        yield from _find_in_go_statement(statement)
        if statement.type == "if_statement":
            yield from _find_in_if(statement)
    if parameter is not None:
        yield _failure(body, f'{parameter[1]}.Error("unexpected state")')


def _statements(body: Node) -> list[Node]:
    """The statements of a block; the grammar puts those after a first comment into a list of their own."""
    lists = [child.named_children if child.type == "statement_list" else [child] for child in body.named_children]
    return [statement for statements in lists for statement in statements if statement.type != "comment"]


def _reach(body: Node) -> Iterator[Node]:
    """Yield the statements that run whenever the test passes, also those of loops over tables."""
    for statement in _statements(body):
        yield statement
        if statement.type == "for_statement" and _is_over_table(statement):
            yield from _reach(statement.child_by_field_name("body"))
        if _may_leave(statement):
            break


def _may_leave(statement: Node) -> bool:
    """Whether a passing test may skip the statements after this one: not if it fails before it returns."""
    outside = _walk(statement, lambda node: bool(node.type != "func_literal"))
    leaving = [node.start_byte for node in outside if node.type in GO_LEAVES or _skips(node)]
    if not leaving or statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return bool(leaving)
    return bool(min(leaving) < _failing(statement))


def _skips(node: Node) -> bool:
    return node.type == "call_expression" and bool(
        re.search(r"\.Skip(?:f|Now)?$", _text(node.child_by_field_name("function")))
    )


def _is_over_table(loop: Node) -> bool:
    """Whether a loop runs over a literal that holds something, written there or under a name of the function."""
    clause = next((child for child in loop.named_children if child.type == "range_clause"), None)
    items = clause.child_by_field_name("right") if clause is not None else None
    if items is not None and items.type == "identifier":
        before = [node for node in loop.parent.named_children if node.end_byte <= loop.start_byte]
        named = [node for node in before if node.type == "short_var_declaration"]
        found = [
            node.child_by_field_name("right").named_children
            for node in named
            if node.child_by_field_name("left").text == items.text
        ]
        items = found[-1][0] if found else None
    if items is None or items.type != "composite_literal":
        return False
    return bool(items.child_by_field_name("body").named_children)


def _find_in_go_statement(statement: Node) -> Iterator[Spot]:
    if statement.type == "short_var_declaration":
        left, right = statement.child_by_field_name("left"), statement.child_by_field_name("right")
        if GO_EXPECTED.fullmatch(_text(left)):
            yield from _find_go_literals(right)
    elif statement.type == "if_statement":
        condition = statement.child_by_field_name("condition")
        sides = [condition.child_by_field_name(side) for side in ("left", "right")]
        if condition.type == "binary_expression" and _operator(condition) == "!=" and _fails(statement):
            for side in sides:
                yield from _find_go_literals(side)
    elif statement.type == "expression_statement" and statement.named_children[0].type == "call_expression":
        yield from _find_in_testify(statement.named_children[0])


def _find_in_testify(call: Node) -> Iterator[Spot]:
    function, given = call.child_by_field_name("function"), call.child_by_field_name("arguments").named_children
    if function.type == "identifier" and given[1:] and _text(given[0]) == "t":  # a helper of the tests
        yield from _find_in_helper(given[1:])
    name = function.child_by_field_name("field")
    if name is None or _text(name) not in GO_OPPOSITES:
        return
    receiver, made = _text(function.child_by_field_name("operand")), _find_asserters(call)
    if receiver not in (*made, "assert", "require"):  # another object may have a method of this name
        return
    start = 0 if receiver in made else 1
    if GO_OPPOSITES[_text(name)]:
        yield _spot("comparison", name, GO_OPPOSITES[_text(name)])
    if _text(name) in ("Equal", "EqualValues", "Len", "JSONEq"):
        for argument in given[start : start + 2]:
            yield from _find_go_literals(argument)


def _find_in_helper(given: Sequence[Node]) -> Sequence[Spot]:
    """What a helper expects: the last number, or the last text but one, because the last may be a message."""
    spots = [spot for argument in given for spot in _find_go_literals(argument)]
    numbers = [spot for spot in spots if NUMBER.fullmatch(spot.edit.text)]
    return (numbers or spots[:-1] or spots)[-1:]


def _find_asserters(node: Node) -> Collection[str]:
    """The names to which the function around a node assigns `assert.New(t)` or `require.New(t)`."""
    while node.type not in ("function_declaration", "source_file") and node.parent is not None:
        node = node.parent
    return _find_made(_text(node))


@lru_cache(maxsize=64)
def _find_made(function: str) -> frozenset[str]:
    return frozenset(re.findall(r"(\w+)\s*:?=\s*(?:assert|require)\.New\(", function))


def _operator(condition: Node) -> str:
    return _text(condition.child_by_field_name("operator"))


def _fails(statement: Node) -> bool:
    """Whether the consequence of a condition fails the test, whatever else it does."""
    return _failing(statement) < statement.end_byte and not _may_leave(statement)


def _failing(statement: Node) -> int:
    """Where the consequence of a condition fails the test for sure; the end of the statement if it does not."""
    branch = _statements(statement.child_by_field_name("consequence"))
    failing = [node.start_byte for node in branch if node.type == "expression_statement" and FAILS.search(node.text)]
    return min(failing, default=int(statement.end_byte))


def _find_in_if(statement: Node) -> Iterator[Spot]:
    """The opposite of a condition whose consequence fails the test."""
    condition = statement.child_by_field_name("condition")
    if condition is None or not _fails(statement):
        return
    if condition.type == "binary_expression" and _operator(condition) in SWAPPED:
        operator = condition.child_by_field_name("operator")
        yield _spot("comparison", operator, SWAPPED[_operator(condition)])
    elif condition.type == "unary_expression" and _operator(condition) == "!":
        operator = condition.child_by_field_name("operator")
        yield Spot("comparison", TextEdit(operator.start_byte, operator.end_byte, ""))


def _find_go_literals(value: Node) -> Iterator[Spot]:
    into = (
        "expression_list",
        "composite_literal",
        "literal_value",
        "literal_element",
        "keyed_element",
        "unary_expression",
    )
    for node in _walk(value, lambda node: node.type in into):
        element = node.parent if node.parent.type == "literal_element" else node
        is_key = element.parent.type == "keyed_element" and element == element.parent.named_children[0]
        if node.type in GO_LITERALS and not is_key and (node.type != "int_literal" or NUMBER.fullmatch(_text(node))):
            yield _spot("literal", node)


def _find_parts(body: Node) -> Iterator[SubTest]:
    end = max((statement.end_byte for statement in _reach(body)), default=0)
    for node in _walk(body, bool):
        if node.type == "call_expression" and _text(node.child_by_field_name("function")).endswith((".Run", ".Fuzz")):
            given = node.child_by_field_name("arguments").named_children
            if given and given[-1].type == "func_literal":
                name = _rewrite(_text(given[0])) if given[0].type in GO_LITERALS else ""
                spots = tuple(_find_in_go_body(given[-1].child_by_field_name("body"), given[-1]))
                yield SubTest(name, spots, _is_sure(node, body, end))
        elif node.type == "literal_value" and node.parent.type == "literal_element":
            yield from _find_row(node, sure=_is_sure(node, body, end))


def _is_sure(node: Node, body: Node, end: int) -> bool:
    """Whether a part of a body runs whenever the test passes, if no statement before `end` may skip it."""
    sure = bool(node.start_byte < end)
    while sure and node != body:
        node = node.parent
        sure = node.type not in GO_BRANCHES and (node.type != "for_statement" or _is_over_table(node))
    return sure


def _find_row(row: Node, *, sure: bool) -> Iterator[SubTest]:
    """A row of a table, under each of its texts: it holds what its sub-test expects, by name or last."""
    spots: list[Spot] = []
    for element in row.named_children:
        if element.type == "keyed_element" and GO_EXPECTED.fullmatch(_text(element.named_children[0])):
            spots += _find_go_literals(element.named_children[-1])
    if not spots and row.named_children and row.named_children[-1].type == "literal_element":
        spots += _find_go_literals(row.named_children[-1].named_children[0])
    for node in _walk(row, lambda node: node == row or node.type in ("literal_element", "keyed_element")):
        if node.type in GO_LITERALS and spots:
            yield SubTest(_rewrite(_text(node)), tuple(spots), sure)


def _rewrite(literal: str) -> str:
    """The name of a sub-test, as Go writes it."""
    return re.sub(r"\s", "_", literal[1:-1])


def fit_function(test: str, written: WrittenTest) -> int:
    """Return whether an id names a Go test or a sub-test of it, with or without its package."""
    return int(bool(re.fullmatch(rf"(?:.*[./: ])?{re.escape(written.names[0])}(?:/.*)?", test, re.DOTALL)))


# --- all languages ----------------------------------------------------------------------------------------------------


class Grammar(NamedTuple):
    """How the tests of a language are read.

    Attributes:
        parser: Module and function of its grammar.
        find: Finds the tests of a file.
        fits: Returns how well an id fits a test.
    """

    parser: str
    find: Callable[[Node], Iterator[WrittenTest]]
    fits: Callable[[str, WrittenTest], int]


JAVASCRIPT = Grammar("tree_sitter_javascript:language", find_in_javascript, fit_title)
TYPESCRIPT = Grammar("tree_sitter_typescript:language_typescript", find_in_javascript, fit_title)
LANGUAGES: Mapping[str, Grammar] = {
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), JAVASCRIPT),
    **dict.fromkeys((".ts", ".mts", ".cts"), TYPESCRIPT),
    ".tsx": Grammar("tree_sitter_typescript:language_tsx", find_in_javascript, fit_title),
    ".go": Grammar("tree_sitter_go:language", find_in_go, fit_function),
}
"""Suffix of a test file -> its language."""


@lru_cache(maxsize=64)
def read_test_file(path: str, data: bytes) -> ForeignTests | None:
    """Parse a test file, with a cache of those used last. Return None if it is too large, or has errors of syntax.

    Raises:
        ImportError: The extra `languages` is missing.
    """
    grammar = LANGUAGES[posixpath.splitext(path)[1]]
    tree_sitter = importlib.import_module("tree_sitter")
    module, _, name = grammar.parser.partition(":")
    language = tree_sitter.Language(getattr(importlib.import_module(module), name)())
    if len(data) > LARGEST_PARSED:
        return None
    root = tree_sitter.Parser(language).parse(data).root_node
    try:
        text = data.decode()
    except ValueError:
        return None
    words = sorted({word for word in re.findall(r"[A-Za-z]{3,}", text)})
    return None if root.has_error else ForeignTests(data, tuple(grammar.find(root)), grammar.fits, tuple(words))
