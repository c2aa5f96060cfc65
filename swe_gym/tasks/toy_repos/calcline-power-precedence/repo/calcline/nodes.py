"""The expression tree. Nodes are plain tuples: they compare by value and cannot change."""

from typing import Any, NamedTuple, Tuple, Union


class Number(NamedTuple):
    """A literal, an int or a float."""

    value: Union[int, float]


class Name(NamedTuple):
    """A variable or a constant."""

    name: str


class Prefix(NamedTuple):
    """A sign and its operand."""

    symbol: str
    operand: Any


class Binary(NamedTuple):
    """An operator between two operands."""

    symbol: str
    left: Any
    right: Any


class Call(NamedTuple):
    """A function and its arguments."""

    function: str
    arguments: Tuple[Any, ...]
