"""Files as tools see them: bytes and text that edits keep otherwise, and errors as sentences for the policy."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import posixpath
import re
from collections.abc import Iterator

from ..errors import FileError, MissingFile, NoPermission, NotAFile, ToolError
from ..sandboxes import Sandbox
from .base import ToolContext

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED = re.compile(rb"^(?:[^\n]*\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*([-\w.]+)")
_STATELESS = re.compile(
    r"utf-?8(-sig)?|(us-)?ascii|latin-?[0-9]+|l[1-9]|iso-?8859-?[0-9]+|(cp|windows-)[0-9]+|koi8-[rut]|mac-[a-z]+"
    r"|euc-?(jp|kr)|shift-?jis|gbk|gb2312|gb18030|big5"
)
"""Stateless encodings, in which a part of a file can be encoded by itself."""

BINARY_PROBE = 8000
"""Leading bytes in which a NUL makes a file binary, as in git."""


@dataclasses.dataclass(frozen=True)
class Document:
    """The content of one file.

    The encoding is declared by a byte order mark or a `coding:` comment, else it is UTF-8, else Latin-1, which decodes
    any bytes. `splice` keeps every byte outside of the replaced part.

    Attributes:
        data: The bytes.
        encoding: Name of a Python codec.
        bom: The byte order mark, which is not part of `text`.
        text: The bytes after the mark, decoded. Lines end with a line feed only.
    """

    data: bytes
    encoding: str
    bom: bytes
    text: str

    @classmethod
    def of(cls, data: bytes) -> Document:
        """Decode `data`."""
        for bom, encoding in _BOMS:
            if data.startswith(bom) and (text := _decode(data[len(bom) :], encoding)) is not None:
                return cls(data, encoding, bom, text)
        for encoding in (*_read_encoding(data), "utf-8"):
            if (text := _decode(data, encoding)) is not None:
                return cls(data, encoding, b"", text)
        return cls(data, "latin-1", b"", data.decode("latin-1"))

    @property
    def is_binary(self) -> bool:
        """Whether the content is not text."""
        return not self.encoding.startswith(("utf-16", "utf-32")) and b"\0" in self.data[:BINARY_PROBE]

    @functools.cached_property
    def newline(self) -> str:
        r"""The line end: "\r\n" if all lines end with it, else "\n"."""
        ends = self.text.count("\n")
        return "\r\n" if ends and self.text.count("\r\n") == ends else "\n"

    @functools.cached_property
    def line_starts(self) -> list[int]:
        """The start of each line in `text`, and the end of the text."""
        starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        return starts if starts[-1] == len(self.text) else [*starts, len(self.text)]

    @property
    def line_count(self) -> int:
        """Number of lines, including a last one without a line feed."""
        return len(self.line_starts) - 1

    def lines(self, first: int, last: int) -> list[str]:
        """Return the lines `first` to `last`, counted from 1, both included, without line ends."""
        starts = self.line_starts
        chosen = range(max(first, 1) - 1, min(last, self.line_count))
        return [self.text[starts[i] : starts[i + 1]].removesuffix("\n").removesuffix("\r") for i in chosen]

    def line_at(self, position: int) -> int:
        """Return the number of the line that holds `text[position]`."""
        return self.text.count("\n", 0, position) + 1

    def with_newlines(self, text: str) -> str:
        """Return the text with this file's line ends: policies do not see them and write line feeds."""
        return text.replace("\n", "\r\n") if self.newline == "\r\n" and "\r" not in text else text

    def splice(self, start: int, end: int, new: str) -> bytes:
        """Return the file's bytes with `text[start:end]` replaced by `new`; all other bytes stay.

        Raises:
            ToolError: The file's encoding lacks a character of `new`.
        """
        before = len(self.bom) + len(self.text[:start].encode(self.encoding))
        after = len(self.text[end:].encode(self.encoding))
        return self.data[:before] + encode(new, self.encoding) + self.data[len(self.data) - after :]


def encode(text: str, encoding: str = "utf-8") -> bytes:
    """Encode `text`.

    Raises:
        ToolError: The encoding lacks a character.
    """
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        character = text[error.start]
        named = "a lone surrogate" if "\ud800" <= character <= "\udfff" else repr(character)
        raise ToolError(f"The file is {encoding} text, which has no {named} (U+{ord(character):04X}).") from None


def _decode(data: bytes, encoding: str) -> str | None:
    """Return the text, or None if encoding it does not give the same bytes."""
    try:
        text = data.decode(encoding)
        return text if encoding == "utf-8" or text.encode(encoding) == data else None
    except UnicodeError:
        return None


def _read_encoding(data: bytes) -> tuple[str, ...]:
    """Return the encoding of a `coding:` comment in the first two lines, if it is stateless."""
    match = _DECLARED.match(data[:1000])
    if match is None:
        return ()
    name = match[1].decode("ascii", "replace").lower().replace("_", "-")
    if not _STATELESS.fullmatch(name) or name == "utf-8-sig":
        return ()
    try:
        like_ascii = b"\n# coding".decode(name) == "\n# coding"
    except LookupError:
        return ()
    return (codecs.lookup(name).name,) if like_ascii else ()


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
