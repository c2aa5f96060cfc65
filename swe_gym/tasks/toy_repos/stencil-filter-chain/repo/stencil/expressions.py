"""What stands in a placeholder, compiled to a function of the context."""

from .errors import TemplateError
from .lexer import words


def compile_expression(piece, filters):
    """A function that takes the context and gives the value of the placeholder.

    Args:
        piece: The piece of the template, for its text and its line.
        filters: The filters by name.
    """
    reader = _Reader(piece)
    source = reader.operand()
    steps = []
    while reader.take("|"):
        name, arguments = reader.filter_call()
        if name not in filters:
            raise TemplateError("there is no filter {!r}".format(name), piece.line)
        function = filters[name]
        steps.append(lambda value, context: function(value, *(argument(context) for argument in arguments)))
    reader.expect_end()

    def evaluate(context):
        value = source(context)
        for step in steps:
            value = step(value, context)
        return value

    return evaluate


class _Reader:
    """Reads the words of one placeholder from left to right."""

    def __init__(self, piece):
        self._piece = piece
        self._words = words(piece)
        self._index = 0

    def _next(self):
        word = self._words[self._index]
        self._index += 1
        return word

    def take(self, symbol):
        """Whether the next word is this symbol; if so it is used up."""
        word = self._words[self._index]
        if word.kind == "symbol" and word.text == symbol:
            self._index += 1
            return True
        return False

    def operand(self):
        """A name, a number or a text, as a function of the context."""
        word = self._next()
        if word.kind == "name":
            return lambda context: context.lookup(word.text)
        if word.kind == "number":
            return lambda context: int(word.text)
        if word.kind == "text":
            return lambda context: word.text
        raise self._unexpected(word)

    def filter_call(self):
        """The name of a filter and its arguments."""
        word = self._next()
        if word.kind != "name":
            raise self._unexpected(word)
        arguments = []
        if self.take("("):
            arguments.append(self.operand())
            while self.take(","):
                arguments.append(self.operand())
            if not self.take(")"):
                raise self._unexpected(self._next())
        return word.text, arguments

    def expect_end(self):
        """Raise unless all words are used up."""
        word = self._next()
        if word.kind != "end":
            raise self._unexpected(word)

    def _unexpected(self, word):
        what = "the end" if word.kind == "end" else repr(word.text)
        return TemplateError("unexpected {} in {!r}".format(what, self._piece.content), self._piece.line)
