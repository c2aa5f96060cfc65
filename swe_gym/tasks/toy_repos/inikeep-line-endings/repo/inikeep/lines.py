"""Single lines."""

import re
from typing import NamedTuple

from .errors import ParseError

_SECTION = re.compile(r"\s*\[(?P<name>[^\]]+)\]\s*")
_OPTION = re.compile(r"(?P<before>\s*(?P<name>[^\s=:;#\[][^=:]*?)\s*[=:]\s*)(?P<value>.*?)(?P<after>\s*)")


class Line(NamedTuple):
    """One line of a file.

    Attributes:
        kind: "other", "section" or "option".
        text: The line as it stands in the file.
        name: Of the section or option, in small letters.
        value: Of the option.
    """

    kind: str
    text: str
    name: str = ""
    value: str = ""

    def with_value(self, value):
        """The line with another value and the same spacing."""
        match = _OPTION.fullmatch(self.text)
        return self._replace(text=match.group("before") + value + match.group("after"), value=value)


def read_line(text, number=1):
    """What the text of a line means. The number is for the message if it means nothing."""
    stripped = text.strip()
    if not stripped or stripped[0] in ";#":
        return Line("other", text)
    match = _SECTION.fullmatch(text)
    if match:
        return Line("section", text, match.group("name").strip().lower())
    match = _OPTION.fullmatch(text)
    if match:
        return Line("option", text, match.group("name").lower(), match.group("value"))
    raise ParseError(number, stripped)
