"""Programs that run inside a sandbox: standard library only, Python 3.6 syntax, sent as text.

A guest imports other guests with `from .name import ...` at the top level. `bundle` joins them into one program.
"""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False  # the launcher of local sandboxes imports this file: it need not load what it does not use
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

_FOLDER = os.path.dirname(__file__)


@functools.cache
def bundle(name: str) -> str:
    """Return the guest `name` ("seal", "runner/serve") as one program, with every guest that it imports from.

    All modules share one namespace, so no two may define the same name. Imports between guests, docstrings and
    annotations with their imports (of `typing`, under `if TYPE_CHECKING:`) are left out: a sandbox compiles the program
    at every start.
    """
    modules: dict[str, str] = {}
    _collect(f"{_FOLDER}/{name}.py", modules)
    return "\n".join(modules.values())


def _collect(path: str, modules: dict[str, str]) -> None:
    """Add the guest at `path` to `modules`, after the guests that it imports from."""
    import ast

    from ..syntax import parse

    if path in modules:
        return
    with open(path, "rb") as file:
        data = file.read()
    tree = parse(data)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = functools.reduce(lambda folder, _: os.path.dirname(folder), range(node.level), path)
            _collect(f"{folder}/{(node.module or '').replace('.', '/')}.py", modules)
    for start, end in sorted(_find_left_out(tree, data), reverse=True):
        data = data[:start] + b"\n" * data.count(b"\n", start, end) + data[end:]  # line numbers stay
    modules[path] = data.decode()


def _find_left_out(tree: ast.Module, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the spans of a guest that are not sent."""
    import ast
    import itertools

    lines = list(itertools.accumulate(map(len, data.splitlines(keepends=True)), initial=0))

    def start(node: ast.expr | ast.stmt | ast.arg) -> int:
        return lines[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt | ast.arg) -> int:
        return lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for docstring in _docstrings(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ():
            yield start(docstring), end(docstring)
        if isinstance(node, ast.ImportFrom) and (node.level or node.module == "typing"):
            yield start(node), end(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield start(node), end(node)
            continue  # the spans within it lie in this one
        elif isinstance(node, ast.arg) and node.annotation:
            yield start(node) + len(node.arg), end(node)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield data.rindex(b"->", 0, start(node.returns)), end(node.returns)
        elif isinstance(node, ast.AnnAssign):
            yield end(node.target), end(node.annotation)
        todo.extend(ast.iter_child_nodes(node))


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> list[ast.Expr]:
    """Return the docstring of a node with further statements, and those of a module's constants."""
    import ast

    first = node.body if isinstance(node, ast.Module) else node.body[:1]
    found = [one for one in first if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    return found if len(node.body) > 1 else []
