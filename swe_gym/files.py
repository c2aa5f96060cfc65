"""Files on disk: replaced as a whole, grown by lines of JSON that others read meanwhile, or tables read row by row."""

import contextlib
import fcntl
import functools
import gzip
import itertools
import json
import lzma
import math
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import MissingDependency, SandboxStartError, TaskError, UsageError, wrong_fields
from .syntax import evaluate
from .types import Json, JsonObject

MakeObject = Callable[[list[tuple[str, Json]]], JsonObject]


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


Model = TypeVar("Model", bound=BaseModel)


def read_models(path: str | os.PathLike[str], model: type[Model], what: str) -> Iterator[Model]:
    """Yield the lines of a file as pydantic models. A missing file has none.

    Raises:
        UsageError: A line is invalid. The message names file and line, and calls the line `what`.
    """
    for number, line in json_lines(Path(path)) if Path(path).exists() else ():
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            raise UsageError(f"{path}, line {number} is not {what}: {wrong_fields(error)}") from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


SUFFIXES = (".parquet", ".jsonl", ".json")

COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
"""Suffix -> function that opens such a file."""

GROUP = 200
"""Rows of a parquet file that are held in memory together."""


def load_arrow() -> Any:
    """Import `pyarrow`.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency("parquet files need pyarrow: pip install 'swe-gym[parquet]'") from error
    return pyarrow


# --- reading ----------------------------------------------------------------------------------------------


def scan_table(path: Path, make: MakeObject | None = None) -> Iterator[tuple[str, object]]:
    """Yield position ("line 7", "row 7") and content of each row. If a row cannot be read, its content is the error.

    Args:
        path: A `.jsonl`, `.json` (a list, or one row) or `.parquet` file; the first two also as `.gz` or `.xz`.
        make: Makes an object of JSON from its pairs; None makes a dictionary, which keeps the last of equal names.

    Raises:
        UsageError: The file is missing, or its suffix is unknown.
        MissingDependency: A parquet file needs pyarrow.
    """
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: the file name must end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UsageError(f"file not found: {path}")
    scans: dict[str, Callable[[Path], Iterator[tuple[int, object]]]] = {
        ".jsonl": functools.partial(_scan_lines, make=make),
        ".json": functools.partial(_scan_json, make=make),
        ".parquet": _scan_parquet,
    }
    unit, number = "line" if suffix == ".jsonl" else "row", 0
    try:
        for number, row in scans[suffix](path):
            yield f"{unit} {number}", row
    except (lzma.LZMAError, zlib.error, OSError, EOFError) as error:
        yield f"{unit} {number + 1}", ValueError(f"cannot read the file: {error}")


def _scan_lines(path: Path, make: MakeObject | None) -> Iterator[tuple[int, object]]:
    with COMPRESSED.get(path.suffix, open)(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _parse(line, make)


def _scan_json(path: Path, make: MakeObject | None) -> Iterator[tuple[int, object]]:
    with COMPRESSED.get(path.suffix, open)(path, "rb") as file:
        content = _parse(file.read(), make)
    yield from enumerate(content if isinstance(content, list) else [content], 1)


def _scan_parquet(path: Path) -> Iterator[tuple[int, object]]:
    arrow = load_arrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            yield from enumerate((row for batch in file.iter_batches(GROUP) for row in batch.to_pylist()), 1)
    except arrow.ArrowException as error:
        raise OSError(f"not a parquet file: {error}") from error


def _parse(text: bytes, make: MakeObject | None) -> object:
    try:
        return json.loads(text, object_pairs_hook=make)
    except ValueError as error:
        return ValueError(f"not JSON: {error}")
    except RecursionError:
        return ValueError("nested too deeply")


# --- writing ----------------------------------------------------------------------------------------------


def write_table(rows: Iterable[JsonObject], path: str | os.PathLike[str], *, schema: object = None) -> int:
    """Write rows of JSON data to a file, one at a time. An existing file is replaced atomically; folders are made.

    Args:
        rows: The rows.
        path: A `.jsonl`, `.json` or `.parquet` file.
        schema: The pyarrow schema of a parquet file; None derives it from the first rows.

    Returns:
        The number of rows.

    Raises:
        UsageError: The suffix is unknown, or a column of a parquet file would hold several types.
        MissingDependency: A parquet file needs pyarrow.
    """
    file = Path(path)
    writers: dict[str, Callable[..., int]] = {".parquet": _write_parquet, ".jsonl": _write_lines, ".json": _write_list}
    if file.suffix not in writers:
        raise UsageError(f"{file}: the file name must end in {', '.join(SUFFIXES)}")
    if file.suffix == ".parquet":
        load_arrow()  # may raise, before a folder is made
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as partial:
        return writers[file.suffix](rows, partial, schema)


def _write_lines(rows: Iterable[JsonObject], file: Path, _: object, *, between: str = "") -> int:
    number = 0
    with file.open("a", encoding="ascii") as out:
        for number, row in enumerate(rows, 1):
            out.write((between if number > 1 else "") + json.dumps(row) + "\n")
    return number


def _write_list(rows: Iterable[JsonObject], file: Path, _: object) -> int:
    file.write_text("[\n")
    count = _write_lines(rows, file, None, between=",")
    with file.open("a") as out:
        out.write("]\n")
    return count


def _write_parquet(rows: Iterable[JsonObject], file: Path, schema: object) -> int:
    arrow, count = load_arrow(), 0
    remaining = iter(rows)
    group = list(itertools.islice(remaining, GROUP))
    try:
        table = arrow.Table.from_pylist(group, schema=schema)
        with arrow.parquet.ParquetWriter(file, table.schema, compression="zstd") as writer:
            while group:
                writer.write_table(arrow.Table.from_pylist(group, schema=table.schema) if count else table)
                count += len(group)
                group = list(itertools.islice(remaining, GROUP))
    except arrow.ArrowException as error:
        raise UsageError(f"a column of these rows holds several types ({error}): write .jsonl instead") from error
    return count


# --- cells ------------------------------------------------------------------------------------------------


def to_plain(value: Json) -> Json:
    """Return a value as JSON would hold it: arrays of pandas become lists, NaN becomes None.

    Raises:
        ValueError: The value is nested too deeply, or its text is not Unicode.
    """
    try:
        return _to_plain(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("invalid Unicode: half a surrogate pair") from None


def _to_plain(value: Json) -> Json:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_plain(part) for part in value]
    if isinstance(value, dict):
        return {_to_plain(key): _to_plain(part) for key, part in value.items()}
    if isinstance(value, str):
        value.encode()
    return None if isinstance(value, float) and math.isnan(value) else value


def decode_column(value: Json) -> Json:
    """Return the value of a column that holds plain data in some revisions, JSON or a Python literal in others.

    Raises:
        ValueError: The value is text, but neither JSON nor a Python literal.
    """
    if not isinstance(value, str):
        return value
    return to_plain(_literal(value)) if value else None


def _literal(text: str) -> Json:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return evaluate(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("neither JSON nor a Python literal") from None


_TEST_PATH = re.compile(
    r"((.*/)?(tests|__tests__|src/test)|test|testing|specs?)/.*"
    r"|(.*/)?(test_[^/]*|[^/]*_test|[^/]*\.(test|spec))\.\w+"
    r"|(.*/)?(conftest|tests)\.py",
    re.IGNORECASE,
)


def is_test_path(path: str) -> bool:
    """Return whether a relative path is that of a test, in the layouts of common languages.

    A package may have folders such as `django/test` and `numpy/testing`: these are not tests.
    """
    return _TEST_PATH.fullmatch(path) is not None


# --- folders ----------------------------------------------------------------------------------------------

LEFT_OUT = frozenset(
    (".git", ".hg", ".svn", ".bzr", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox")
)
"""Names that a `FolderWorkspace` omits at any depth: version control and caches. Virtual environments (folders with a
`pyvenv.cfg`) are omitted too."""


class FileMetadata(NamedTuple):
    """Metadata of one file, link or folder below the root."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    link: str | None = None


def scan_folder(root: Path, deadline: float) -> list[FileMetadata]:
    """Return all entries of a `FolderWorkspace`, parents first, in a fixed order.

    Raises:
        TaskError: It cannot be read.
        SandboxStartError: The time (`time.monotonic`) was up.
        FileNotFoundError: It does not exist, or changes.
    """
    found: list[FileMetadata] = []
    waiting = [""]
    while waiting:
        if time.monotonic() > deadline:
            raise SandboxStartError(f"workspace {root} was not read in time", reason="timeout", retryable=True)
        entries = list(_list(root, waiting.pop()))
        found += entries
        waiting += [entry.path for entry in entries if stat.S_ISDIR(entry.mode)]
    return sorted(found)


def _list(root: Path, folder: str) -> Iterator[FileMetadata]:
    try:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name not in LEFT_OUT and (described := _describe(entry, f"{folder}{entry.name}")):
                    yield described
    except PermissionError as error:
        raise TaskError(f"workspace {root} cannot be read: {error}") from error


def _describe(entry: os.DirEntry[str], path: str) -> FileMetadata | None:
    """Return the entry, or None for a virtual environment, socket, pipe or device."""
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return FileMetadata(path, status.st_mode, 0, 0, os.readlink(entry.path))
    if stat.S_ISDIR(status.st_mode):
        is_venv = os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
        return None if is_venv else FileMetadata(path + "/", status.st_mode, 0, 0)
    if stat.S_ISREG(status.st_mode):
        return FileMetadata(path, status.st_mode, status.st_size, status.st_mtime_ns)
    return None
