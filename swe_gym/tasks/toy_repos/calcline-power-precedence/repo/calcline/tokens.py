"""Text to tokens."""

import re
from typing import NamedTuple

from .errors import CalcError

_PATTERN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*|\.\d+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>\*\*|[-+*/%(),]))"
)


class Token(NamedTuple):
    """One token: its kind ("number", "name", "symbol" or "end"), its text and where it starts."""

    kind: str
    text: str
    position: int


def tokenize(text):
    """The list of tokens of `text`, closed by one of kind "end"."""
    tokens = []
    text = text.rstrip()
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise CalcError("unexpected character {!r} at column {}".format(text[position:].strip()[0], position + 1))
        tokens.append(Token(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup)))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens
