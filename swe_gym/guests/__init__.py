"""Programs that run inside a sandbox: standard library only, Python 3.6 syntax, sent as text.

A guest imports other guests as `from .name import ...`. `bundle` joins them into the one text that is sent.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

_FOLDER = Path(__file__).parent


@functools.cache
def bundle(name: str) -> str:
    """The guest `name` ("runner", "local/linux") as one text, preceded by every guest that it imports from."""
    parts: dict[str, str] = {}
    _collect(_FOLDER / f"{name}.py", parts)
    return "\n".join(parts.values())


def _collect(path: Path, parts: dict[str, str]) -> None:
    """Add the guest at `path` to `parts`, after those it imports from and without the imports themselves."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            _collect(path.parents[node.level - 1] / f"{(node.module or '').replace('.', '/')}.py", parts)
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]  # set since 3.8
    parts.setdefault(str(path), "\n".join([*lines, ""]))
