"""Environments know the filters and make templates."""

import re

from .context import Context
from .errors import TemplateError
from .expressions import compile_expression
from .filters import BUILT_IN
from .lexer import split
from .nodes import For, If, Print, Text

_FOR = re.compile(r"for\s+([A-Za-z_]\w*)\s+in\s+(.+)", re.DOTALL)
_IF = re.compile(r"if\s+(.+)", re.DOTALL)


class Template:
    """A compiled template. It can be rendered many times."""

    def __init__(self, nodes):
        self._nodes = nodes

    def render(self, variables):
        """The text of the template, with a mapping of variables."""
        out = []
        context = Context(variables)
        for node in self._nodes:
            node.render(context, out)
        return "".join(out)


class Environment:
    """What templates can use.

    Args:
        filters: Functions by name, beside or instead of the built-in filters.
    """

    def __init__(self, filters=None):
        self.filters = {**BUILT_IN, **(filters or {})}

    def template(self, text):
        """Compile a template.

        Raises:
            TemplateError: It makes no sense.
        """
        root = []
        bodies = [root]  # where the nodes go: the innermost open tag is the last
        tags = []
        for piece in split(text):
            if piece.kind == "text":
                bodies[-1].append(Text(piece.content))
            elif piece.kind == "print":
                bodies[-1].append(Print(compile_expression(piece, self.filters)))
            elif piece.content == "end" and tags:
                tags.pop()
                bodies.pop()
            elif piece.content == "else" and tags and isinstance(tags[-1], If):
                bodies[-1] = tags[-1].otherwise
            else:
                node = self._tag(piece)
                bodies[-1].append(node)
                tags.append(node)
                bodies.append(node.body)
        if tags:
            raise TemplateError("a tag is not closed with {% end %}", text.count("\n") + 1)
        return Template(root)

    def _tag(self, piece):
        found = _FOR.fullmatch(piece.content)
        if found:
            return For(found.group(1), compile_expression(piece._replace(content=found.group(2)), self.filters))
        found = _IF.fullmatch(piece.content)
        if found:
            return If(compile_expression(piece._replace(content=found.group(1)), self.filters))
        raise TemplateError("unknown tag {!r}".format(piece.content), piece.line)
