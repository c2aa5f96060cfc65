"""Draws another literal of the same type and about the same size that no right result equals.

Only characters of one literal change, without a marker or a fixed formula: code that reads the changed test cannot tell
it from one that a person wrote.
"""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from random import Random

from ...syntax import parse
from .source import name_of

BUILTINS = frozenset({"set", "frozenset", "list", "tuple", "dict", "str", "bytes"})
LIBRARY = frozenset(
    {"array", "asarray", "Decimal", "Fraction", "dedent", "OrderedDict", "Series", "Index", "DataFrame"}
    | {"Path", "deque"}
)
"""Functions whose result differs if their first argument differs. Methods of that name are the product's."""

TEXT_METHODS = frozenset({"format", "encode", "decode", "strip"})
"""Methods of a literal text whose result differs if the text differs."""

FIXED = re.compile(
    r"\\(?:N\{[^}]*\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)"
    r"|%(?:\(\w*\))?[-#0 +]*[\d.*]*[a-zA-Z%]"
    r"|\{[\w.\[\]]*(?:![rsa])?(?::(?:[^{}]|\{[^{}]*+\})*+)?\}",
    re.DOTALL,
)
"""Parts of a text that must not change: escapes and placeholders. Braces around quotes are data, such as a `repr`."""

FIXED_IN_F = re.compile(FIXED.pattern + r"|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}", re.DOTALL)
"""The same for f-strings, whose braces hold any expression."""

QUOTED = re.compile(r"(?P<prefix>[A-Za-z]*)(?P<quote>'''|\"\"\"|'|\")(?P<body>.*)(?P=quote)", re.DOTALL)
CLASSES = ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789")
LARGEST_INT = 10**300
CHANGING = frozenset("".join(CLASSES))


def changeable(node: ast.expr) -> ast.expr | None:
    """Return the literal whose change changes an expression's value, the last of a container; None without any."""
    match node:
        case ast.Constant():
            return None if node.value is Ellipsis else node
        case ast.JoinedStr():
            return node
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant()):
            return node.operand
        case ast.List() | ast.Tuple() | ast.Set():
            return _find_last(node.elts) or node
        case ast.Dict():
            return _find_last(node.values) or node
        case ast.BinOp(op=ast.Add()):
            return _find_simple(node.right) or _find_simple(node.left)
        case ast.BinOp(left=ast.JoinedStr() | ast.Constant(value=str() | bytes()) as text, op=ast.Mod()):
            return text
        case ast.Call():
            return _in_call(node)
    return None


def _in_call(call: ast.Call) -> ast.expr | None:
    """The literal whose change changes the result of a call; None for calls of the product."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Constant() as text, attr=name)) if name in TEXT_METHODS:
            return text
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.List() | ast.Tuple() as parts]):
            return changeable(parts)
        case ast.Call(args=[first], keywords=[]) if name_of(call) == "approx":  # with the usual tolerance
            return changeable(first)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in BUILTINS | LIBRARY:
            return changeable(first)
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr=name), args=[first, *_]) if name in LIBRARY:
            return changeable(first)  # `np.array`
    return None


def _find_last(elements: Sequence[ast.expr]) -> ast.expr | None:
    return next(filter(None, map(changeable, reversed(elements))), None)


def _find_simple(node: ast.expr) -> ast.expr | None:
    """A part of a sum whose change changes the sum."""
    found = changeable(node)
    return None if isinstance(found, ast.Constant) and found.value is None else found


def draw_other_literal(node: ast.expr, text: str, words: Sequence[str], rng: Random) -> str:
    """Return the text of a literal that differs from one that `changeable` found.

    Args:
        node: The literal.
        text: Its source text.
        words: Words for a new text.
        rng: Random number generator.
    """
    if isinstance(node, ast.Constant):
        value = node.value
        if value is None or isinstance(value, bool):
            return any_number(rng) if value is None else str(not value)
        if isinstance(value, int | float | complex):
            return draw_other_number(value, text, rng)
        return draw_other_text(text, words, rng)
    if isinstance(node, ast.JoinedStr):
        return draw_other_text(text, words, rng)
    return _longer(node, text, words, rng)


def any_number(rng: Random) -> str:
    """Return a number that no test expects: large enough to be nobody's result, small enough to look like one."""
    return str(rng.randint(10 ** rng.randint(3, 4), 99_999))


def draw_other_number(value: int | float | complex, text: str, rng: Random) -> str:
    """Return a number of the same kind, farther away than a tolerance reaches."""
    if isinstance(value, complex):
        return draw_other_number(abs(value), text.rstrip("jJ"), rng) + "j"
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return any_number(rng)
    if isinstance(value, int):
        new = value + rng.randint(max(2, -(-value * 6 // 10)), max(9, 2 * value))
        bases = {"0x": "#x", "0o": "#o", "0b": "#b"}
        return format(new, bases.get(text[:2].lower(), "d"))
    if abs(value) > 1e300:
        return repr(rng.uniform(2, 9) * 1e299)
    far = value + max(abs(value), 1.0) * rng.uniform(0.7, 2.1)
    decimals = len(text.partition(".")[2].rstrip("0")) or 1
    return f"{far:.{decimals}f}" if "e" not in text.lower() and decimals < 17 else repr(far)


def draw_other_text(text: str, words: Sequence[str], rng: Random) -> str:
    """Return a string with one or two letters or digits changed, or with a word at its end if it has none.

    Args:
        text: A string literal in source form: prefixes, quotes, several parts.
        words: Words to choose from.
        rng: Random number generator.
    """
    places = _changing_places(text)
    if not places:
        start, body = _bodies(text)[-1]
        end = start + len(body)
        return text[:end] + rng.choice(words) + text[end:]
    changed = list(text)
    for place in rng.sample(places, min(len(places), rng.randint(1, 2))):
        kind = next(kind for kind in CLASSES if text[place] in kind)
        changed[place] = rng.choice(kind.replace(text[place], ""))
    return "".join(changed)


@functools.lru_cache(maxsize=1024)
def _changing_places(text: str) -> tuple[int, ...]:
    """The positions of letters and digits of a string literal that may change."""
    fixed = FIXED_IN_F if any(map(_is_formatted, strings(text))) else FIXED
    return tuple([place for start, body in _bodies(text) for place in letters(body, start, fixed)])


def draw_whole_other_text(text: str, words: Sequence[str], rng: Random) -> str:
    """Return a string literal of other words: for patterns, and for texts that a longer one must not contain."""
    prefix = "b" if "b" in (QUOTED.match(text) or {"prefix": ""})["prefix"].lower() else ""
    joined = (" " if " " in text else "_").join(rng.choices(words, k=4))
    return f'{prefix}"{joined}"'


def _bodies(text: str) -> list[tuple[int, str]]:
    """The content of each part of a string literal, with its position."""
    found = []
    for start, token in strings(text):
        match = QUOTED.match(token)
        if match:
            found.append((start + match.start("body"), match["body"]))
    return found or [(len(text), "")]


@functools.lru_cache(maxsize=1024)
def strings(text: str) -> tuple[tuple[int, str], ...]:
    """The string tokens of an expression, with their positions; an f-string counts as one."""
    return tuple(_find_strings(text))


def _find_strings(text: str) -> Iterator[tuple[int, str]]:
    wrapped = f"({text}\n)"
    starts = [0]
    for line in wrapped.split("\n"):  # only this character ends a line: a form feed in a text does not
        starts.append(starts[-1] + len(line) + 1)
    begin = 0
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
        start, end = starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # Python 3.12 and newer tokenize f-strings
            depth += 1
            begin = start if depth == 1 else begin
        elif name == "FSTRING_END":
            depth -= 1
        if (name == "STRING" and not depth) or (name == "FSTRING_END" and not depth):
            start = begin if name == "FSTRING_END" else start
            yield start - 1, wrapped[start:end]


def letters(body: str, start: int, fixed: re.Pattern[str] = FIXED) -> list[int]:
    """The positions of letters and digits that may change."""
    plain = fixed.sub(lambda match: " " * len(match[0]), body)
    return [start + place for place, letter in enumerate(plain) if letter in CHANGING]


def _is_formatted(found: tuple[int, str]) -> bool:
    """Whether a string token is an f-string."""
    match = QUOTED.match(found[1])
    return match is not None and "f" in match["prefix"].lower()


def _longer(node: ast.expr, text: str, words: Sequence[str], rng: Random) -> str:
    """A container without a literal, with one more element."""
    number = any_number(rng)
    if isinstance(node, ast.Dict):
        element = f'"{rng.choice(words)}": {number}'
    else:
        element = number
    inner = text[:-1].rstrip()
    closing = text[-1:]
    if closing not in (")", "]", "}") or not text.startswith(("(", "[", "{")):
        return f"{text}, {element}"  # a tuple without parentheses
    filled = bool(node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ()))
    for glue in (", ", " "):  # there may be a comma, and a comment after it
        longer = f"{text[:-1]}{glue if filled else ''}{element}{',' if isinstance(node, ast.Tuple) else ''}{closing}"
        try:
            parse(f"({longer})")
        except SyntaxError:
            continue
        return longer
    return f"{inner}{closing}"
