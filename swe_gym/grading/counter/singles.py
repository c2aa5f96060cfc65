"""Changes a test so that only one of its assertions can fail it: whatever the others raise is dropped.

Played with the untouched repository, such a *single* tells whether wrong work passes the assertion. Another form of it
writes down what the expected value is compared with.
"""

import ast
from collections.abc import Collection, Iterator

from .changes import asserting, expected_value
from .reach import NESTED
from .source import Function, Source, TextEdit

NOTES = (
    "(lambda e: type('Expected', (type(e),), {"
    "'__eq__': lambda a, b: type(e).__eq__(a, b) is True or bool(print(repr((%d, repr(e), repr(b))),"
    " file=open(%r, 'a'))), '__hash__': type(e).__hash__})(e))(%s)"
)
"""An expected value that writes the line of its assertion and both values to a file if it differs from another one."""


def find_singles(function: Function, source: Source) -> Iterator[tuple[int, tuple[TextEdit, ...]]]:
    """Yield the line of each assertion that can be changed, and the edits after which only that one can fail."""
    found = asserting(function, source)
    droppable = [one for one in _find_droppable(function, found) if _is_alone(one, source)]
    for kept in found:
        inside = [node for node in ast.walk(kept) if node not in found]  # what `raises` waits for
        others = [one for one in droppable if one not in inside and kept not in ast.walk(one)]
        yield kept.lineno, tuple(edit for other in others for edit in _drop(other, source))


def noting(function: Function, source: Source, path: str) -> Iterator[tuple[int, tuple[TextEdit, ...]]]:
    """Yield the line of each assertion that expects a known value, and the edits of a single that writes to a file.

    Args:
        function: The function.
        source: The file that holds it.
        path: The file of the sandbox to write to.
    """
    statements = {statement.lineno: statement for statement in asserting(function, source)}
    for line, edits in find_singles(function, source):
        expected = expected_value(function, source, statements[line])
        if expected is not None:
            start, end = source.span(expected)
            yield line, (*edits, TextEdit(start, end, NOTES % (line, path, source.text(start, end))))


def _find_droppable(function: Function, found: Collection[ast.stmt]) -> Iterator[ast.stmt]:
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


def _drop(statement: ast.stmt, source: Source) -> tuple[TextEdit, TextEdit]:
    """The edits that put a statement into a `try` that drops what it raises."""
    start, end = source.span(statement)
    pad = source.before(statement)
    return TextEdit(start, start, f"try:\n{pad} "), TextEdit(end, end, f"\n{pad}except BaseException: pass")
