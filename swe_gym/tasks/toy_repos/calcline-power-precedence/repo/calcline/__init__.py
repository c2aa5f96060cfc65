"""A calculator for one line of arithmetic."""

from .errors import CalcError
from .evaluator import evaluate_tree
from .parser import parse
from .printer import format_expression

__all__ = ["CalcError", "evaluate", "format_expression", "parse"]


def evaluate(text, variables=None):
    """The value of the expression `text`, with `variables` as a mapping of names to numbers."""
    return evaluate_tree(parse(text), variables or {})
