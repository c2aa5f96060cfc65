"""The table of operators. The parser, the evaluator and the printer all go by it."""

import operator
from typing import Any, Callable, NamedTuple


class Operator(NamedTuple):
    """A binary operator. Those of higher precedence bind tighter."""

    symbol: str
    precedence: int
    apply: Callable[[Any, Any], Any]


BINARY = {
    entry.symbol: entry
    for entry in (
        Operator("+", 10, operator.add),
        Operator("-", 10, operator.sub),
        Operator("*", 20, operator.mul),
        Operator("/", 20, operator.truediv),
        Operator("%", 20, operator.mod),
        Operator("**", 30, operator.pow),
    )
}

#: Signs in front of an operand.
PREFIX = {"-": operator.neg, "+": operator.pos}
PREFIX_PRECEDENCE = 40
