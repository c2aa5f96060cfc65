"""Finds the statements of a test that are sure to run if the test passes, whatever right work it tests.

A changed assertion proves something only if it is reached. The search enters `with` blocks that do not swallow
exceptions, `try` without handlers, `finally`, and loops over literals. It does not enter `if`, `try` with handlers,
`while`, loops over the product's results, and nested functions. It ends where `return`, `break` or `continue` may skip
the rest.
"""

import ast
import functools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from .source import Function, Source, name_of

RAISING = frozenset(
    {"raises", "assertRaises", "assertRaisesMessage", "assertRaisesRegex", "assertRaisesRegexp", "assert_raises"}
    | {"assert_raises_regex", "raises_regex", "failUnlessRaises"}
)
"""Context managers that an exception satisfies."""

SWALLOWING = RAISING | {"suppress", "xfail", "XFAIL", "ignore_exceptions"}
LOOPING = frozenset({"enumerate", "zip", "product", "sorted", "reversed"})
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def walk_reached(function: Function, source: Source) -> list[ast.stmt]:
    """Return the statements that run whenever a test passes, in order."""
    return list(_walk_reached(function.body, _literal_names(function, source)))


def _walk_reached(body: Sequence[ast.stmt], literals: Collection[str], *, in_loop: bool = False) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        match statement:
            case ast.With() | ast.AsyncWith() if not any(map(_swallows, statement.items)):
                yield from _walk_reached(statement.body, literals, in_loop=in_loop)
            case ast.For() if _runs(statement.iter, literals):
                yield from _walk_reached(statement.body, literals, in_loop=True)
            case ast.Try():
                if not statement.handlers:
                    yield from _walk_reached(statement.body, literals, in_loop=in_loop)
                yield from _walk_reached(statement.finalbody, literals, in_loop=in_loop)
        if may_leave(statement, in_loop=in_loop):
            return


def _swallows(item: ast.withitem) -> bool:
    return name_of(item.context_expr) in SWALLOWING


def may_leave(statement: ast.stmt, *, in_loop: bool = False) -> bool:
    """Whether a passing test may skip the statements after this one."""
    leaving: tuple[type[ast.stmt], ...] = (ast.Return, ast.Break, ast.Continue) if in_loop else (ast.Return,)
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, leaving):
            return True
        if not isinstance(node, NESTED):
            todo += ast.iter_child_nodes(node)
    return False


def _runs(items: ast.expr, literals: Collection[str]) -> bool:
    """Whether a loop over `items` runs at least once, whatever the product returns."""
    match items:
        case ast.List() | ast.Tuple() | ast.Set():
            return bool(items.elts)
        case ast.Dict():
            return bool(items.keys)
        case ast.Constant():
            return bool(items.value)
        case ast.Name():
            return items.id in literals
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "keys" | "values")):
            return _runs(value, literals)
        case ast.Call(func=ast.Name(id="range"), args=[_, *_]) if all(map(_is_whole, items.args)):
            numbers = [ast.literal_eval(argument) for argument in items.args]
            return len(numbers) < 3 and bool(range(*numbers))
        case ast.Call(args=[_, *_]) if name_of(items) in LOOPING:
            return all(_runs(argument, literals) for argument in items.args)
    return False


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _stores(body: Sequence[ast.stmt]) -> tuple[Counter[str], Counter[str]]:
    """Count how often each name is assigned a non-empty literal, and how often it is assigned at all."""
    filled, stored = Counter[str](), Counter[str]()
    for statement in body:
        for node in ast.walk(statement) if not isinstance(statement, NESTED) else ():
            if isinstance(node, ast.Assign) and _runs(node.value, ()):
                filled.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
    return filled, stored


@functools.lru_cache(maxsize=8)
def _module_stores(source: Source) -> tuple[Counter[str], Counter[str]]:
    return _stores(source.tree.body)


def _literal_names(function: Function, source: Source) -> set[str]:
    """The names that are assigned only non-empty literals."""
    filled, stored = (
        outer + inner for outer, inner in zip(_module_stores(source), _stores(function.body), strict=True)
    )
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    return {name for name in filled if filled[name] == stored[name]} - parameters
