"""Python source as syntax trees, from any thread."""

import ast
import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Literal, overload

_PARSING = threading.Lock()


@overload
def parse(source: str | bytes) -> ast.Module: ...
@overload
def parse(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def parse(source: str | bytes, mode: str = "exec") -> ast.AST:
    """Parse Python source, as `ast.parse` does, but without warnings and in any number of threads.

    In CPython 3.11, `ast.parse` raises `SystemError: AST constructor recursion depth mismatch` if a garbage collection
    in the midst of it lets another thread parse. So there is none meanwhile.

    Raises:
        SyntaxError: The source is not Python.
        ValueError: The source has null bytes.
    """
    with _PARSING, _no_collection(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, for instance
        return ast.parse(source, mode=mode)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def evaluate(text: str) -> Any:
    """Evaluate a Python literal, as `ast.literal_eval` does, which raises the same errors."""
    return ast.literal_eval(parse(text.lstrip(" \t"), "eval"))
