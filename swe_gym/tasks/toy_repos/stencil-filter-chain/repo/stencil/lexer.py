"""Templates to pieces: text, placeholders and tags; and the inside of those to words."""

import re
from typing import NamedTuple

from .errors import TemplateError

_PIECES = re.compile(r"\{\{(?P<print>.*?)\}\}|\{%(?P<tag>.*?)%\}", re.DOTALL)
_WORDS = re.compile(r"\s*(?:(?P<name>[A-Za-z_][\w.]*)|(?P<number>-?\d+)|'(?P<text>[^']*)'|(?P<symbol>[|(),]))")


class Piece(NamedTuple):
    """A part of a template: its kind ("text", "print" or "tag"), what is in it, and its line."""

    kind: str
    content: str
    line: int


class Word(NamedTuple):
    """A word in a placeholder: its kind ("name", "number", "text", "symbol" or "end") and its text."""

    kind: str
    text: str


def split(template):
    """The pieces of a template, in order."""
    position = 0
    line = 1
    for found in _PIECES.finditer(template):
        text = template[position : found.start()]
        if text:
            yield Piece("text", text, line)
            line += text.count("\n")
        yield Piece(found.lastgroup, found.group(found.lastgroup).strip(), line)
        line += found.group().count("\n")
        position = found.end()
    if position < len(template):
        yield Piece("text", template[position:], line)


def words(piece):
    """The words in a placeholder, closed by one of kind "end"."""
    result = []
    position = 0
    while position < len(piece.content):
        found = _WORDS.match(piece.content, position)
        if found is None:
            raise TemplateError("cannot read {!r}".format(piece.content[position:].strip()), piece.line)
        result.append(Word(found.lastgroup, found.group(found.lastgroup)))
        position = found.end()
    result.append(Word("end", ""))
    return result
