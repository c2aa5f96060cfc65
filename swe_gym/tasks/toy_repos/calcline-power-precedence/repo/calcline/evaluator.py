"""Tree to number."""

import math

from .errors import CalcError
from .nodes import Binary, Call, Name, Number, Prefix
from .operators import BINARY, PREFIX

CONSTANTS = {"pi": math.pi, "e": math.e}
FUNCTIONS = {"abs": abs, "max": max, "min": min, "round": round, "sqrt": math.sqrt}


def evaluate_tree(node, variables):
    """The number that `node` stands for. Variables win over constants of the same name."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Name):
        return _lookup(node.name, variables)
    if isinstance(node, Prefix):
        return PREFIX[node.symbol](evaluate_tree(node.operand, variables))
    if isinstance(node, Binary):
        left = evaluate_tree(node.left, variables)
        right = evaluate_tree(node.right, variables)
        return _checked(BINARY[node.symbol].apply, left, right)
    if isinstance(node, Call):
        arguments = [evaluate_tree(argument, variables) for argument in node.arguments]
        return _checked(_function(node.function), *arguments)
    raise TypeError("not an expression: {!r}".format(node))


def _lookup(name, variables):
    if name in variables:
        return variables[name]
    if name in CONSTANTS:
        return CONSTANTS[name]
    raise CalcError("unknown name {!r}".format(name))


def _function(name):
    if name not in FUNCTIONS:
        raise CalcError("unknown function {!r}".format(name))
    return FUNCTIONS[name]


def _checked(function, *arguments):
    try:
        return function(*arguments)
    except ZeroDivisionError:
        raise CalcError("division by zero") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise CalcError(str(error)) from None
