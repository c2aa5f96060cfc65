"""Changes a test so that only one of its assertions can fail it: whatever the others raise is dropped.

Played with the untouched repository, such a *single* tells whether wrong work passes the assertion.
"""

import ast
from collections.abc import Collection, Iterator

from .changes import asserting
from .reach import NESTED
from .source import Edit, Function, Source


def singles(function: Function, source: Source) -> Iterator[tuple[int, tuple[Edit, ...]]]:
    """Yield the line of each assertion that can be changed, and the edits after which only that one can fail."""
    found = asserting(function, source)
    droppable = [one for one in _droppable(function, found) if _is_alone(one, source)]
    for kept in found:
        inside = [node for node in ast.walk(kept) if node not in found]  # what `raises` waits for
        others = [one for one in droppable if one not in inside and kept not in ast.walk(one)]
        yield kept.lineno, tuple(edit for other in others for edit in _dropped(other, source))


def _droppable(function: Function, found: Collection[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that do nothing but assert or call, and those that can be changed."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt) and (node in found or isinstance(node, ast.Assert | ast.Expr)):
            yield node
        if not isinstance(node, NESTED):
            todo += ast.iter_child_nodes(node)


def _is_alone(statement: ast.stmt, source: Source) -> bool:
    """Whether no other statement is on the lines of a statement."""
    return not source.before(statement).strip() and not source.after(statement).lstrip().startswith(";")


def _dropped(statement: ast.stmt, source: Source) -> tuple[Edit, Edit]:
    """The edits that put a statement into a `try` that drops what it raises."""
    start, end = source.span(statement)
    pad = source.before(statement)
    return Edit(start, start, f"try:\n{pad} "), Edit(end, end, f"\n{pad}except BaseException: pass")
