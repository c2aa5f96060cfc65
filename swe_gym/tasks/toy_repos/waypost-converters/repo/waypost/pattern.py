"""Path patterns, such as "/users/<name>": matching paths and building them."""

import re
from urllib.parse import quote, unquote

from .errors import BuildError, PatternError

_PLACEHOLDER = re.compile(r"<([^<>]*)>")
_NAME = re.compile(r"[A-Za-z_]\w*")


class Pattern:
    """A path in which some segments are left open.

    Args:
        text: The path; what stands in angle brackets is a placeholder.
    """

    def __init__(self, text):
        if not text.startswith("/"):
            raise PatternError("{!r} does not start with a slash".format(text))
        self.text = text
        self._parts = _parse(text)
        self._regex = re.compile("".join(_regex_of(part) for part in self._parts))

    @property
    def names(self):
        """The names of the placeholders, from left to right."""
        return [part.name for part in self._parts if isinstance(part, _Placeholder)]

    def match(self, path):
        """The values of the placeholders as a dict if the whole path fits, else None."""
        found = self._regex.fullmatch(path)
        if found is None:
            return None
        return {name: unquote(value) for name, value in found.groupdict().items()}

    def build(self, values):
        """The path with `values` in the place of the placeholders.

        Raises:
            BuildError: A value is missing, or there is one too many.
        """
        unknown = set(values) - set(self.names)
        if unknown:
            raise BuildError("{!r} has no placeholder {!r}".format(self.text, min(unknown)))
        pieces = []
        for part in self._parts:
            if isinstance(part, _Placeholder):
                if part.name not in values:
                    raise BuildError("{!r} needs a value for {!r}".format(self.text, part.name))
                pieces.append(quote(str(values[part.name]), safe=""))
            else:
                pieces.append(part)
        return "".join(pieces)


class _Placeholder:
    def __init__(self, name):
        self.name = name


def _parse(text):
    """The pattern as a list of plain texts and placeholders."""
    parts = []
    names = set()
    position = 0
    for found in _PLACEHOLDER.finditer(text):
        parts.append(text[position : found.start()])
        name = found.group(1)
        if not _NAME.fullmatch(name):
            raise PatternError("bad placeholder {!r} in {!r}".format(found.group(), text))
        if name in names:
            raise PatternError("{!r} has two placeholders {!r}".format(text, name))
        names.add(name)
        parts.append(_Placeholder(name))
        position = found.end()
    parts.append(text[position:])
    return parts


def _regex_of(part):
    if isinstance(part, _Placeholder):
        return "(?P<{}>[^/]+)".format(part.name)
    return re.escape(part)
