"""The parts of a compiled template. Each appends its text to a list."""

import html

from .filters import Safe, text


class Text:
    """Text that is printed as it is."""

    def __init__(self, content):
        self.content = content

    def render(self, context, out):
        """Append the text."""
        out.append(self.content)


class Print:
    """A placeholder."""

    def __init__(self, expression):
        self.expression = expression

    def render(self, context, out):
        """Append the value, escaped unless it is safe."""
        value = self.expression(context)
        out.append(value if isinstance(value, Safe) else html.escape(text(value)))


class If:
    """One of two bodies."""

    def __init__(self, expression):
        self.expression = expression
        self.body = []
        self.otherwise = []

    def render(self, context, out):
        """Append the body that the condition chooses."""
        for node in self.body if self.expression(context) else self.otherwise:
            node.render(context, out)


class For:
    """A body for each item."""

    def __init__(self, name, expression):
        self.name = name
        self.expression = expression
        self.body = []

    def render(self, context, out):
        """Append the body as often as there are items."""
        for index, item in enumerate(self.expression(context) or (), start=1):
            context.push({self.name: item, "loop": {"index": index}})
            for node in self.body:
                node.render(context, out)
            context.pop()
