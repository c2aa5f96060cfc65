"""Tests that a task lacks: copies of its own tests with other values, which assert what the gold patch gives.

Each copy changes one value or one statement of a required test. Copies first note what they see: with the gold patch,
without work, and with the wrong solutions that no test rejects. A copy becomes a test if its notes tell a wrong
solution from gold. It asserts what gold gives, so it may ask for behaviour that the issue does not mention.
"""

import ast
import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, zip_longest
from typing import Any, NamedTuple

from ..grading import file_diff, parse_id
from ..grading.counter import Source, TextEdit, name_of
from ..syntax import evaluate, parse
from ..types import Oracle
from .audit_variants import ChangedFile, split_sections
from .mutation import Function, Site

MOST_COPIES = 240
"""Copies of tests that are tried for one task."""

MOST_ORIGINALS = 24
"""Tests that are copied."""

MOST_ROWS = 3
"""Rows of values of a test with parameters that are copied."""

MOST_TESTS = 8
"""Tests that are added to one task."""

LONGEST = 400
"""Characters of the longest value that a new test asserts."""

NOTES = "SWE_GYM_NOTES"
"""Variable that names the file in which copies note what they see."""

SHORT = 40
"""Characters of the longest constant that is tried."""

MODE = 0o100644

UNKNOWN = "?"
"""Note of a value whose `repr` fails."""

BEGUN, ENDED = "begun", "ended"

HELPER = f"""

def _note_value(copy, site, value=None):
    import json, os, signal

    def stop(*_):
        raise RuntimeError("too slow")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2.0 if site != {ENDED!r} else 0)
    try:
        text = repr(value)
    except Exception:
        text = {UNKNOWN!r}
    with open(os.environ[{NOTES!r}], "a") as file:
        file.write(json.dumps([copy, site, text[:{LONGEST + 1}]]) + "\\n")
"""
"""Function that copies call. A copy that takes two seconds of CPU time fails."""

EQUAL = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertSequenceEqual", "assertTupleEqual")
SIMPLE = (ast.Call, ast.Name, ast.Attribute, ast.Subscript, ast.Constant)
TRUE = ("assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone")

Values = dict[str, Any]
"""Site of a copy -> the value that it gives there."""


class Shown(NamedTuple):
    """An object that is no plain value.

    Attributes:
        text: Its `repr`.
    """

    text: str


class Check(NamedTuple):
    """An assertion of a test.

    Attributes:
        statement: The assertion.
        actual: The expression that it checks.
        owner: The object whose method asserts; empty for `assert`.
    """

    statement: ast.stmt
    actual: ast.expr
    owner: str


class Original(NamedTuple):
    """A test that is copied.

    Attributes:
        test: Its id, without parameters.
        path: Its file.
        below: Names of its function there, within its classes.
        file: The file.
        names: Names of the function that is copied: for a test with parameters, one in which some have their values.
        source: The file with that function.
        starting: Whether the test must start passing.
    """

    test: str
    path: str
    below: tuple[str, ...]
    file: Source
    names: tuple[str, ...]
    source: Source
    starting: bool

    @property
    def function(self) -> Function:
        """The function that is copied."""
        return self.source.functions[self.names]

    def rename(self, name: str) -> str:
        """Return the id of a test of another name beside this one."""
        head, _, tail = self.test.rpartition(self.below[-1])
        return f"{head}{name}{tail}"


class Copy(NamedTuple):
    """A changed copy of a test.

    Attributes:
        original: The test.
        edits: The changes.
    """

    original: Original
    edits: tuple[TextEdit, ...]


class Seen(NamedTuple):
    """What a copy noted in one run.

    Attributes:
        begun: Whether it began.
        ended: Whether it came to its end.
        values: Sites that it passed once, and the value there; `Shown` stands for one that is not plain.
    """

    begun: bool = False
    ended: bool = False
    values: Values = {}

    def differs(self, gold: "Seen") -> bool:
        """Whether a test that asserts the values of gold fails here."""
        return self.begun and (
            not self.ended or any(self.values.get(site, self) != one for site, one in gold.values.items())
        )


class NewTest(NamedTuple):
    """A test to add.

    Attributes:
        copy: The copy that it is made of.
        name: Name of its function.
        values: Site -> what it asserts.
    """

    copy: Copy
    name: str
    values: Values

    @property
    def test(self) -> str:
        """Its id."""
        return self.copy.original.rename(self.name)


# --- copies -------------------------------------------------------------------------------------------------------


def find_originals(oracle: Oracle, files: Mapping[str, bytes]) -> list[Original]:
    """Return the required tests that can be copied, those that must start passing first.

    Args:
        oracle: The oracle of the task.
        files: Content of the test files.
    """
    sources: dict[str, Source] = {}
    for path, data in files.items():
        with contextlib.suppress(ValueError):
            sources[path] = Source(data)
    found: dict[tuple[str, tuple[str, ...]], Original] = {}
    for test in (*oracle.fail_to_pass, *oracle.pass_to_pass):
        place = parse_id(test)
        paths = [path for path in sources if place.path and f"/{path}".endswith(f"/{place.path}")]
        if len(paths) == 1 and place.names in sources[paths[0]].functions:
            path, names, plain = paths[0], place.names, test.partition("[")[0]
            source, starting = sources[path], test in oracle.fail_to_pass
            found.setdefault((path, names), Original(plain, path, names, source, names, source, starting))
    return [one for original in found.values() for one in _with_values(original) if _is_alone(one)]


def _with_values(original: Original) -> Iterator[Original]:
    """Yield a test or, if it has parameters, functions in which these have some of the values that it names."""
    source, function = original.file, original.function
    marks = [(one, names, rows) for one in function.decorator_list for names, rows in _find_parameters(one)]
    if not marks:
        yield original
    if len(marks) != 1 or len(function.args.args) != sum(
        1 for one in ast.walk(function.args) if isinstance(one, ast.arg)
    ):
        return
    mark, names, rows = marks[0]
    fixtures = ", ".join(one.arg for one in function.args.args if one.arg not in names)
    outer, pad = source.before(function), source.before(function.body[0])
    others = [f"{outer}@{source.text_of(one)}" for one in function.decorator_list if one is not mark]
    begin, end = source.span(function.body[0])[0], source.span(function)[1]
    for number, row in enumerate(rows[:MOST_ROWS]):
        values = [row] if len(names) == 1 else getattr(row, "elts", [])
        if len(values) == len(names) and not outer.strip() and not pad.strip():
            name = f"{function.name}_{number}_"
            lines = [f"{pad}{one} = {source.text_of(value)}" for one, value in zip(names, values, strict=True)]
            head = f"{outer}def {name}({fixtures}):"
            text = "\n".join(["", *others, head, *lines, f"{pad}{source.text(begin, end)}"])
            with contextlib.suppress(ValueError):
                whole = Source(source.apply_edits([TextEdit(end, end, text)]))
                yield original._replace(names=(*original.below[:-1], name), source=whole)


def _find_parameters(decorator: ast.expr) -> Iterator[tuple[list[str], list[ast.expr]]]:
    """Yield the names and the rows of values that pytest's `parametrize` gives."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=str(names)), rows, *_]):
            yield [name.strip() for name in names.split(",")], getattr(rows, "elts", [])
        case ast.Call(func=ast.Attribute(attr="parametrize")):
            yield [], []


def _is_alone(original: Original) -> bool:
    """Whether a function has its lines for itself, and can be copied below itself."""
    source, function = original.source, original.function
    first = min((function, *function.decorator_list), key=lambda node: node.lineno)
    alone = not source.before(first).strip(" \t@") and not source.after(function).strip()
    nodes = Site(source, function).nodes
    returns = any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in nodes)
    return alone and not returns and not source.before(function.body[0]).strip()


def make_copies(originals: Sequence[Original], changed: Collection[ChangedFile]) -> list[Copy]:
    """Return copies of tests, each with one or two changes, those of several tests in turn.

    These are tests that must start passing, then those that name a function that gold changes, then others.

    Args:
        originals: The tests.
        changed: Files that gold changes. Their constants are tried as values.
    """
    hints = _find_hints(changed)
    near = [
        one
        for one in originals
        if one.starting or any(one.below in one.file.mentioning(name) for name in hints.defaults)
    ]
    chosen = [*near, *(one for one in originals if one not in near)][:MOST_ORIGINALS]
    turns = zip_longest(*(_copies_of(original, hints) for original in chosen))
    copies = (copy for copy in chain.from_iterable(turns) if copy is not None and _is_python(copy))
    return list(islice(copies, MOST_COPIES))


def _is_python(copy: Copy) -> bool:
    try:
        parse(f"class _:\n    pass\n{_text(copy, '_', {})}")
    except SyntaxError:
        return False
    return True


class Hints(NamedTuple):
    """What may matter to the functions that gold changes.

    Attributes:
        constants: Their numbers and short texts.
        defaults: Name of a function -> its parameters with plain defaults, and these.
    """

    constants: list[Any]
    defaults: dict[str, list[tuple[str, Any]]]


def _find_hints(changed: Iterable[ChangedFile]) -> Hints:
    constants, defaults = dict[str, Any](), dict[str, list[tuple[str, Any]]]()
    for file in changed:
        sections = split_sections(file_diff(file.path, file.before, file.after, MODE, MODE))
        lines = set[int]().union(*(section.added_lines() for section in sections))
        try:
            source = Source(file.after or b"")
        except ValueError:
            continue
        for names, function in source.functions.items():
            if lines & {*range(function.lineno, (function.end_lineno or 0) + 1)}:
                called = names[-2:-1] if names[-1] == "__init__" else names[-1:]
                defaults["".join(called)] = list(_find_defaults(function.args))
                for node in source.walk(function):
                    if isinstance(node, ast.Constant) and isinstance(node.value, int | str):
                        constants[repr(node.value)] = node.value
    return Hints([one for one in constants.values() if len(str(one)) <= SHORT], defaults)


def _find_defaults(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    plain = arguments.args[len(arguments.args) - len(arguments.defaults) :] if arguments.defaults else []
    pairs = [
        *zip(plain, arguments.defaults, strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, value in pairs:
        if isinstance(value, ast.Constant):
            yield argument.arg, value.value


def _copies_of(original: Original, hints: Hints) -> Iterator[Copy]:
    yield Copy(original, ())
    sites = [_vary(original.source, node, hints) for node in _inputs(original)]
    edits = [edit for edit in chain.from_iterable(zip_longest(*sites)) if edit is not None]
    yield from (Copy(original, (edit,)) for edit in edits)
    for first, second in combinations(edits, 2):
        if first.end < second.start or second.end < first.start:
            yield Copy(original, (first, second))


def _inputs(original: Original) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes of a test that may be changed: not what it expects, and no docstring."""
    checks = {check.statement: check.actual for check in find_checks(original)}
    unread = _find_unread(original)
    todo: list[ast.AST] = [node for node in original.function.body if node not in unread]
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.stmt) and node in checks:
            todo.insert(0, checks[node])
            continue
        if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Call) or _is_call(node):
            assert isinstance(node, ast.expr | ast.stmt)
            yield node
        todo += ast.iter_child_nodes(node)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _vary(source: Source, node: ast.expr | ast.stmt, hints: Hints) -> Iterator[TextEdit]:
    span = source.span(node)
    match node:
        case ast.Constant(value=value):
            texts = dict.fromkeys(map(repr, _other_values(value, hints.constants)))
            yield from (TextEdit(*span, text) for text in texts if text != repr(value))
        case ast.List(elts=parts, ctx=ast.Load()) | ast.Tuple(elts=parts, ctx=ast.Load()) if len(parts) > 1:
            starts, ends = zip(*map(source.span, parts), strict=True)
            yield TextEdit(starts[0], starts[1], "")
            yield TextEdit(ends[-2], ends[-1], "," if isinstance(node, ast.Tuple) and len(parts) == 2 else "")
            words = [source.text_of(one) for one in parts]
            yield TextEdit(starts[0], ends[-1], ", ".join([*words, words[0]]))
            yield TextEdit(starts[0], ends[-1], ", ".join(reversed(words)))
        case ast.Call(keywords=[*others, ast.keyword(value=last)], args=args):
            before = [source.span(one)[1] for one in (*args, *(one.value for one in others))]
            if before:
                yield TextEdit(max(before), source.span(last)[1], "")
            yield from _add_argument(source, node, hints)
        case ast.Call(args=[*_, last]):
            yield from _add_argument(source, node, hints)
        case ast.Expr() if not source.before(node).strip():
            yield TextEdit(*span, "pass")
            yield TextEdit(*span, f"{source.text_of(node)}\n{source.before(node)}{source.text_of(node)}")


def _add_argument(source: Source, call: ast.Call, hints: Hints) -> Iterator[TextEdit]:
    """Give a call of a function that gold changes an argument that has a default."""
    given = {one.arg for one in call.keywords}
    end = max(source.span(one)[1] for one in (*call.args, *(one.value for one in call.keywords)))
    parameters = hints.defaults.get(name_of(call), ())
    ways = [
        [TextEdit(end, end, f", {name}={other!r}") for other in _other_values(value, hints.constants)]
        for name, value in parameters
        if name not in given
    ]
    yield from filter(None, chain.from_iterable(zip_longest(*ways)))


def _other_values(value: object, hints: Sequence[Any]) -> Iterator[object]:
    """Yield values of the same type."""
    alike: list[Any] = [one for one in hints if type(one) is type(value)]
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, 0, -value, *alike, 2 * value, *(one + 1 for one in alike))
        case float():
            yield from (value + 1, -value, 0.0, value / 2)
        case str():
            yield from (value + value, value[:-1], "", value.swapcase(), f"{value} {value}", value[1:], f"{value}\n")
            yield from (one for word in alike for one in (word, value + word))


def find_checks(original: Original) -> list[Check]:
    """Return the assertions of a test whose value can be noted."""
    found = []
    for node in original.source.walk(original.function):
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right])):
                found.append(Check(node, _actual(original.source, left, right), ""))
            case ast.Assert(test=test):
                found.append(Check(node, test, ""))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=owner), args=[left, right, *_])) if (
                name in EQUAL
            ):
                found.append(Check(node, _actual(original.source, left, right), original.source.text_of(owner)))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name, value=owner), args=[test, *_])) if name in TRUE:
                found.append(Check(node, test, original.source.text_of(owner)))
    return found


def _actual(source: Source, left: ast.expr, right: ast.expr) -> ast.expr:
    """Return the side of an assertion that calls or reads more."""

    def weight(node: ast.expr) -> tuple[int, int]:
        nodes = source.walk(node)
        return sum(isinstance(one, ast.Call) for one in nodes), sum(isinstance(one, ast.Name) for one in nodes)

    return left if weight(left) >= weight(right) else right


def _find_unread(original: Original) -> list[ast.stmt]:
    """Return the statements that give a parameter a value that only assertions compare with."""
    source, function, checks = original.source, original.function, find_checks(original)
    parameters = {one.arg for one in original.file.functions[original.below].args.args}
    expected = {id(one) for check in checks for one in source.walk(check.statement)}
    expected -= {id(one) for check in checks for one in source.walk(check.actual)}
    loads = [node for node in source.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    read = {node.id for node in loads if id(node) not in expected}
    return [
        node for node in function.body
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name)
        and name.id in parameters - read and original.names != original.below
    ]  # fmt: skip


def _locals(function: Function) -> list[str]:
    """Return the variables that a test assigns by statements of its own."""
    targets = [one for node in function.body if isinstance(node, ast.Assign) for one in node.targets]
    return list(dict.fromkeys(one.id for one in targets if isinstance(one, ast.Name)))


# --- what copies see ------------------------------------------------------------------------------------------------


def write_notes(copies: Sequence[Copy], data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the test files with copies that note what they see."""

    def write(number: int, copy: Copy) -> str:
        function = copy.original.function
        checks = {
            check: f"_note_value({number}, '{site}', {{}})" for site, check in enumerate(find_checks(copy.original))
        }
        begin, end = (f"_note_value({number}, {word!r})" for word in (BEGUN, ENDED))
        ends = [f"_note_value({number}, {name!r}, locals().get({name!r}))" for name in _locals(function)]
        return _text(copy, f"{function.name}_{number}_", checks, first=[begin], last=[*ends, end])

    return _add_below(data, [(copy.original, write(number, copy)) for number, copy in enumerate(copies)], HELPER)


def _text(
    copy: Copy, name: str, checks: Mapping[Check, str], *, first: Sequence[str] = (), last: Sequence[str] = ()
) -> str:
    """Return the function of a copy.

    Args:
        copy: The copy.
        name: Its name.
        checks: Assertion -> what stands for it, in which `{}` is the checked expression.
        first: Lines before the body.
        last: Lines after it.
    """
    source, function = copy.original.source, copy.original.function
    edits = list(copy.edits)
    for node in _find_unread(copy.original) if len(checks) == len(find_checks(copy.original)) else ():
        start, after = source.span(node)[0], function.body[function.body.index(node) + 1]
        edits.append(TextEdit(start, source.span(after)[0], ""))
    for check, text in checks.items():
        start, end = source.span(check.actual)
        inner = [edit for edit in copy.edits if start <= edit.start and edit.end <= end]
        span = source.span(check.statement)
        edits = [edit for edit in edits if not (span[0] <= edit.start and edit.end <= span[1])]
        edits.append(TextEdit(*span, text.replace("{}", source.cut(start, end, inner), 1)))
    body = function.body[1:] if ast.get_docstring(function) is not None and len(function.body) > 1 else function.body
    pad = source.before(function.body[0])
    begin, end = source.span(body[0])[0], source.span(body[-1])[1]
    lines = [*first, source.cut(begin, end, edits), *last]
    decorators = [f"@{source.text_of(one)}" for one in function.decorator_list]
    head = source.text(source.span(function)[0], source.span(function.body[0])[0]).rstrip()
    head = head.replace(f"def {function.name}", f"def {name}", 1)
    outer = source.before(function)
    return "\n".join([*(f"{outer}{one}" for one in (*decorators, head)), *(f"{pad}{line}" for line in lines)])


def _add_below(data: Mapping[str, bytes], texts: Sequence[tuple[Original, str]], end: str = "") -> dict[str, bytes]:
    """Return files with functions below those that they are copies of."""
    found = dict(data)
    for path in {original.path for original, _ in texts}:
        added: dict[Original, list[str]] = {}
        for original, text in texts:
            if original.path == path:
                added.setdefault(original, []).append(text)
        edits = []
        for original, parts in added.items():
            function = original.file.functions[original.below]
            gap = "\n\n" if original.file.before(function) else "\n\n\n"
            place = original.file.span(function)[1]
            edits.append(TextEdit(place, place, "".join(f"{gap}{part}" for part in parts)))
        after = next(iter(added)).file.apply_edits(edits)
        found[path] = after.rstrip(b"\n") + b"\n" + end.encode()
    return found


def read_notes(text: str, count: int) -> list[Seen]:
    """Return what each of a number of copies noted."""
    notes: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    for line in text.splitlines():
        try:
            number, site, value = json.loads(line)
        except ValueError:  # a run that was cut off
            continue
        notes[number].append((site, value))
    return [_read_one(one) for one in notes]


def _read_one(notes: Sequence[tuple[str, str]]) -> Seen:
    sites = [site for site, _ in notes]
    if sites.count(BEGUN) != 1:
        return Seen(begun=BEGUN in sites)
    values: Values = {}
    for site, text in notes:
        if sites.count(site) == 1 and site not in (BEGUN, ENDED) and len(text) <= LONGEST:
            try:
                values[site] = evaluate(text)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                if " at 0x" not in text and text != UNKNOWN:
                    values[site] = Shown(text)
    return Seen(begun=True, ended=ENDED in sites, values=values)


# --- new tests ------------------------------------------------------------------------------------------------------


def choose_tests(
    copies: Sequence[Copy],
    gold: Sequence[Seen],
    again: Sequence[Seen],
    base: Sequence[Seen],
    wrong: Sequence[Sequence[Seen]],
) -> list[NewTest]:
    """Return few tests that reject as many wrong solutions as possible.

    Those that pass without work come first, because they ask for nothing new.

    Args:
        copies: The copies.
        gold: What each saw with gold.
        again: The same of a second run.
        base: The same without work.
        wrong: The same of each wrong solution.
    """
    facts = {}
    for number, (first, second) in enumerate(zip(gold, again, strict=True)):
        same = {site: value for site, value in first.values.items() if _is_same(value, second.values.get(site, first))}
        if first.ended and second.ended:
            facts[number] = first._replace(values=same)
    rejects = {
        number: {index for index, one in enumerate(wrong) if one[number].differs(seen)}
        for number, seen in facts.items()
    }
    left, found = set(range(len(wrong))), list[NewTest]()
    while left and len(found) < MOST_TESTS:
        number = max(
            rejects, key=lambda one: (len(rejects[one] & left), not base[one].differs(facts[one]), -one), default=-1
        )
        if number < 0 or not rejects[number] & left:
            break
        telling = [wrong[index][number] for index in rejects[number] & left]
        found.append(_make_test(copies[number], facts[number], telling, found))
        left -= rejects[number]
    return found


def _is_same(first: object, second: object) -> bool:
    return type(first) is type(second) and first == second


def _make_test(copy: Copy, gold: Seen, wrong: Sequence[Seen], others: Sequence[NewTest]) -> NewTest:
    """Return a test that asserts what the assertions of a copy see, and variables that tell wrong solutions apart."""
    values = {
        site: value for site, value in gold.values.items()
        if site.isdigit() or any(one.ended and one.values.get(site, one) != value for one in wrong)
    }  # fmt: skip
    base, known = copy.original.below[-1], {names[-1] for names in copy.original.file.functions}
    known |= {one.name for one in others}
    number = next(number for number in range(1, len(known) + 2) if f"{base}_variation_{number}" not in known)
    return NewTest(copy, f"{base}_variation_{number}", values)


def write_tests(tests: Sequence[NewTest], data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the test files with new tests."""
    return _add_below(data, [(one.copy.original, _text_of(one)) for one in tests])


def _text_of(test: NewTest) -> str:
    original, checks = test.copy.original, find_checks(test.copy.original)
    owner = next((check.owner for check in checks if check.owner), "")
    texts = {
        check: _assert(check.owner, "{}" if isinstance(check.actual, SIMPLE) else "({})", test.values[str(site)])
        for site, check in enumerate(checks)
        if str(site) in test.values
    }
    more = [_assert(owner, name, test.values[name]) for name in _locals(original.function) if name in test.values]
    return _text(test.copy, test.name, texts, last=more)


def _assert(owner: str, actual: str, value: object) -> str:
    """Return an assertion that an expression has a value."""
    if isinstance(value, Shown):
        actual, value = f"repr({actual})", value.text
    one = value is None or isinstance(value, bool)
    if owner:
        return f"{owner}.{'assertIs' if one else 'assertEqual'}({actual}, {value!r})"
    return f"assert {actual} {'is' if one else '=='} {value!r}"


def put_tests(oracle: Oracle, before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> Oracle:
    """Return an oracle whose test files have other contents.

    Args:
        oracle: The oracle.
        before: Content of the files in a fresh sandbox.
        after: Content that they have when the tests run.
    """
    patch, files = oracle.test_patch, dict(oracle.test_files)
    for path, data in after.items():
        if path in files:
            files[path] = data.decode()
        else:
            rest = "".join(section.text for section in split_sections(patch) if section.path != path)
            mode = None if before.get(path) is None else MODE
            patch = rest + file_diff(path, before.get(path), data, mode, MODE)
    return oracle.model_copy(update={"test_patch": patch, "test_files": files})
