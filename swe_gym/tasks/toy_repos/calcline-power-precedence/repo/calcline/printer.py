"""Tree to text, with as few parentheses as possible."""

from .nodes import Binary, Call, Name, Number, Prefix
from .operators import BINARY, PREFIX_PRECEDENCE
from .parser import parse

_ATOM = 100


def format_expression(expression):
    """The expression (text or tree) in canonical form."""
    return _text(parse(expression) if isinstance(expression, str) else expression)


def _text(node):
    if isinstance(node, Number):
        return repr(node.value)
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Call):
        return "{}({})".format(node.function, ", ".join(_text(argument) for argument in node.arguments))
    if isinstance(node, Prefix):
        return node.symbol + _wrapped(node.operand, _precedence(node.operand) < PREFIX_PRECEDENCE)
    precedence = BINARY[node.symbol].precedence
    left = _wrapped(node.left, _precedence(node.left) < precedence)
    right = _wrapped(node.right, _precedence(node.right) <= precedence)
    return "{} {} {}".format(left, node.symbol, right)


def _wrapped(node, needed):
    return "({})".format(_text(node)) if needed else _text(node)


def _precedence(node):
    if isinstance(node, Binary):
        return BINARY[node.symbol].precedence
    return PREFIX_PRECEDENCE if isinstance(node, Prefix) else _ATOM
