"""Packages whose public names are imported when they are first used, so that importing the package stays cheap."""

import ast
import functools
import importlib
import sys
from pathlib import Path


@functools.cache
def homes(package: str) -> dict[str, str]:
    """Return public name -> module, as the `if TYPE_CHECKING:` block of a package's `__init__` imports them."""
    file = sys.modules[package].__file__
    assert file is not None
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    blocks = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    nodes = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom) and node.level]
    return {alias.asname or alias.name: f".{node.module}" for node in nodes for alias in node.names}


def load(package: str, name: str) -> object:
    """Import a public name of a package, and keep it there. `__getattr__` of the package calls it.

    Raises:
        AttributeError: The package has no such name.
    """
    if name.startswith("__") or name not in homes(package):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(homes(package)[name], package), name)
    setattr(sys.modules[package], name, value)
    return value
