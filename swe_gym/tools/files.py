"""File access for tools. File errors become sentences for the policy."""

import contextlib
import posixpath
import re
from collections.abc import Iterator

from ..errors import FileError, MissingFile, NoPermission, NotAFile, ToolError
from ..sandboxes import Sandbox
from .base import ToolContext
from .document import Document

MAX_FILE_BYTES = 5 << 20
"""Maximum size of a file that tools read, in bytes."""


def shown_path(sandbox: Sandbox, path: str) -> str:
    """Return the path relative to the workdir if it is below it, else absolute."""
    full = sandbox.resolve(path)
    if full == sandbox.workdir:
        return "."
    return full.removeprefix(sandbox.workdir.rstrip("/") + "/")


def check_text(text: str, name: str) -> str:
    """Return `text` if it is valid in command lines and paths.

    Raises:
        ToolError: It holds a NUL or a lone surrogate.
    """
    if re.search("[\0\ud800-\udfff]", text):
        raise ToolError(f"{name} holds a NUL or a broken character (a lone surrogate), which no command or path can.")
    return text


def read_document(context: ToolContext, path: str) -> Document:
    """Return the content of a file.

    Raises:
        ToolError: The file is missing or cannot be read.
    """
    with explained(context, path):
        return Document.of(context.sandbox.read_file(check_text(path, "path"), max_bytes=MAX_FILE_BYTES))


def write_file(context: ToolContext, path: str, data: bytes) -> None:
    """Write a whole file.

    Raises:
        ToolError: The file cannot be written.
    """
    with explained(context, path):
        context.sandbox.write_file(check_text(path, "path"), data)


def find_document(context: ToolContext, path: str) -> Document | None:
    """Return the content of a file, or None if it does not exist.

    Raises:
        ToolError: The file exists but cannot be read.
    """
    with explained(context, path):
        try:
            return Document.of(context.sandbox.read_file(check_text(path, "path"), max_bytes=MAX_FILE_BYTES))
        except MissingFile:
            return None


@contextlib.contextmanager
def explained(context: ToolContext, path: str) -> Iterator[None]:
    """Convert file errors about `path` in the block to `ToolError`. Other sandbox errors pass."""
    shown = shown_path(context.sandbox, path)
    try:
        yield
    except MissingFile:
        raise ToolError(f"There is no file {shown!r}.{_find_elsewhere(context, shown)}") from None
    except NotAFile:
        raise ToolError(f"{shown!r} is not a regular file (a folder, perhaps).") from None
    except NoPermission:
        raise ToolError(f"There is no permission to use {shown!r}.") from None
    except FileError as error:
        reason = str(error).replace(context.sandbox.resolve(path), shown)
        raise ToolError(f"{shown!r} cannot be used: {reason}.") from None


def _find_elsewhere(context: ToolContext, shown: str) -> str:
    """Return files of the same name: the most common mistake is a wrong folder."""
    name = re.sub(r"([\\*?\[\]])", r"\\\1", posixpath.basename(shown))
    argv = ["find", ".", "-name", ".git", "-prune", "-o", "-name", name, "-print"]
    found = context.sandbox.exec(argv, timeout=context.time_left(5.0), max_output=1 << 16)
    if not found.ok or found.stdout_dropped:  # a part of the names would vary between runs
        return ""
    names = sorted(line.removeprefix("./") for line in found.text.splitlines() if line != ".")
    return f" Of that name there are: {', '.join(names[:5])}." if names else ""
