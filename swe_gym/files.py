"""Files that are whole at every moment: replaced atomically, or grown by lines of JSON that others read meanwhile."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. If the block succeeds, the file there replaces `path`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # left by a killed process that had the same id
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def end_of_lines(file: BinaryIO, end: int | None = None) -> int:
    """Return the offset behind the last newline of a file, or behind the last one before an offset."""
    end = file.seek(0, os.SEEK_END) if end is None else end
    while end > 0:
        start = max(0, end - 65_536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def append_lines(path: str | os.PathLike[str], *lines: str, end_of: Callable[[BinaryIO], int] = end_of_lines) -> None:
    """Append ASCII lines. Threads and processes may append to the same file. Missing folders are created.

    What a killed process left is removed first: `end_of` returns the offset behind what is kept.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(end_of_lines(file))
        if _is_json(file.read()):
            file.write(b"\n")  # a complete line, from a program that omits the last newline
        file.truncate(end_of(file))
        file.write(b"".join(line.encode("ascii") + b"\n" for line in lines))


def whole_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each line that ends with a newline, newline included. A missing file has none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        offset = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield offset, line
            offset += len(line)


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line. A half line at the end of the file is omitted.

    A process leaves one when it is killed or still writing.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n") and not _is_json(line):
                return
            yield number, line


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
