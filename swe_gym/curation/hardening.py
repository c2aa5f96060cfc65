"""Tests that a task lacks: copies of its own tests with other values, which assert what the gold patch gives.

Each copy changes one value of a required test. Copies first note what they see: with the gold patch, without
work, and with the wrong solutions that no test rejects. A copy becomes a test if its notes tell a wrong solution from
gold. It compares as the original does, and only plain values of the type that the original expects.
"""

import ast
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from ..errors import TaskError
from ..grading import file_diff, parse_id
from ..grading.counter import Source, TextEdit
from ..syntax import evaluate, parse
from ..types import Oracle
from .audit_variants import ChangedFile, split_sections
from .mutation import Function, Site

MOST_COPIES, MOST_ORIGINALS, MOST_TESTS = 240, 24, 8
"""Copies that are tried for one task, tests that are copied, and tests that are added."""

LONGEST, SHORT = 400, 40
"""Characters of the longest value that a new test asserts, and of the longest constant that is tried."""

NOTES = "SWE_GYM_NOTES"
"""Variable that names the file in which copies note what they see."""

MODE = 0o100644
BEGUN, ENDED, UNKNOWN = "begun", "ended", "?"

HELPER = f"""
def _note_value(copy, site, value=None, path=__import__("os").environ.get({NOTES!r}), seen=set()):
    import json

    if (copy, site) in seen and site != {BEGUN!r}:
        raise RuntimeError("passed twice")
    seen.add((copy, site))

    def is_plain(one):
        if type(one) in (list, tuple):
            return all(map(is_plain, one))
        if type(one) is dict:
            return all(map(is_plain, one)) and all(map(is_plain, one.values()))
        return type(one) in (int, str, bytes, bool, type(None))

    text = repr(value)[:{LONGEST + 1}] if is_plain(value) else {UNKNOWN!r}
    with open(path, "a") as file:
        file.write(json.dumps([copy, site, text]) + "\\n")
    return _note_value


def _note_copy(copy):
    import functools, signal

    def stop(*_):
        raise RuntimeError("too slow")

    def limit(seconds):
        for number, timer in ((signal.SIGVTALRM, signal.ITIMER_VIRTUAL), (signal.SIGALRM, signal.ITIMER_REAL)):
            signal.signal(number, stop if seconds else signal.SIG_IGN)
            signal.setitimer(timer, seconds, seconds)

    def decorate(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            try:
                _note_value(copy, {BEGUN!r})
                limit(3.0)
                function(*args, **kwargs)
                limit(0)
                _note_value(copy, {ENDED!r})
            except BaseException:
                pass
            finally:
                limit(0)
        return run
    return decorate


"""
"""Functions of copies. A copy that takes three seconds, by the clock or of CPU time, fails. It never fails its run."""

FIXED = {"raises", "warns", "approx", "monkeypatch", "mocker", "mock", "patch", "skip", "importorskip"}
"""Names of functions and objects whose arguments are kept."""

OTHER = ("parametrize", "xfail", "expectedFailure")
"""Decorators of tests that are not copied."""


class Check(NamedTuple):
    """A comparison of a test with a plain value.

    Attributes:
        statement: The assertion.
        actual: The expression that it checks.
        expected: The value.
        kind: Its type.
    """

    statement: ast.stmt
    actual: ast.expr
    expected: ast.expr
    kind: type


class Original(NamedTuple):
    """A test that is copied.

    Attributes:
        test: Its id.
        path: Its file.
        names: Its function there, within its classes.
        source: The file.
    """

    test: str
    path: str
    names: tuple[str, ...]
    source: Source

    @property
    def function(self) -> Function:
        """Its function."""
        return self.source.functions[self.names]


class Copy(NamedTuple):
    """A changed copy of a test. It becomes a new one by a name and values.

    Attributes:
        original: The test.
        edit: The change.
        name: Name of its function.
        values: Number of a comparison -> what it expects, as text.
    """

    original: Original
    edit: TextEdit
    name: str = "_"
    values: Mapping[str, str] = {}

    @property
    def test(self) -> str:
        """Its id."""
        old = re.escape(self.original.names[-1])
        return re.sub(rf"^{old}(?= \()|(?<=[.:]){old}(?=\)?$)", self.name, self.original.test)

    def text(self, more: Iterable[TextEdit] = (), decorator: str = "") -> str:
        """Return its function after further edits."""
        source, function = self.original.source, self.original.function
        start, end = source.span(function)
        place = start + source.text(start, end).index(function.name, 4)  # behind "def "
        head = [TextEdit(place, place + len(function.name.encode()), self.name)]
        head += [TextEdit(start, start, f"{decorator}\n{source.before(function)}")] if decorator else []
        return source.cut(_begin(source, function), end, [self.edit, *more, *head])


class Seen(NamedTuple):
    """What a copy noted in one run.

    Attributes:
        begun: Whether it began.
        ended: Whether it came to its end.
        values: Number of a comparison that it passed once -> the plain value there, as text.
    """

    begun: bool = False
    ended: bool = False
    values: Mapping[str, str] = {}

    def differs(self, gold: "Seen") -> bool:
        """Whether a test that asserts the values of gold fails here."""
        return self.begun and (not self.ended or self.values != gold.values)


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
        key = (paths[0] if len(paths) == 1 else "", place.names)
        if key[0] and key not in found and "[" not in test and _is_alone(sources[key[0]], place.names):
            found[key] = Original(test, *key, sources[key[0]])
    return list(found.values())


def _is_alone(source: Source, names: tuple[str, ...]) -> bool:
    """Whether a file has a function that has its lines for itself, and can be copied below itself."""
    function = source.functions.get(names)
    if not isinstance(function, ast.FunctionDef):
        return False
    lines = [source.after(function), source.before(function), *map(source.before, function.decorator_list)]
    other = any(word in source.text_of(one) for one in function.decorator_list for word in OTHER)
    returns = any(isinstance(one, ast.Return | ast.Yield | ast.YieldFrom) for one in Site(source, function).nodes)
    inside = source.before(function.body[0]).strip()
    return not (other or returns or inside or any(line.strip(" \t\r\n@") for line in lines))


def _begin(source: Source, node: ast.stmt) -> int:
    """Return where the first line of a statement begins, its decorators included."""
    nodes: list[ast.expr | ast.stmt] = [*getattr(node, "decorator_list", ()), node]
    first = min(nodes, key=lambda one: one.lineno)
    return source.span(first)[0] - len(source.before(first).encode())


def make_copies(originals: Sequence[Original], changed: Iterable[ChangedFile]) -> list[Copy]:
    """Return copies of tests that compare, each with one change, those of several tests in turn.

    Args:
        originals: The tests.
        changed: Files that gold changes. Their constants are tried as values.
    """
    constants = _find_constants(changed)

    def copy(original: Original) -> Iterator[Copy | None]:
        sites = [_vary(original.source, node, constants) for node in _inputs(original)]
        return (edit and Copy(original, edit) for edit in chain.from_iterable(zip_longest(*sites)))

    comparing = islice(filter(find_checks, originals), MOST_ORIGINALS)
    turns = chain.from_iterable(zip_longest(*map(copy, comparing)))
    tried = (one for one in islice(turns, 10 * MOST_COPIES) if one is not None and _is_python(one))
    return list(islice(tried, MOST_COPIES))


def _is_python(copy: Copy) -> bool:
    head = "class _:\n" if copy.original.source.before(copy.original.function) else ""
    try:
        parse(head + copy.text())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _find_constants(changed: Iterable[ChangedFile]) -> list[Any]:
    """Return the numbers and short texts of the functions that gold changes."""
    found = dict[str, Any]()
    for file in changed:
        sections = split_sections(file_diff(file.path, file.before, file.after, MODE, MODE))
        lines = set[int]().union(*(section.added_lines() for section in sections))
        with contextlib.suppress(ValueError):
            source = Source(file.after or b"")
            near = [one for one in source.functions.values() if lines & {*range(one.lineno, (one.end_lineno or 0) + 1)}]
            nodes = [node for one in near for node in source.walk(one) if isinstance(node, ast.Constant)]
            found |= {repr(node.value): node.value for node in nodes if isinstance(node.value, int | str)}
    return [one for one in found.values() if len(str(one)) <= SHORT]


def _inputs(original: Original) -> Iterator[ast.expr]:
    """Yield the nodes of a test that may be changed: not what it expects or replaces, and no docstring."""
    checks = find_checks(original)
    expected, actual = {check.expected for check in checks}, {check.statement: check.actual for check in checks}
    todo: list[ast.AST] = [*original.function.body]
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.stmt) and node in actual:
            todo.insert(0, actual[node])
        elif node in expected or isinstance(node, ast.JoinedStr | ast.Assert) or _is_kept(node):
            continue
        else:
            if isinstance(node, ast.Constant | ast.List):
                yield node
            todo += ast.iter_child_nodes(node)


def _is_kept(node: ast.AST) -> bool:
    """Whether a node is a docstring, an assertion, or a call that replaces objects."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    nodes = ast.walk(node.func) if isinstance(node, ast.Call) else ()
    words = {getattr(one, "id", getattr(one, "attr", "")) for one in nodes}
    return any(word in FIXED or word.startswith("assert") for word in words)


def _vary(source: Source, node: ast.expr, constants: Sequence[Any]) -> Iterator[TextEdit]:
    match node:
        case ast.Constant(value=value):
            texts = dict.fromkeys(map(repr, _other_values(value, constants)))
            yield from (TextEdit(*source.span(node), text) for text in texts if text != repr(value))
        case ast.List(elts=parts, ctx=ast.Load()) if len(parts) > 1:
            starts, ends = zip(*map(source.span, parts), strict=True)
            yield TextEdit(starts[0], starts[1], "")
            yield TextEdit(ends[-2], ends[-1], "")
            yield TextEdit(starts[0], ends[-1], ", ".join(map(source.text_of, reversed(parts))))


def _other_values(value: object, constants: Sequence[Any]) -> Iterator[object]:
    """Yield values of the same type. A text that may be a path is kept."""
    alike: list[Any] = [one for one in constants if type(one) is type(value)]
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, *alike, 2 * value, *(one + step for one in alike for step in (1, -1)))
        case str() if not value.startswith(("/", "~", ".")):
            yield from (value + value, value[:-1], value.swapcase(), f"{value} {value}", value[1:])
            yield from (one for word in alike for one in (word, value + word))


def find_checks(original: Original) -> list[Check]:
    """Return the comparisons of a test with plain values."""
    found, source = [], original.source
    for node in source.walk(original.function):
        match node:
            case (
                ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]))
                | ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(attr="assertEqual" | "assertEquals" | "assertIs"), args=[left, right, *_]
                    )
                )
            ):
                one, other = _type_of(source.text_of(left)), _type_of(source.text_of(right))
                found += [Check(node, left, right, other)] if one is None and other is not None else []
                found += [Check(node, right, left, one)] if one is not None and other is None else []
    return found


def _type_of(text: str) -> type | None:
    """Return the type of a value; None if the text is no literal."""
    try:
        return type(evaluate(f"({text})"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


# --- what copies see ------------------------------------------------------------------------------------------------


def write_notes(copies: Sequence[Copy], data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the test files with copies that note what they see."""

    def write(number: int, copy: Copy) -> str:
        edits, span = [], copy.original.source.span
        for site, check in enumerate(find_checks(copy.original)):
            start, end = span(check.actual)
            edits += [TextEdit(start, start, f"_note_value({number}, '{site}', "), TextEdit(end, end, ")")]
            edits += [TextEdit(*span(check.expected), "_note_value")]
        return copy._replace(name=f"{copy.original.names[-1]}_{number}_").text(edits, f"@_note_copy({number})")

    return _add_below(data, [(copy.original, write(number, copy)) for number, copy in enumerate(copies)], HELPER)


def _add_below(data: Mapping[str, bytes], texts: Sequence[tuple[Original, str]], helper: str = "") -> dict[str, bytes]:
    """Return files with functions below those that they are copies of, and a helper above all.

    Raises:
        TaskError: A file is no Python then.
    """
    found = dict(data)
    for path in sorted({original.path for original, _ in texts}):
        source, added = Source(data[path]), dict[int, str]()
        for original, text in texts:
            if original.path == path:
                gap = "\n\n" if source.before(original.function) else "\n\n\n"
                end = source.span(original.function)[1]
                added[end] = added.get(end, "") + gap + text
        body = [one for one in source.tree.body if getattr(one, "module", "") != "__future__"]
        first = _begin(source, next(one for one in body if not isinstance(one, ast.Expr)))
        edits = [TextEdit(first, first, helper), *(TextEdit(end, end, text) for end, text in added.items())]
        found[path] = source.apply_edits(edits)
        try:
            Source(found[path])
        except ValueError as error:
            raise TaskError(f"copies of its tests cannot be written into {path}: {error}") from error
    return found


def read_notes(text: str, count: int) -> list[Seen]:
    """Return what each of a number of copies noted. Lines that are no notes do not count: any code can write them."""
    notes: list[Counter[tuple[str, str]]] = [Counter() for _ in range(count)]
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):  # a run that was cut off
            continue
        if isinstance(one, list) and [*map(type, one)] == [int, str, str] and 0 <= one[0] < count:
            notes[one[0]][one[1], one[2]] += 1
    return [_read_one(one) for one in notes]


def _read_one(notes: Counter[tuple[str, str]]) -> Seen:
    times = Counter[str]()
    for (site, _), number in notes.items():
        times[site] += number
    values = {site: text for site, text in notes if times[site] == 1 and text != UNKNOWN and len(text) <= LONGEST}
    ends = [values.pop(word, None) for word in (BEGUN, ENDED)]
    return Seen(times[BEGUN] > 0, None not in ends, values)


# --- new tests ------------------------------------------------------------------------------------------------------


def choose_tests(
    copies: Sequence[Copy], gold: Sequence[Sequence[Seen]], base: Sequence[Seen], wrong: Sequence[Sequence[Seen]]
) -> list[Copy]:
    """Return few tests that reject as many wrong solutions as possible.

    Of copies that reject equally many, one that sees without work what it sees with gold is preferred: it asks for
    nothing new.

    Args:
        copies: The copies.
        gold: What each saw in runs with gold. It must be the same in all.
        base: The same without work.
        wrong: The same of each wrong solution.
    """
    facts = {
        number: runs[0]
        for number, runs in enumerate(zip(*gold, strict=True))
        if all(one == runs[0] for one in runs) and _is_sure(copies[number].original, runs[0])
    }
    rejects = {
        number: {index for index, one in enumerate(wrong) if one[number].differs(seen)}
        for number, seen in facts.items()
    }
    left, found = set(range(len(wrong))), list[Copy]()
    while left and len(found) < MOST_TESTS:
        number = max(rejects, key=lambda one: (len(rejects[one] & left), base[one] == facts[one], -one), default=-1)
        if number < 0 or not rejects[number] & left:
            break
        found.append(copies[number]._replace(name=_name(copies[number], found), values=facts[number].values))
        left -= rejects[number]
    return found


def _is_sure(original: Original, seen: Seen) -> bool:
    """Whether a copy ended, and each of its comparisons saw a value of the type that the original expects."""
    wanted = {str(site): check.kind for site, check in enumerate(find_checks(original))}
    return seen.ended and bool(wanted) and wanted == {site: _type_of(text) for site, text in seen.values.items()}


def _name(copy: Copy, others: Sequence[Copy]) -> str:
    known = {names[-1] for names in copy.original.source.functions} | {one.name for one in others}
    names = (f"{copy.original.names[-1]}_variation_{number}" for number in range(1, len(known) + 2))
    return next(name for name in names if name not in known)


def write_tests(tests: Sequence[Copy], data: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the test files with new tests.

    Raises:
        TaskError: A file is no Python then.
    """

    def write(test: Copy) -> str:
        span, checks = test.original.source.span, find_checks(test.original)
        return test.text(TextEdit(*span(checks[int(site)].expected), text) for site, text in test.values.items())

    return _add_below(data, [(test.original, write(test)) for test in tests])


def put_tests(oracle: Oracle, before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> Oracle:
    """Return an oracle whose test files have other contents.

    Args:
        oracle: The oracle.
        before: Content of the files in a fresh sandbox.
        after: Content that they have when the tests run.

    Raises:
        TaskError: The test patch has no headers of git, or renames such a file.
    """
    patch, files = oracle.test_patch, dict(oracle.test_files)
    for path, data in after.items():
        sections = split_sections(patch)
        if path in files:
            files[path] = data.decode()
        elif "".join(section.text for section in sections) != patch:
            raise TaskError("its test patch has parts without a line of 'diff --git'")
        elif any(section.path == path and "\nrename from " in section.head for section in sections):
            raise TaskError(f"its test patch renames {path}")
        else:
            rest = "".join(section.text for section in sections if section.path != path)
            mode = None if before.get(path) is None else MODE
            patch = rest + file_diff(path, before.get(path), data, mode, MODE)
    return oracle.model_copy(update={"test_patch": patch, "test_files": files})
