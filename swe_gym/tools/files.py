"""Files of the sandbox as tools use them: what goes wrong becomes a sentence for the policy."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator

from ..errors import FileError, MissingFile, NoPermission, NotAFile, ToolError
from ..sandboxes.base import Sandbox
from .base import ToolContext
from .document import Document

MAX_FILE_BYTES = 5 << 20
"""Size above which a tool leaves a file to `bash`."""


def shown_path(sandbox: Sandbox, path: str) -> str:
    """A path as a policy reads it: relative to the workdir where it lies below, else absolute."""
    full = sandbox.resolve(path)
    if full == sandbox.workdir:
        return "."
    return full.removeprefix(sandbox.workdir.rstrip("/") + "/")


def checked(text: str, name: str) -> str:
    """`text` if a command line or a path can hold it.

    Raises:
        ToolError: It holds a NUL or a lone surrogate.
    """
    if re.search("[\0\ud800-\udfff]", text):
        raise ToolError(f"{name} holds a NUL or a broken character (a lone surrogate), which no command or path can.")
    return text


def read_document(context: ToolContext, path: str) -> Document:
    """The content of a file.

    Raises:
        ToolError: There is no such file, or it cannot be read; the sentence says why.
    """
    with explained(context, path):
        return Document.of(context.sandbox.read_file(checked(path, "path"), max_bytes=MAX_FILE_BYTES))


def write_file(context: ToolContext, path: str, data: bytes) -> None:
    """Write a file whole.

    Raises:
        ToolError: It cannot be written; the sentence says why.
    """
    with explained(context, path):
        context.sandbox.write_file(checked(path, "path"), data)


def find_document(context: ToolContext, path: str) -> Document | None:
    """The content of a file, or None where nothing of that name exists.

    Raises:
        ToolError: It exists and cannot be read; the sentence says why.
    """
    with explained(context, path):
        try:
            return Document.of(context.sandbox.read_file(checked(path, "path"), max_bytes=MAX_FILE_BYTES))
        except MissingFile:
            return None


@contextlib.contextmanager
def explained(context: ToolContext, path: str) -> Iterator[None]:
    """Turn what the file system says about `path` into a `ToolError`; trouble with the sandbox passes."""
    shown = shown_path(context.sandbox, path)
    try:
        yield
    except MissingFile:
        raise ToolError(f"There is no file {shown!r}.{_elsewhere(context, shown)}") from None
    except NotAFile:
        raise ToolError(f"{shown!r} is not a regular file (a folder, perhaps).") from None
    except NoPermission:
        raise ToolError(f"There is no permission to use {shown!r}.") from None
    except FileError as error:
        reason = str(error).replace(context.sandbox.resolve(path), shown)
        raise ToolError(f"{shown!r} cannot be used: {reason}.") from None


def _elsewhere(context: ToolContext, shown: str) -> str:
    """Where files of that name do exist: the most common slip is a wrong folder."""
    name = re.sub(r"([\\*?\[\]])", r"\\\1", posixpath.basename(shown))
    argv = ["find", ".", "-name", ".git", "-prune", "-o", "-name", name, "-print"]
    found = context.sandbox.exec(argv, timeout=context.time_left(5.0), max_output=1 << 16)
    if not found.ok or found.stdout_dropped:  # a part of the names would differ from run to run
        return ""
    names = sorted(line.removeprefix("./") for line in found.text.splitlines() if line != ".")
    return f" Of that name there are: {', '.join(names[:5])}." if names else ""
