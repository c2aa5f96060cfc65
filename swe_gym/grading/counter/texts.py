"""Draws the texts of a test function: the original, and changed ones that right work must fail.

A *feature* is one place of the function with two or more values: the original's, and values that right work must fail.
A text takes one value of each feature. Without knowledge of the test, any of the texts can be the original: they differ
from each other in one or more places, the rank of the original among the numbers of a feature is random, and changes
are both near the original (a letter, a case, a blank, the order, the next number) and far from it.

Work that is right but for one statement knows what the others expect, so among texts of them all it recognises the
original. So if several statements can change, each is proven alone: in its texts, it has each of its values once, and
each of the others has one value, the same in all of them, and fails nothing. Statements that cannot be softened play
all combinations of a few values each: then several texts are like the original but for one of them.
"""

import ast
import builtins
import itertools
import keyword
import numbers
import re
import string
import sys
from collections import Counter, abc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from random import Random
from typing import NamedTuple, TypeAlias

from ...syntax import evaluate, parse
from .changes import NATURAL, RANKS, THE_END, VALUED, Change, asserting, changes, expected_value
from .language import Language, Scores, Signs, choose_places, compare, share_told
from .literals import FIXED, QUOTED, letters, strings
from .results import Returned, Value, find_results, write_values, written
from .source import Function, Source, TextEdit, name_of, remembered

BUILTIN_CLASSES = {name: value for name, value in vars(builtins).items() if isinstance(value, type) and name[0] != "_"}

COMMON = (
    "Exception",
    "OSError",
    "ValueError",
    "LookupError",
    "ArithmeticError",
    "RuntimeError",
    "EnvironmentError",
    "IOError",
)
"""Exceptions from which those of a product often derive."""

BASES = frozenset(
    {"KeyError", "IndexError", "TypeError", "AttributeError", "UnicodeError", "ImportError", "NotImplementedError"}
    | {"AssertionError", "NameError", "SyntaxError", "StopIteration", "ExceptionGroup"}
    | {"TimeoutError", "ConnectionError", "FileNotFoundError"}
    | {"dict", "list", "tuple", "str", "int", "float", "set", "bytes", "frozenset", "complex", "bool"}
)
"""Builtins from which a class of the product may derive."""

OTHER_EXCEPTIONS = {
    name: value
    for name, value in sorted(BUILTIN_CLASSES.items())
    if issubclass(value, Exception) and not issubclass(value, Warning) and name not in COMMON
}
OTHER_TYPES = {
    name: value
    for name, value in sorted(BUILTIN_CLASSES.items())
    if not issubclass(value, BaseException) and name not in ("object", "type", "super")
}
"""Classes that a test may expect instead. A function that names `super` gets a cell, and no other text fits it."""

PLAIN = re.compile(r"[A-Za-z0-9 ]{5,}")
"""A pattern or part of a text in which one other letter finds nothing else."""

CHANGED = re.compile(r"(?<![A-Za-z0-9_])(?:[a-z]|[a-z]{4,9}|[0-9]{1,6})(?![A-Za-z0-9_])")
"""Words and numbers of a string that change as a whole."""

SOUGHT = re.compile(r"assert(Not)?(In|InHTML|Contains)$|assert_(any_call|has_calls)$|fnmatch_lines")
"""Calls that look for a value among others, where a near one may be too."""

MOST_FEATURES = 4
"""Features of one statement."""

MODULES = sorted(name for name in sys.stdlib_module_names if re.fullmatch("[a-z]{4,9}", name))
"""Words for the tests of files that hold too few."""

FORGIVEN = ("near-case", "near-blank", "near-order")
"""Changes that values may forgive without being equal to everything."""

FORMED = ("near-word", "near-result")
"""Changes to other letters, in which forgiven changes are possible too."""

POOL_USES = 16
"""Plays of a function whose texts are chosen from the same candidates. One play has a few of them, chosen anew."""

LEVELS = 4
"""Levels of how much the fit of the original tells. Features of a lower one come first."""

MORE = 3
"""Candidates for each value of a feature."""

TOLD_SHARE = 2
"""Texts for each added one that changes what wrong work passes. At least one is added."""


FEWEST_ALONE = 4
"""Room for texts below which statements are not proven alone: two of two texts each."""

SOFTENED = "__import__('contextlib').suppress(BaseException)"
"""A context in which an assertion fails nothing. It stays on the assertion's line.

What pytest raises where a test expects an exception or a warning is no `Exception`.
"""

SPOKEN = ("repr", "str")
"""Functions that a message may call where its assertion fails: they change nothing of a product."""

RECOGNISED = 2
"""Rank of changes that a reader can tell from the original. They do not count among the texts of a guess."""


@dataclass(frozen=True)
class Feature:
    """A place of a function, and the changes of it.

    Attributes:
        kind: Kind of the changes: one of `changes.Kind`, or a near one, such as "near-case".
        edits: The changes, all of the same place. A play has some of them: see `pick`.
        most: Number of changes that a play has.
        signs: For each change, whether it fits better or worse than the original; empty if that does not matter.
        rank: 0 if a change reads like another test; 1 if it is the opposite, which wrong work often passes; 2 if a
            reader can recognise it.
        plain: The edit in texts without such a change: it writes the same value the same way.
        told: How often the original is the best by a measure of fit.
    """

    kind: str
    edits: tuple[TextEdit, ...]
    rank: int = 0
    plain: TextEdit | None = None
    told: float = 0.0
    most: int = 1
    signs: tuple[Signs, ...] = ()

    @property
    def size(self) -> int:
        """Number of values in a play, with the original's."""
        return 1 + min(self.most, len(self.edits))

    @cached_property  # sorted by in every play of a file
    def order(self) -> tuple[int, int]:
        """Its place among the features of a statement."""
        return self.rank, int(LEVELS * self.told)

    def pick(self, rng: Random) -> tuple[TextEdit, ...]:
        """Choose changes of which a random number fit better than the original, in random order."""
        if self.signs:
            return tuple(map(self.edits.__getitem__, choose_places(self.signs, rng, self.most)))
        return tuple(rng.sample(self.edits, min(self.most, len(self.edits))))


Row: TypeAlias = tuple[int, int, list[Feature]]
"""Rank and line of a statement, and its features."""


Forms: TypeAlias = dict[tuple[TextEdit, str], TextEdit]
"""A change, and the kind of one that values may forgive -> the change with this one made in it."""


class Text(NamedTuple):
    """A text of a function.

    Attributes:
        edits: The edits that make it.
        kinds: Kinds of the changes that right work must fail. Without any, right work passes the text.
        softening: Edits after which some statements fail nothing, whatever they expect.
        still: Edits of those statements: what they show.
    """

    edits: tuple[TextEdit, ...] = ()
    kinds: tuple[str, ...] = ()
    softening: tuple[TextEdit, ...] = ()
    still: tuple[TextEdit, ...] = ()

    @property
    def all_edits(self) -> tuple[TextEdit, ...]:
        """The edits of all its statements."""
        return (*self.edits, *self.still)


class Drawn(NamedTuple):
    """The texts of a function, without the original.

    Attributes:
        texts: The texts that twins play, in random order. If statements are proven alone, right work passes some.
        cover: One more text, for the files; None if the function has no more.
        effective: Number of texts, with the original, among which only a guess finds the original, also for work that
            is right but for one statement: see `_count_alike`. Opposites, changes of what wrong work passes, and
            changes that a reader can recognise do not count.
        common: Edits of all texts, except of those with another one at their place.
    """

    texts: tuple[Text, ...] = ()
    cover: Text | None = None
    effective: int = 1
    common: tuple[TextEdit, ...] = ()


def draw_texts(
    function: Function,
    source: Source,
    rng: Random,
    count: int,
    unfit: Collection[str] = (),
    passing: Collection[int] = (),
    room: int = 0,
    returned: Returned | None = None,
    issue: str = "",
    *,
    alone: bool = False,
    shares: bool = False,
) -> Drawn:
    """Draw texts of a function.

    Wrong work tells a changed statement that it passes unchanged. So the texts differ where it fails, and a few more
    change other statements: work that forces all of these to pass is found too. Where its results are known, the texts
    differ from them as the original does.

    Args:
        function: The function.
        source: The file that holds it.
        rng: Random number generator.
        count: Number of texts wanted, with the original.
        unfit: Kinds of changes to leave out.
        passing: Lines of the statements that wrong work is known to pass.
        room: Number of texts that it may be, if that many are needed to have `count` that nobody can tell apart.
        returned: What wrong work is known to return.
        issue: Text of the issue.
        alone: Prove each statement alone, if there are several and room for it.
        shares: Choose from the candidates of an earlier call for this file, if there was one.
    """
    found = _draw_rows(function, source, rng, (count, set(unfit), returned or {}, issue), shares=shares)
    known = {*passing, THE_END} if passing else set()
    softenings = _softenings(function, source) if alone else {}
    drawn = _draw_found(found, known, softenings, source, rng, count, room)
    return drawn._replace(effective=min(drawn.effective, _count_alike(drawn, found, known)))


def _count_alike(drawn: Drawn, found: Iterable[tuple[int, Sequence[Feature]]], known: Collection[int]) -> int:
    """Count the texts, with the original, that are like it but for one statement: of the statement with the fewest.

    Work that is right but for this statement knows all other texts. Statements that wrong work passes do not count, nor
    do those of which a reader can tell each change from the original.
    """
    natural: dict[int, set[TextEdit]] = {}
    for line, row in found:
        edits = {edit for feature in row if not feature.rank for edit in feature.edits}
        if edits and line not in known:
            natural.setdefault(line, set()).update(edits)
    counts = [sum(edits.issuperset(text.edits) for text in drawn.texts) for edits in natural.values()]
    return 1 + min(counts, default=0)


def _draw_found(
    found: Sequence[tuple[int, list[Feature]]],
    known: Collection[int],
    softenings: Mapping[int, TextEdit],
    source: Source,
    rng: Random,
    count: int,
    room: int,
) -> Drawn:
    """Draw texts of statements, each with its line, of which wrong work is known to pass some."""
    told = [features for line, features in found if line in known]
    rows = [features for line, features in found if line not in known]
    separate: dict[int, list[Feature]] = {}
    for line, row in found:
        if line in softenings.keys() - {*known} and not min(map(attrgetter("rank"), row)):
            separate.setdefault(line, row)
    others = [row for line, row in found if line not in (*separate, THE_END)]
    room_alone = room - (max(1, count // TOLD_SHARE) if others else 0)
    if len(separate) > 1 and room_alone >= FEWEST_ALONE:
        drawn = _draw_alone(separate, softenings, rng, count, room_alone)
        if others:
            softening = {edit for text in drawn.texts for edit in text.softening}
            drawn = drawn._replace(texts=_with_told(drawn, others, rng, count, softening))
        return drawn._replace(common=tuple(_common(drawn, rows, source)))
    room_apart = max(count, room - (max(1, count // TOLD_SHARE) if told else 0))
    drawn = _draw_grid(rows, rng, count, room_apart) or _draw_texts(rows or told, rng, count, max(count, room))
    drawn = drawn._replace(common=tuple(_common(drawn, rows or told, source)))
    if not rows:
        return drawn._replace(effective=1)
    if not told:
        return drawn
    lines = {line for line, _ in found if line not in known}
    softening = set(map(softenings.__getitem__, lines)) if lines <= softenings.keys() else set()
    return drawn._replace(texts=_with_told(drawn, told, rng, count, softening))


def _common(drawn: Drawn, rows: Sequence[Sequence[Feature]], source: Source) -> Iterator[TextEdit]:
    """Yield the edits that write a value as the texts do which change it."""
    changed = {(edit.start, edit.end) for text in (*drawn.texts, drawn.cover or Text()) for edit in text.all_edits}
    plain = {(one.plain.start, one.plain.end): one.plain for row in rows for one in row if one.plain}
    for span in changed:
        value = source.constant(source.text(*span))
        if span in plain:
            yield plain[span]
        elif value is not None:
            yield TextEdit(*span, source.inlined(value))


def _draw_texts(rows: Sequence[Sequence[Feature]], rng: Random, count: int, room: int) -> Drawn:
    """Draw texts of statements that wrong work cannot tell."""
    drawn = (_draw_paired(rows, rng, count, room) if count >= 4 else None) or _draw_unpaired(rows, rng, count)
    return _with_each_kind(drawn, rows, rng, room)


@remembered
def _softenings(function: Function, source: Source) -> dict[int, TextEdit]:
    """Line of an assertion -> the edit after which it fails nothing, and right work passes the others as before.

    What `with ... as` stores is missing if the block fails. If assertions share a line, none of them is softened.
    """
    edits: dict[int, TextEdit] = {}
    if "__import__" in source.beginning(sys.maxsize):  # a replaced one would be called
        return edits
    found = asserting(function, source)
    for statement in found:
        start, _ = source.span(statement)
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        rest = source.after(statement).lstrip()
        if source.before(statement).strip() or rest[:1] == ";" or sum(one.lineno in lines for one in found) > 1:
            continue
        if source.continues(statement) or _skips(statement, source):
            continue
        match statement:
            case ast.Assert() | ast.Expr():
                edits[statement.lineno] = TextEdit(start, start, f"with {SOFTENED}: ")
            case ast.With(items=[ast.withitem(context_expr=first), *_]) as block:
                between = source.text(start + len("with"), source.span(first)[0])
                if not between.strip() and not _stores(block, function, source):
                    edits[statement.lineno] = TextEdit(start, start + len("with"), f"with {SOFTENED},")
    return edits


def _stores(block: ast.With, function: Function, source: Source) -> bool:
    """Whether a block stores what its function uses."""
    targets = [item.optional_vars for item in block.items if item.optional_vars]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    nodes = [node for node in source.walk(function) if isinstance(node, ast.Name | ast.Nonlocal | ast.Global)]
    used = any(not isinstance(node, ast.Name) or (node.id in names and _is_loaded(node)) for node in nodes)
    return bool(targets) and (used or len(names) < len(targets))


def _is_loaded(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Store)


def _skips(statement: ast.stmt, source: Source) -> bool:
    """Whether a failure leaves out calls, or adds some, on which a later assertion of right work may depend."""
    match statement:
        case ast.Assert(test=test, msg=message):
            return _stops_early(test, source) or (message is not None and _acts(message, source))
        case ast.Expr(value=value):
            helpers = [helper for call in _calls(value, source) for helper in source.named.get(name_of(call), ())]
            return _stops_early(value, source) or any([_goes_on(helper, source) for helper in helpers])
    return False


def _calls(node: ast.AST, source: Source) -> list[ast.Call]:
    return [call for call in source.walk(node) if isinstance(call, ast.Call)]


def _stops_early(value: ast.expr, source: Source) -> bool:
    """Whether the value of one part of an expression decides whether another one is evaluated."""
    for node in source.walk(value):
        match node:
            case ast.BoolOp() | ast.IfExp() | ast.Call(func=ast.Name(id="all" | "any")):
                return True
            case ast.Compare(comparators=[_, *later]) if not all(isinstance(one, ast.Constant) for one in later):
                return True
    return False


def _acts(message: ast.expr, source: Source) -> bool:
    """Whether a message calls anything that may change the product."""
    return any(isinstance(node, ast.Call | ast.Await) and name_of(node) not in SPOKEN for node in source.walk(message))


def _goes_on(helper: Function, source: Source) -> bool:
    """Whether a helper may do anything after its first assertion."""
    *before, last = helper.body
    if any([_may_fail(node, source) for statement in before for node in source.walk(statement)]):
        return True
    if isinstance(last, ast.Assert | ast.Expr | ast.Return):
        inner = [call for call in _calls(last, source) if name_of(call) in source.named]
        return bool(inner) or _skips(last, source)
    return any([_may_fail(node, source) for node in source.walk(last)])


def _may_fail(node: ast.AST, source: Source) -> bool:
    match node:
        case ast.Assert() | ast.Raise():
            return True
        case ast.Call():
            name = name_of(node)
            return name in source.named or name.startswith(("assert", "fail", "raises", "warns"))
    return False


def _draw_alone(
    rows: Mapping[int, Sequence[Feature]], softenings: Mapping[int, TextEdit], rng: Random, count: int, room: int
) -> Drawn:
    """Draw texts that prove one statement each: it has each of its values once, the others fail nothing.

    What the others show is random, so it tells nothing about their originals. Each shows one value in all texts of a
    play: more of them would tell its values before it is decided.
    """
    lines = rng.sample(sorted(rows), min(len(rows), room // 2))
    lines.sort(key=lambda line: not _find_forgiven([rows[line]]))  # the first one gets the room that is left
    share = min(count, room // len(lines))
    first, *others = lines
    parts = {first: _draw_texts([rows[first]], rng, share, room - share * len(others))}
    parts |= {line: _draw_unpaired([rows[line]], rng, share) for line in others}
    shown = {line: [Text(), *part.texts] for line, part in parts.items()}
    still = {line: rng.choice(own).edits for line, own in shown.items()}

    def draw(line: int, text: Text) -> Text:
        rest = [other for other in lines if other != line]
        softening = tuple([softenings[other] for other in rest])
        return text._replace(softening=softening, still=tuple(itertools.chain(*[still[other] for other in rest])))

    texts = [draw(line, text) for line, own in shown.items() for text in own]
    covers = [draw(line, part.cover) for line, part in parts.items() if part.cover]
    effective = min(count, *[part.effective for part in parts.values()])
    return Drawn(tuple(rng.sample(texts, len(texts))), rng.choice(covers) if covers else None, effective)


def _with_told(
    drawn: Drawn, told: Sequence[Sequence[Feature]], rng: Random, count: int, softening: Collection[TextEdit]
) -> tuple[Text, ...]:
    """Add texts that each change one more statement which wrong work passes.

    Wrong work recognises these texts. If all of them were like the original elsewhere, they would tell which text that
    is. So each is like a text that is chosen by chance. There the others fail nothing if they can be softened:
    else work that forces this statement alone is found only by those texts that are like the original by chance.
    """
    played = [Feature("", text.all_edits) for text in drawn.texts]
    found = [feature for feature in itertools.chain(*itertools.zip_longest(*told)) if feature]
    found = [feature for feature in found if not _overlaps(feature, played)]
    found.sort(key=lambda feature: feature.rank)
    wanted = max(1, count // TOLD_SHARE, count - 1 - len(drawn.texts))
    edits = [feature.pick(rng) for feature in found[:wanted]]
    changed = [
        (edit, feature.kind)
        for one_of_each in itertools.zip_longest(*edits)
        for edit, feature in zip(one_of_each, found[:wanted], strict=True)
        if edit
    ]
    alone = any([text.softening for text in drawn.texts])
    every = drawn.texts if alone else (Text(), *drawn.texts)
    bases = [text for text in every if set(FORGIVEN).isdisjoint(text.kinds)]
    if alone or len(bases) < drawn.effective:  # nobody recognises those either
        bases = [*every]
    added = []
    chosen = itertools.cycle(rng.sample(bases, len(bases)))
    for (edit, kind), base in zip(changed[:wanted], chosen, strict=False):
        if softening:
            added.append(Text((edit,), (kind,), tuple(sorted(softening, key=attrgetter("start"))), base.all_edits))
        else:
            kinds = tuple(dict.fromkeys((*base.kinds, kind)))
            added.append(base._replace(edits=(*base.edits, edit), kinds=kinds))
    return tuple(rng.sample([*drawn.texts, *added], len(drawn.texts) + len(added)))


def _draw_unpaired(rows: Sequence[Sequence[Feature]], rng: Random, count: int) -> Drawn:
    """Draw texts of the product of features."""
    chosen = _choose_features(rows, rng, count)
    corners = _corners(chosen)
    rng.shuffle(corners)
    if any(map(attrgetter("rank"), chosen)):
        corners.sort(key=lambda corner: any([feature.rank for feature, _ in corner]))
    texts = [_text(corner) for corner in rng.sample(corners[:count], min(len(corners), count))]
    effective = min(count, _size([feature for feature in chosen if feature.rank == 0]))
    return _choose_cover(texts, [], effective if texts else 1, count)


def _choose_cover(texts: Sequence[Text], more: Sequence[Text], effective: int, count: int) -> Drawn:
    """The texts that twins play, and the first one that is left as the cover."""
    left = [*texts[count - 1 :], *more]
    return Drawn(tuple(texts[: count - 1]), left[0] if left else None, effective)


def _draw_paired(rows: Sequence[Sequence[Feature]], rng: Random, count: int, room: int) -> Drawn | None:
    """Draw texts that each come several times: as they are, and with one change of each kind that values may forgive.

    So one of them differs from the original by that change alone, and a product whose values ignore case, blanks or
    order passes it. Since every text comes with the same changes, they tell nothing. If a reader can recognise one,
    there are as many such groups as texts are wanted, or as there is room for. Return None if there are too few texts.
    """
    forgiven = _find_forgiven(rows)
    rng.shuffle(forgiven)
    for added in _find_sets(forgiven):
        rest = [[one for one in row if not one.rank and not _overlaps(one, added, gap=1)] for row in rows]
        recognised = any(feature.rank for feature in added)
        bases = min(count, (room if recognised else count) // (1 + len(added)))
        natural = 1 + sum(not feature.rank for feature in added)
        if len(added) > 1 and (bases < 2 or bases * natural < count // 2):
            continue
        corners = _corners(_choose_features(rest, rng, bases))
        if len(corners) < count // 2 - 1:
            formed = _draw_formed(added, rows, rng, min(count, room // (1 + len(added))))
            if formed is None:
                continue
            return formed
        rng.shuffle(corners)
        picked = [(), *corners[: bases - 1]]
        changes = [(), *([(feature, feature.edits[0])] for feature in added)]
        texts = [_text(corner) for corner in ([*base, *change] for base in picked for change in changes) if corner]
        rng.shuffle(texts)
        more = [_text(corner) for corner in corners[bases - 1 :]]
        return _choose_cover(texts, more, min(count, len(picked) * natural), len(texts) + 1)
    return None


def _draw_grid(rows: Sequence[Sequence[Feature]], rng: Random, count: int, room: int) -> Drawn | None:
    """Draw all combinations of some values of several statements.

    Work that is right but for one of them guesses among all values of this one. Each text also comes with one change of
    each kind that values may forgive: see `_draw_paired`. Return None if there are too few texts or statements.
    """
    forgiven = _find_forgiven(rows)
    rng.shuffle(forgiven)
    for added in [*_find_sets(forgiven)] or [[]]:
        forms: Forms = {}
        chosen = _choose_grid(rows, added, forms, rng, room // (1 + len(added)))
        effective = min(count, _size(chosen) * (1 + [feature.rank for feature in added].count(0)))
        if len(chosen) < 2 or effective < count // 2:
            continue
        played = [replace(feature, edits=feature.pick(rng), signs=()) for feature in chosen]
        corners = _corners(played)
        texts = [
            *map(_text, corners),
            *[_text_with(change, corner, forms) for corner in ((), *corners) for change in added],
        ]
        left = [
            [edit for edit in one.edits if edit not in used.edits] for one, used in zip(chosen, played, strict=True)
        ]
        spare = [(one, own or rng.choice([[], [*one.edits]])) for one, own in zip(chosen, left, strict=True)]
        more = [_text([(one, rng.choice(edits)) for one, edits in spare if edits])] if any(left) else []
        drawn = _choose_cover(rng.sample(texts, len(texts)), more, effective, len(texts) + 1)
        return _with_each_kind(drawn, rows, rng, room)
    return None


def _choose_grid(
    rows: Sequence[Sequence[Feature]], added: Sequence[Feature], forms: Forms, rng: Random, size: int
) -> list[Feature]:
    """Choose a feature of each of as many statements as possible. The values of a play multiply to `size` at most.

    `forms` gets each change with one of `added` made in it, if both are at the same place.
    """
    chosen: list[Feature] = []
    for row in rng.sample(rows, len(rows)):
        natural = [feature for feature in sorted(row, key=attrgetter("order")) if not feature.rank]
        found = (_with_forms(feature, added, forms, rng) for feature in natural)
        usable = (feature for feature in found if feature.edits and not _overlaps(feature, chosen, gap=1))
        chosen += itertools.islice(usable, 2 ** (len(chosen) + 1) <= size)
    while growing := [
        one for one in chosen if one.size <= len(one.edits) and _size(chosen) <= size - _size(chosen) // one.size
    ]:
        least = min(growing, key=attrgetter("most"))
        chosen[chosen.index(least)] = replace(least, most=least.most + 1)
    return chosen


def _with_forms(feature: Feature, added: Sequence[Feature], forms: Forms, rng: Random) -> Feature:
    """A feature with the changes in which all of `added` are possible, if they are at the same place."""
    kinds = [change.kind for change in added if _overlaps(feature, [change], gap=1)]
    usable = feature.kind not in FORGIVEN and (not kinds or feature.kind in FORMED)
    kept = []
    for place, edit in enumerate(feature.edits if usable else ()):
        made = _forms(edit, kinds, rng) if kinds else []
        forms.update(zip(zip(itertools.repeat(edit), kinds), made, strict=False))
        kept += [place] * (len(made) == len(kinds))
    signs = tuple([feature.signs[place] for place in kept if feature.signs])
    return replace(feature, edits=tuple(map(feature.edits.__getitem__, kept)), signs=signs, most=1)


def _text_with(change: Feature, corner: Sequence[tuple[Feature, TextEdit]], forms: Forms) -> Text:
    """A text with a change that values may forgive: in another value, if one stands at its place."""
    edits = [edit for _, edit in corner]
    formed = [forms.get((edit, change.kind), edit) for edit in edits]
    kinds = [*[feature.kind for feature, _ in corner], change.kind]
    return Text((*formed, *(change.edits if formed == edits else ())), tuple(dict.fromkeys(kinds)))


def _find_forgiven(rows: Sequence[Sequence[Feature]]) -> list[Feature]:
    return [feature for row in rows for feature in row if feature.kind in FORGIVEN]


def _find_sets(forgiven: Sequence[Feature]) -> Iterator[list[Feature]]:
    """Yield features to add together: the first one of each kind, then fewer kinds, then any one alone."""
    firsts = list({feature.kind: feature for feature in reversed(forgiven)}.values())
    for size in range(len(firsts), 1, -1):
        yield from map(list, itertools.combinations(firsts, size))
    yield from ([feature] for feature in forgiven)


def _with_each_kind(drawn: Drawn, rows: Sequence[Sequence[Feature]], rng: Random, count: int) -> Drawn:
    """Add a text of each forgiven change that no text has alone, in the place of others if there are too many.

    A product that forgives this change, and nothing else, passes no other text. A reader who sees that no two other
    texts differ by such a change knows that the original is one of the two.
    """
    played = drawn.texts
    alone = {text.kinds[0] for text in played if len(text.kinds) == 1}
    missing = {one.kind: Text(one.edits, (one.kind,)) for one in _find_forgiven(rows) if one.kind not in alone}
    if not missing or count < 4:
        return drawn
    mixed = [text for text in played if len(text.kinds) > 1 and not set(FORGIVEN).isdisjoint(text.kinds)]
    others = [text for text in played if text not in mixed]
    room = count - 1 - len(missing)
    texts = [*missing.values(), *[*others, *mixed][:room]]
    rng.shuffle(texts)
    return Drawn(tuple(texts), drawn.cover, max(1, drawn.effective - max(0, len(others) - room)))


def _draw_formed(added: Sequence[Feature], rows: Sequence[Sequence[Feature]], rng: Random, bases: int) -> Drawn | None:
    """Draw texts that have another word or value in place of one, each also with the forgiven changes, in itself."""
    others = [one for row in rows for one in row if one.kind in FORMED and all(_overlaps(one, [c]) for c in added)]
    others.sort(key=attrgetter("rank"))
    kinds = [feature.kind for feature in added]
    picked = others[0].pick(rng) if others else ()
    formed = [(edit, forms) for edit in picked if (forms := _forms(edit, kinds, rng))]
    if len(formed) < bases - 1:
        return None
    kind = others[0].kind
    formed = rng.sample(formed, len(formed))
    texts = [Text(feature.edits, (feature.kind,)) for feature in added]
    for edit, forms in formed[: bases - 1]:
        texts.append(Text((edit,), (kind,)))
        texts += [Text((form,), (kind, other)) for form, other in zip(forms, kinds, strict=True)]
    more = [Text((edit,), (kind,)) for edit, _ in formed[bases - 1 :]]
    return _choose_cover(rng.sample(texts, len(texts)), more, 1 if others[0].rank else bases, len(texts) + 1)


def _forms(edit: TextEdit, kinds: Sequence[str], rng: Random) -> list[TextEdit]:
    """A word or an expected value with a change of each kind alone; none if one of them is not possible."""
    if edit.text.isalpha():
        return [_swap_case(edit, rng)] if [*kinds] == ["near-case"] else []
    try:
        value = evaluate(edit.text)
    except (SyntaxError, ValueError):
        return []
    found = dict(_forgivable(edit, value, '"' if '"' in edit.text else "'", rng))
    return [found[kind] for kind in kinds if kind in found] if found.keys() >= set(kinds) else []


def _swap_case(edit: TextEdit, rng: Random) -> TextEdit:
    place = rng.randrange(len(edit.text))
    return edit._replace(text=edit.text[:place] + edit.text[place].swapcase() + edit.text[place + 1 :])


def _text(corner: Sequence[tuple[Feature, TextEdit]]) -> Text:
    features, edits = zip(*corner, strict=True)
    return Text(edits, tuple(dict.fromkeys(map(attrgetter("kind"), features))))


def neutral_edit(function: Function, source: Source, rng: Random) -> TextEdit | None:
    """Draw an edit without effect, so that a text cannot be compared with a known one. None if there is no place."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    if source.before(first).strip() or not isinstance(first, ast.Assign | ast.Assert | ast.Expr | ast.Return):
        return None
    start, _ = source.span(first)
    return TextEdit(start, start, f"{rng.choice(source.words)}_{rng.randint(2, 9)} = {rng.randint(2, 99)}; ")


# --- features -------------------------------------------------------------------------------------------------------


def _choose_features(rows: Sequence[Sequence[Feature]], rng: Random, count: int) -> list[Feature]:
    """Choose features whose values multiply to `count` or more, if the statements have as many.

    First come one of each statement, in random order, so that the place tells nothing; then more of the same
    statements; then opposites; then changes that a reader can recognise. Where the original fits better than all
    changes, others come first.
    """
    by_rank = [sorted(row, key=attrgetter("order")) for row in rows]
    by_rank.sort(key=lambda row: row[0].order if row else ())
    found = sorted(filter(None, itertools.chain(*itertools.zip_longest(*by_rank))), key=attrgetter("rank"))
    chosen: list[Feature] = []
    size = 1
    for feature in found:
        if size < count + (not feature.rank) and not _overlaps(feature, chosen):
            chosen.append(replace(feature, edits=feature.pick(rng), signs=()))
            size *= feature.size
    return chosen


class Candidates(NamedTuple):
    """What the texts of a function are chosen from.

    Attributes:
        wanted: What they were drawn for.
        rows: The statements.
        uses: Number of plays that used them.
    """

    wanted: tuple[object, ...]
    rows: list[Row]
    uses: int = 0


def _draw_rows(
    function: Function, source: Source, rng: Random, wanted: tuple[int, set[str], Returned, str], *, shares: bool
) -> list[tuple[int, list[Feature]]]:
    """Return the line of each statement and its features, in random order.

    A file keeps the candidates of one issue: thousands of tasks may share it.
    """
    key = (Candidates, function)
    known = source.findings.get(key)
    if not shares or not isinstance(known, Candidates) or known.uses >= POOL_USES or known.wanted != wanted:
        known = Candidates(wanted, list(_rows(function, source, rng, *wanted)))
    if shares:
        source.findings[key] = known._replace(uses=known.uses + 1)
    drawn = rng.sample(known.rows, len(known.rows))
    drawn.sort(key=itemgetter(0))
    return [(line, features) for _, line, features in drawn]


def _rows(
    function: Function,
    source: Source,
    rng: Random,
    count: int,
    unfit: Collection[str],
    returned: Returned,
    issue: str,
) -> Iterator[Row]:
    """Yield the rank and line of each statement, and its features, by one of its best changes."""
    found = [one for one in _ranked_changes(function, source) if one[-1].kind not in unfit]
    rng.shuffle(found)
    found.sort(key=itemgetter(0))
    language = Language(function, source, issue)
    seen = set()
    for rank, place, change in found:
        if place in seen:
            continue
        found_here = _of_result(change, function, language, rng, count + 1, returned)  # one more for the cover
        found_here = found_here or _of_change(change, function, language, rng, count + 1)
        row = [feature for feature in found_here if feature.kind not in unfit] if unfit else found_here
        if row:
            seen.add(place)
            yield rank, change.line, row[:MOST_FEATURES]


def _of_result(
    change: Change, function: Function, language: Language, rng: Random, count: int, returned: Returned
) -> list[Feature]:
    """The features of an expected value, given what wrong work returns; none if that does not help."""
    source = language.source
    if change.kind not in VALUED or change.line not in returned:
        return []
    on_line = [node for node in source.walk(function) if isinstance(node, ast.stmt) and node.lineno == change.line]
    expected = expected_value(function, source, on_line[0]) if len(on_line) == 1 else None  # else, whose result is it?
    if expected is None:
        return []
    right, wrong = map(ast.literal_eval, returned[change.line])
    span = source.span(expected)
    quote = '"' if '"' in source.text(*span) else "'"

    value = source.constant(source.text(*span))
    written_here, place = (language.inline(*span, value), source.span(value)) if value else (language, span)

    def measure(values: Sequence[Value]) -> list[Scores]:
        return written_here.measure(*place, write_values(values, quote))

    original, values = find_results(right, wrong, language, rng, count - 1, measure)
    plain = TextEdit(*span, written(right, quote))

    forgiven = [
        Feature(kind, (edit,), RECOGNISED, plain)
        for kind, edit in _forgivable(plain, right, quote, rng)
        if edit.text != written(wrong, quote)
    ]
    edits = tuple([TextEdit(*span, text) for text in write_values(map(itemgetter(1), values), quote)])
    if not edits:
        return []
    feature = Feature("near-result", edits, RECOGNISED if value else 0, plain)  # its definition holds the original
    return [_fit(feature, original, map(itemgetter(0), values), rng, count), *forgiven]


def _forgivable(plain: TextEdit, right: Value, quote: str, rng: Random) -> Iterator[tuple[str, TextEdit]]:
    """Yield the kind and text of values that differ by a case, a blank or the order."""
    places = _places(plain.text)
    for kind in ("near-case", "near-blank"):
        if found := [place for other, place in places if other == kind]:
            place = rng.choice(found)
            (edit,) = _at_place(kind, plain.text, place, 0, rng).edits
            yield kind, plain._replace(text=plain.text[:place] + edit.text + plain.text[place + 1 :])
    if isinstance(right, list | tuple) and len(right) > 1 and right[-1] != right[-2]:
        yield "near-order", plain._replace(text=written(type(right)([*right[:-2], right[-1], right[-2]]), quote))


@remembered
def _ranked_changes(function: Function, source: Source) -> list[tuple[int, tuple[int, int], Change]]:
    """All changes of a function, each with its rank and the span of its innermost statement."""
    found = changes(function, source)
    ranks = map(partial(_rank, source=source), found)
    spans = source.spans([node for node in source.walk(function)[1:] if isinstance(node, ast.stmt)])
    return list(zip(ranks, _find_innermost(spans, found), found, strict=True))


def _rank(change: Change, source: Source) -> int:
    """0 for a change that reads like another test, 1 for an opposite, from 2 on for one that a reader can recognise."""
    if change.kind not in NATURAL:
        return RANKS[change.kind]
    return int(change.kind == "comparison" or source.text(change.start, change.end) in ("True", "False", "None"))


def _find_innermost(statements: Sequence[tuple[int, int]], found: Iterable[Change]) -> list[tuple[int, int]]:
    """The span of the innermost statement of each change."""
    spans = []
    for change in found:
        inner, size = (change.start, change.end), sys.maxsize
        for start, end in statements:
            if start <= change.start <= end and end - start < size:
                inner, size = (start, end), end - start
        spans.append(inner)
    return spans


def _of_change(change: Change, function: Function, language: Language, rng: Random, count: int) -> list[Feature]:
    """The features of a statement: near ones if the change is of a literal, else several draws of the change."""
    source = language.source
    text = source.text(change.start, change.end)
    near: list[Feature] = []
    if change.kind in ("literal", "helper") and source.constant(text) is not None:
        near = _inline_constant(change, language, rng, count)
    elif change.kind in ("literal", "helper") and not _is_sought(function, source, change):
        near = _list_near(text, change.start, language, rng, count)
        siblings, ordered = _siblings(function, source, change)
        if ordered is not None:
            near.append(Feature("near-order", (ordered,)))
        for start, end in rng.sample(siblings, min(len(siblings), MOST_FEATURES)):
            near += _list_near(source.text(start, end), start, language, rng, count)
        near = _order_features(near)
    elif change.kind == "pattern":
        near = _list_near(text, change.start, language, rng, count) if PLAIN.fullmatch(text.strip("\"'")) else []
        near = [feature for feature in near if feature.kind != "near-word"]  # which right work may say too
    return near or _draw_far(change, text, language, rng, count)


def _draw_far(change: Change, text: str, language: Language, rng: Random, count: int) -> list[Feature]:
    """Several draws of a change as one feature. Exceptions and types come from all builtins."""
    rank = RECOGNISED if _appends(text) else min(RECOGNISED, _rank(change, language.source))
    first = change.edit(rng)
    names = _other_builtins(change, first, text)
    if names:
        edits = [first._replace(text=name) for name in names]
    else:
        edits = [first, *[change.edit(rng) for _ in range(count if rank else 4 * count)]]
    drawn = {edit.text: edit for edit in edits if edit.text != text}
    return _measure_edits(Feature(change.kind, tuple(drawn.values()), rank), language, rng, count)


def _measure_edits(feature: Feature, language: Language, rng: Random, count: int) -> list[Feature]:
    """The feature with what is known about the fit of its changes, of which a play has `count` less one."""
    if feature.rank or not feature.edits:
        return [replace(feature, most=count - 1)] if feature.edits else []
    start, end, _ = feature.edits[0]
    texts = [language.source.text(start, end), *[edit.text for edit in feature.edits]]
    original, *others = language.measure(start, end, texts)
    return [_fit(feature, original, others, rng, count)]


def _fit(feature: Feature, original: Scores, others: Iterable[Scores], rng: Random, count: int) -> Feature:
    """A feature whose changes are measured.

    If the original fits better than the changes of a play, a reader may recognise it, so other features come first.
    """
    signs = compare(original, others)
    told = share_told([signs[place] for place in choose_places(signs, rng, count - 1)])
    return replace(feature, most=count - 1, signs=tuple(signs), told=told)


def _inline_constant(change: Change, language: Language, rng: Random, count: int) -> list[Feature]:
    """The features of a constant whose value is written in place of its name."""
    source = language.source
    value = source.constant(source.text(change.start, change.end))
    assert value is not None
    parts, inlined = source.parts(value), language.inline(change.start, change.end, value)
    near: list[Feature] = []
    for part in rng.sample(parts, min(len(parts), MOST_FEATURES)):
        near += _list_near(source.text_of(part), source.span(part)[0], inlined, rng, count)
    found = []
    for feature in _order_features(near)[: 2 * MOST_FEATURES]:  # some may be unfit
        edits = [TextEdit(change.start, change.end, source.inlined(value, [edit])) for edit in feature.edits]
        found.append(replace(feature, edits=tuple(edits), rank=RECOGNISED))  # its definition holds the original
    return found


def _order_features(features: Sequence[Feature]) -> list[Feature]:
    """Order features: one of each kind before a second of any, and what products forgive before other letters."""
    seen: Counter[str] = Counter()
    keys = []
    for feature in features:
        keys.append((seen[feature.kind], feature.kind in ("near-letter", "near-digit")))
        seen[feature.kind] += 1
    return [features[number] for number in sorted(range(len(features)), key=keys.__getitem__)]


def _is_sought(function: Function, source: Source, change: Change) -> bool:
    """Whether a changed literal is looked for among other values."""
    return any([start <= change.start and change.end <= end for start, end in _seeking_spans(function, source)])


@remembered
def _seeking_spans(function: Function, source: Source) -> list[tuple[int, int]]:
    """The spans of the expressions that look for a value among others."""
    found = []
    for node in source.walk(function):
        if isinstance(node, ast.Compare):
            seeks = any([isinstance(operator, ast.In | ast.NotIn) for operator in node.ops])
        else:
            seeks = isinstance(node, ast.Call) and bool(SOUGHT.search(name_of(node)))
        if seeks and isinstance(node, ast.expr):
            found.append(source.span(node))
    return found


def _appends(text: str) -> bool:
    """Whether a text without letters that may change gets a word at its end."""
    bodies = [body for _, body in _find_plain_bodies(text)] if QUOTED.match(text) else []
    return bool(bodies) and not any(letters(body, 0) for body in bodies)


def _other_builtins(change: Change, drawn: TextEdit, text: str) -> list[str]:
    """The builtins that can stand for an exception or type that right work raises or returns; none for warnings."""
    known: dict[str, Mapping[str, type]] = {"exception": OTHER_EXCEPTIONS, "type": OTHER_TYPES}
    classes = known.get(change.kind)
    if classes is None or issubclass(getattr(builtins, drawn.text, Warning), Warning):
        return []
    return _find_unrelated(classes, text)  # `Exception` and `object` are related to all


def _find_unrelated(classes: Mapping[str, type], expected: str) -> list[str]:
    """The classes that right work does not satisfy, given the text of the expected one or of an abstract one."""
    left = dict(classes)
    for word in re.findall(r"\w+", expected):
        old = vars(builtins).get(word) or vars(abc).get(word) or vars(numbers).get(word)
        for name, new in classes.items():
            related = isinstance(old, type) and (issubclass(old, new) or issubclass(new, old))
            if related or word == name or (old is None and name in BASES):
                left.pop(name, None)
    return list(left)


# --- near changes ---------------------------------------------------------------------------------------------------


def _list_near(text: str, start: int, language: Language, rng: Random, count: int) -> list[Feature]:
    """The features of one literal: other numbers around it, or letters, digits and blanks of a string."""
    try:
        node = parse(text.strip(), "eval").body
    except (SyntaxError, ValueError):
        return []
    match node:
        case ast.Constant(value=bool()):
            return []
        case ast.Constant(value=int()) if text.isdigit() and len(text) < 15:
            numbers = [str(number) for number in _window(int(text), count)]
            numbers += _find_numbers(text, language, count)
        case ast.Constant(value=float(value)) if re.fullmatch(r"\d{1,12}\.\d{1,12}", text):
            numbers = _float_window(value, text, count)
        case ast.Constant(value=str() | bytes()) if text.isascii():
            return _in_string(text, start, language, rng, count)
        case _:
            return []
    edits = tuple([TextEdit(start, start + len(text), number) for number in dict.fromkeys(numbers)])
    return _measure_edits(Feature("near-number", edits), language, rng, count)


def _find_numbers(text: str, language: Language, count: int) -> list[str]:
    """Other numbers of the file and the issue with about as many digits, the nearest ones."""
    known = [number for number in language.known_numbers if abs(len(number) - len(text)) < 2]
    whole = [int(number) for number in known if number[0] != "0" or number == "0"]
    distances = sorted([(abs(number - int(text)), number) for number in whole])
    return [str(number) for distance, number in distances if distance][: MORE * count]


def _window(value: int, count: int) -> list[int]:
    """Other numbers as round as a value: the rest of the block of `count` that holds it.

    Each of them gets the same block, so the place in the block tells nothing.
    """
    step = 1
    while value and value % (10 * step) == 0:
        step *= 10
    first = value // step // count * count
    return [number for number in range(step * first, step * (first + count), step) if number != value]


def _float_window(value: float, text: str, count: int) -> list[str]:
    decimals = len(text.partition(".")[2])
    unit = max(10**-decimals, 10 ** (len(text.partition(".")[0]) - 3))  # a tolerance of 1e-6 does not reach it
    numbers = [number * unit for number in _window(round(value / unit), count)]
    shift = value - round(value / unit) * unit
    found = {f"{number + shift:.{decimals}f}" for number in numbers if number + shift >= 0}
    return sorted(found - {text})


def _in_string(text: str, start: int, language: Language, rng: Random, count: int) -> list[Feature]:
    """Words, numbers, letters, digits and blanks of a string, each a feature.

    Different kinds come first, and before all those that products forgive. A reader recognises another letter or case
    of a known word.
    """
    words: list[Feature] = []
    for word in _in_words(text, start, language, rng, count):
        if not _overlaps(word, words, gap=1):
            words.append(word)
    chosen: list[Feature] = []
    for word, places in itertools.zip_longest(words, _choose_places(text, rng)):
        chosen += [word] if word else []
        for kind, place in places or ():
            chosen += _measure_edits(_at_place(kind, text, place, start, rng), language, rng, count)
        if len(chosen) >= MOST_FEATURES:
            break
    return chosen[:MOST_FEATURES]


def _choose_places(text: str, rng: Random) -> list[list[tuple[str, int]]]:
    """Choose letters to change, none beside another one: first one of each kind, then a second one, and so on."""
    by_kind: dict[str, list[int]] = {"near-case": [], "near-blank": []}  # these first
    places = _places(text)
    rng.shuffle(places)
    for kind, place in places:
        by_kind.setdefault(kind, []).append(place)
    rounds: list[list[tuple[str, int]]] = []
    taken: set[int] = set()
    while any(by_kind.values()) and len(taken) < MOST_FEATURES:
        rounds.append([])
        for kind, left in by_kind.items():
            gap = int(kind not in FORGIVEN)
            while left:
                place = left.pop()
                if taken.isdisjoint(range(place - gap, place + gap + 1)):
                    taken.add(place)
                    rounds[-1].append((kind, place))
                    break
    return rounds


def _at_place(kind: str, text: str, place: int, start: int, rng: Random) -> Feature:
    """Another letter, digit or blank at a place of a string."""
    letter = text[place]
    match kind:
        case "near-digit":
            new = str((int(letter) + rng.choice((1, 9))) % 10)
        case "near-case":
            new = letter.swapcase()
        case "near-blank":
            new = rng.choice(("", "  "))
        case _:
            new = _draw_other_letter(letter, rng)
    edit = TextEdit(start + place, start + place + 1, new)
    return Feature(kind, (edit,), 2 if _is_in_word(text, place) else 0)


def _in_words(text: str, start: int, language: Language, rng: Random, count: int) -> list[Feature]:
    """Whole words and numbers of a string, each with others as values, and the string with others of the file."""
    found = []
    for at, body in _find_plain_bodies(text):
        words = list(CHANGED.finditer(FIXED.sub(lambda fixed: "\0" * len(fixed[0]), body)))
        for match in rng.sample(words, min(len(words), MOST_FEATURES)):
            place = start + at + match.start()
            others = _find_other_words(match[0], place, language, rng, count)
            edits = tuple([TextEdit(place, place + len(match[0]), other) for other in others])
            if edits:
                found += _measure_edits(Feature("near-word", edits), language, rng, count)
        found += _in_whole(body, start + at, language, rng, count)
    rng.shuffle(found)
    found.sort(key=attrgetter("order"))
    return found


def _in_whole(body: str, start: int, language: Language, rng: Random, count: int) -> list[Feature]:
    """A string with others of the file and the issue that are made alike as values."""
    own = sorted(filter(str.isalnum, body.lower()))
    others = [
        other
        for other in language.alike(body)
        if len(other) <= 2 * len(body) + 4
        and not set(other) & set("\\'\"{}%\n")
        and sorted(filter(str.isalnum, other.lower())) != own
    ]
    if len(others) < 2 or not body.isascii() or FIXED.search(body):
        return []
    edits = tuple([TextEdit(start, start + len(body), other) for other in others if other.isascii()])
    return _measure_edits(Feature("near-word", edits), language, rng, count)


def _find_other_words(word: str, place: int, language: Language, rng: Random, count: int) -> list[str]:
    """Words or numbers in place of one: those that stand elsewhere beside its neighbours, and random ones."""
    if len(word) == 1 and word.isalpha():
        return [letter for letter in string.ascii_lowercase if letter != word]
    beside = language.neighbours(place, place + len(word))
    if not word.isdigit():
        known = [other for other in language.known_words if re.fullmatch("[a-z]{3,12}", other)]
        others = [other for other in beside if other in known]
        others += rng.sample(known, min(len(known), MORE * count))
        others += [other for other in language.own_words if other in known]
        others = [other for other in dict.fromkeys(others) if other != word and not keyword.iskeyword(other)]
        if (missing := count - 1 - len(others)) > 0:  # a short file
            others += rng.sample([name for name in MODULES if name != word and name not in others], missing)
        return others
    numbers = [str(number) for number in _window(int(word), count)]
    numbers += [other for other in beside if other.isdecimal() and other.isascii() and len(other) <= 6]
    numbers += _find_numbers(word, language, count)
    if len(word) > 1 and word[0] == "0":
        numbers = [number.zfill(len(word)) for number in numbers if len(number) <= len(word)]
    return [number for number in dict.fromkeys(numbers) if int(number) != int(word)]


def _find_plain_bodies(text: str) -> list[tuple[int, str]]:
    """The content of each string literal without raw or formatted ones, with its position."""
    found = []
    for at, token in strings(text):
        match = QUOTED.match(token)
        if match and not {"r", "f"} & set(match["prefix"].lower()):
            found.append((at + match.start("body"), match["body"]))
    return found


def _is_in_word(text: str, place: int) -> bool:
    """Whether a letter belongs to a word, or a blank lies between two words."""
    return bool(
        re.search("[A-Za-z]{2}$", text[max(0, place - 2) : place]) or re.match("[A-Za-z]{2}", text[place + 1 :])
    )


def _places(text: str) -> list[tuple[str, int]]:
    """The letters of a string that can change, each with the kind of its change."""
    found: list[tuple[str, int]] = []
    for base, body in _find_plain_bodies(text):
        changing = letters(body, base)
        for place in changing:
            kinds = ("near-digit",) if text[place].isdigit() else ("near-case", "near-letter")
            found += zip(kinds, itertools.repeat(place))
        for blank in re.finditer(r"(?<=\w) (?=\w)", body):
            if {base + blank.start() - 1, base + blank.end()} <= {*changing}:  # not as in "\N{EN DASH}"
                found.append(("near-blank", base + blank.start()))
    return found


def _draw_other_letter(letter: str, rng: Random) -> str:
    """Another vowel for a vowel, another consonant for a consonant, in the same case."""
    near = "aeiou" if letter.lower() in "aeiou" else "nrstlmdc"
    other = rng.choice(near.replace(letter.lower(), ""))
    return other.upper() if letter.isupper() else other


def _siblings(function: Function, source: Source, change: Change) -> tuple[list[tuple[int, int]], TextEdit | None]:
    """The other constants of the display or call that holds a changed literal, and an edit that swaps two of them.

    The order of a set, and of what a call or an assertion compares without order, is not changed.
    """
    place = (change.start, change.end)
    for node, spans, in_order in _displays(function, source):
        if place not in spans:
            continue
        others = [span for span in spans if span != place]
        if isinstance(node, ast.Call):
            return others, None
        if not in_order:
            return [], None  # two changed elements may trade places
        if isinstance(node, ast.Dict) or not others:
            return others, None
        (first, end), (begin, last) = spans[-2:]
        one, other = source.text(first, end), source.text(begin, last)
        return others, TextEdit(first, last, other + source.text(end, begin) + one) if one != other else None
    return [], None


@remembered
def _displays(function: Function, source: Source) -> list[tuple[ast.AST, list[tuple[int, int]], bool]]:
    """The displays and calls of a function, the spans of their constants, and whether the order of these matters."""
    found: list[tuple[ast.AST, list[tuple[int, int]], bool]] = []
    for node in source.walk(function):
        match node:
            case ast.Call(func=ast.Name()):
                parts: Sequence[ast.expr | None] = source.find_combined(node)
            case ast.Dict():
                parts = node.values
            case ast.List() | ast.Tuple() | ast.Set():
                parts = node.elts
            case _:
                continue
        spans = [source.span(part) for part in parts if isinstance(part, ast.Constant)]
        ordered = isinstance(node, ast.List | ast.Tuple) and _is_ordered(function, node, source)
        if spans:
            found.append((node, spans, ordered or isinstance(node, ast.Dict)))
    return found


def _is_ordered(function: Function, display: ast.expr, source: Source) -> bool:
    """Whether a list or tuple is a whole side of an equation, so that its order matters."""
    for node in source.walk(function):
        match node:
            case ast.Compare(ops=[ast.Eq()]) if display in (node.left, *node.comparators):
                return True
            case ast.Call(func=ast.Attribute(attr="assertEqual" | "assertListEqual" | "assertSequenceEqual")):
                if display in node.args[:2]:
                    return True
    return False


# --- corners --------------------------------------------------------------------------------------------------------


def _size(features: Sequence[Feature]) -> int:
    size = 1
    for feature in features:
        size *= feature.size
    return size


def _corners(features: Sequence[Feature]) -> list[tuple[tuple[Feature, TextEdit], ...]]:
    """Return all texts that take one value of each feature, without the original."""
    values = [[None, *zip(itertools.repeat(feature), feature.edits)] for feature in features]
    _, *corners = itertools.product(*values)
    return [tuple(filter(None, corner)) for corner in corners]


def _overlaps(feature: Feature, others: Sequence[Feature], gap: int = 0) -> bool:
    for other in others:
        for start, end, _ in other.edits:
            for first, last, _ in feature.edits:
                if (first < end + gap and start < last + gap) or (first, last) == (start, end):
                    return True
    return False
