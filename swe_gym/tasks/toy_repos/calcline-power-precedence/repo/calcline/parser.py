"""Tokens to tree, by precedence climbing."""

from .errors import CalcError
from .nodes import Binary, Call, Name, Number, Prefix
from .operators import BINARY, PREFIX, PREFIX_PRECEDENCE
from .tokens import tokenize


def parse(text):
    """The tree of the expression `text`.

    Raises:
        CalcError: The text is not an expression; the message names the column.
    """
    parser = _Parser(tokenize(text))
    tree = parser.expression(0)
    parser.expect_end()
    return tree


class _Parser:
    def __init__(self, tokens):
        self._tokens = tokens
        self._index = 0

    @property
    def _current(self):
        return self._tokens[self._index]

    def _advance(self):
        token = self._current
        self._index += 1
        return token

    def expression(self, minimum):
        """An operand and all operators after it that bind tighter than `minimum`."""
        left = self._operand()
        while True:
            operator = BINARY.get(self._current.text)
            if operator is None or operator.precedence <= minimum:
                return left
            self._advance()
            left = Binary(operator.symbol, left, self.expression(operator.precedence))

    def _operand(self):
        token = self._advance()
        if token.kind == "number":
            return Number(float(token.text) if "." in token.text else int(token.text))
        if token.kind == "name":
            return self._name_or_call(token)
        if token.text in PREFIX:
            return Prefix(token.text, self.expression(PREFIX_PRECEDENCE))
        if token.text == "(":
            inner = self.expression(0)
            self._expect(")")
            return inner
        raise self._unexpected(token)

    def _name_or_call(self, token):
        if self._current.text != "(":
            return Name(token.text)
        self._advance()
        arguments = [self.expression(0)]
        while self._current.text == ",":
            self._advance()
            arguments.append(self.expression(0))
        self._expect(")")
        return Call(token.text, tuple(arguments))

    def _expect(self, text):
        token = self._advance()
        if token.text != text:
            raise self._unexpected(token)

    def expect_end(self):
        """Raise unless all tokens are used up."""
        if self._current.kind != "end":
            raise self._unexpected(self._current)

    @staticmethod
    def _unexpected(token):
        if token.kind == "end":
            return CalcError("the expression ends too early")
        return CalcError("unexpected {!r} at column {}".format(token.text, token.position + 1))
