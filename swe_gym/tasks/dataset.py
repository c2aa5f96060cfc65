"""Base of the task sources of public datasets: it finds rows on disk, reads any of them, checks columns, names tasks.

Memory holds only the offset of each JSON line and the last batch of a parquet file. A JSON list is held whole.
"""

import abc
import array
import bisect
import datetime
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ..errors import TaskError, UsageError, wrong_fields
from ..files import SUFFIXES, decode_column, load_arrow, to_plain
from ..types import Json, JsonMapping, JsonObject, Task
from .base import ListedSource
from .hub import fetch_dataset, is_of_split

if TYPE_CHECKING:
    import pyarrow

BATCH = 16
"""Rows of a parquet file that are decoded together. A row of R2E-Gym takes a megabyte."""


Key = tuple[Json, ...]
Row = JsonObject


class Rows(Protocol):
    """The rows of one file."""

    file: Path

    def keys(self, columns: Sequence[str]) -> list[Key]:
        """Return the values of some columns in all rows; None for missing values. Other columns are not decoded.

        Raises:
            TaskError: The file is broken; the message names file and row.
        """
        ...

    def read(self, number: int) -> Row:
        """Return a row by its number, counted from 0. Call `keys` first.

        Raises:
            TaskError: The row is broken; the message names file and row.
        """
        ...

    def place(self, number: int) -> str:
        """Return where a row is, for messages: "rows.jsonl, line 7"."""
        ...


def open_rows(path: Path, *, split: str | None = None, columns: Sequence[str] = ()) -> list[Rows]:
    """Open a file of rows, or all files in a folder and its subfolders, in the order of their names.

    Args:
        path: A `.parquet`, `.jsonl` or `.json` file, or a folder of them.
        split: In a folder, only files that have this word in their name, or are in a folder of that name, as the
            Hugging Face Hub lays them out: `data/test-00000-of-00001.parquet`.
        columns: Columns to read from parquet files. Empty reads all.

    Raises:
        UsageError: The path does not exist, or holds no rows of the split.
    """
    if path.is_file():
        if split is not None:
            raise UsageError(f"{path} is a file, but split= selects files of a folder: remove split=")
        return [_open(path, columns)]
    if not path.is_dir():
        raise UsageError(f"file or folder not found: {path}")
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.suffix in SUFFIXES)
    names = [name for name in found if not name.startswith(".")]
    files = [name for name in names if split is None or is_of_split(name, split)]
    if not files:
        wanted = "" if split is None else f" of the split {split!r}"
        there = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") or f"no file ends in {', '.join(SUFFIXES)}"
        raise UsageError(f"{path} holds no rows{wanted}: {there}")
    return [_open(path / name, columns) for name in files]


def _open(file: Path, columns: Sequence[str]) -> Rows:
    if file.suffix == ".parquet":
        return _Parquet(file, columns)
    if file.suffix == ".jsonl":
        return _JsonLines(file)
    if file.suffix == ".json":
        return _JsonDocument(file) if _is_one_document(file) else _JsonLines(file)
    raise UsageError(f"{file}: the file name must end in {', '.join(SUFFIXES)}")


def _is_one_document(file: Path) -> bool:
    """Return whether a `.json` file is one document. On the Hub, some hold one document per line."""
    with file.open("rb") as lines:
        first = next((line.strip() for line in lines if line.strip()), b"")
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            return True
        return first.startswith(b"[") or not any(map(bytes.strip, lines))


class _JsonLines:
    """A file of one JSON object per line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._starts = array.array("Q")
        self._lines = array.array("Q")

    def keys(self, columns: Sequence[str]) -> list[Key]:
        patterns = [re.compile(rb'"%s"\s*:\s*"([^"\\]*)"' % re.escape(name.encode())) for name in columns]
        found: list[Key] = []
        self._starts, self._lines = array.array("Q"), array.array("Q")
        start = 0
        with self.file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    self._starts.append(start)
                    self._lines.append(number)
                    found.append(_peek(line, patterns) or self._decode(line, len(found), columns))
                start += len(line)
        return found

    def _decode(self, line: bytes, number: int, columns: Sequence[str]) -> Key:
        row = _object(line, self.place(number))
        return tuple(row.get(name) for name in columns)

    def read(self, number: int) -> Row:
        with self.file.open("rb") as lines:
            lines.seek(self._starts[number])
            return _object(lines.readline(), self.place(number))

    def place(self, number: int) -> str:
        return f"{self.file}, line {self._lines[number]}"


def _peek(line: bytes, patterns: Sequence[re.Pattern[bytes]]) -> Key | None:
    """Return the values of text fields of a line without decoding it; None if that is impossible.

    Quotes inside a JSON string are escaped, so each match is a field. With one match, it is the row's own field; a
    second one belongs to a nested object.
    """
    found = []
    for pattern in patterns:
        values = pattern.findall(line)
        if len(values) != 1 or not line.rstrip().endswith(b"}"):
            return None
        found.append(values[0].decode("utf-8", "replace"))
    return tuple(found)


class _JsonDocument:
    """A JSON document: a list of objects, or one object."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._rows: list[Json] = []

    def keys(self, columns: Sequence[str]) -> list[Key]:
        document = _json(self.file.read_bytes(), str(self.file))
        self._rows = document if isinstance(document, list) else [document]
        return [tuple(self.read(number).get(name) for name in columns) for number in range(len(self._rows))]

    def read(self, number: int) -> Row:
        return _check_object(self._rows[number], self.place(number))

    def place(self, number: int) -> str:
        return f"{self.file}, row {number + 1}"


class _Parquet:
    """A parquet file, read forward in small batches: consecutive rows are decoded once."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file = file
        arrow = load_arrow()
        self._broken = (arrow.ArrowException, OSError)
        try:
            self._parquet = arrow.parquet.ParquetFile(file, memory_map=True, pre_buffer=False)
        except self._broken as error:
            raise TaskError(f"{file} is not a parquet file: {error}") from error
        there = self._parquet.schema_arrow.names
        self._columns = [name for name in there if name in columns] or there
        groups = self._parquet.metadata
        sizes = (groups.row_group(number).num_rows for number in range(groups.num_row_groups))
        self._bounds = list(itertools.accumulate(sizes, initial=0))
        self._lock = threading.Lock()
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._batch: pyarrow.RecordBatch
        self._group, self._start, self._end = -1, 0, 0  # the current batch and its row group

    def keys(self, columns: Sequence[str]) -> list[Key]:
        there = [name for name in columns if name in self._parquet.schema_arrow.names]
        try:
            table = self._parquet.read(columns=there, use_threads=False).to_pylist()
        except self._broken as error:
            raise TaskError(f"cannot read {self.file}: {error}") from error
        return [tuple(row.get(name) for name in columns) for row in table]

    def read(self, number: int) -> Row:
        with self._lock:
            try:
                self._move_to(number)
            except self._broken as error:
                self._group = -1  # this row group has no further batches
                raise TaskError(f"{self.place(number)}: cannot read: {error}") from error
            row: Row = self._batch.slice(number - self._start, 1).to_pylist()[0]
        return row

    def _move_to(self, number: int) -> None:
        group = bisect.bisect_right(self._bounds, number) - 1
        if group != self._group or number < self._start:
            self._batches = self._parquet.iter_batches(
                BATCH, row_groups=[group], columns=self._columns, use_threads=False
            )
            self._group, self._start, self._end = group, self._bounds[group], self._bounds[group]
        while number >= self._end:
            self._batch = next(self._batches)
            self._start, self._end = self._end, self._end + self._batch.num_rows

    def place(self, number: int) -> str:
        return f"{self.file}, row {number + 1}"


def _object(line: bytes, place: str) -> Row:
    return _check_object(_json(line, place), place)


def _json(text: bytes, place: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{place}: not JSON: {error}") from None
    except RecursionError:
        raise TaskError(f"{place}: nested too deeply") from None


def _check_object(value: object, place: str) -> Row:
    if not isinstance(value, dict):
        raise TaskError(f"{place}: not an object")
    return value


# --- columns ----------------------------------------------------------------------------------------------


def _structure(value: Json, kind: type, empty: Json) -> Json:
    value = decode_column(value)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return empty if value is None else value


def _moment(value: Json) -> Json:
    """Return a date as text. Some datasets hold milliseconds, some parquet files a datetime."""
    if isinstance(value, int | float):
        try:
            return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC).isoformat()
        except (OverflowError, OSError):
            raise ValueError("not a date") from None
    return value.isoformat() if isinstance(value, datetime.date) else value


Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Moment = Annotated[Text, BeforeValidator(_moment)]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(_structure(value, list, [])))]
AsObject = BeforeValidator(lambda value: _structure(value, dict, {}))
Object = Annotated[JsonObject, AsObject]


class Columns(BaseModel):
    """Base of row models: the columns that define a task, by name. Other columns are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


ColumnsT = TypeVar("ColumnsT", bound=Columns)


def read_columns(model: type[ColumnsT], row: JsonMapping, place: str) -> ColumnsT:
    """Validate a row.

    Raises:
        TaskError: Columns are missing or invalid; the message names place and columns, but never their values.
    """
    try:
        return model.model_validate(_read_columns(model, row, place))
    except ValidationError as error:
        raise TaskError(f"{place}: {wrong_fields(error)}") from None


def _read_columns(model: type[Columns], row: JsonMapping, place: str) -> JsonObject:
    columns = {}
    for name in model.model_fields:
        if name in row:
            try:
                columns[name] = to_plain(row[name])
            except ValueError as error:
                raise TaskError(f"{place}: {name}: {error}") from None
    return columns


def facts(**values: object) -> JsonObject:
    """Return metadata without empty values."""
    return {name: value for name, value in values.items() if value not in (None, "", [], (), {})}


def task_name(instance_id: str) -> str:
    """Return the task id of a row: the row's own id or, if it has invalid characters, a unique one derived from it."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", instance_id):
        return instance_id
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", instance_id).lstrip("._-")[:120]
    digest = hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable or 'task'}-{digest[:8]}"


# --- sources ----------------------------------------------------------------------------------------------


class DatasetSource(ListedSource[tuple[Rows, int]]):
    """The tasks of a dataset, one per row. Opening it reads the ids; `get` reads one row.

    Args:
        path: A `.parquet`, `.jsonl` or `.json` file of rows, or a folder of them; None uses the Hub.
        dataset: Id on the Hugging Face Hub, if other than the source's default.
        revision: Commit, tag or branch of the dataset. Only a commit is reproducible.
        config: Configuration of the dataset; None is the default.
        split: Split of the dataset; None is the source's default on the Hub, and all files of a local folder.
        image: Image of the tasks, if other than the row's. "{image}" stands for the row's image, "{task_id}" for the
            id, as in "registry.example/{image}".

    Raises:
        UsageError: The file, dataset or split does not exist.
        TaskError: Rows are broken, two rows have the same id, or the Hub cannot be reached.
        MissingDependency: Parquet needs the extra `parquet`, the Hub the extra `hf`.
    """

    dataset: ClassVar[str] = ""
    split: ClassVar[str] = "train"
    model: ClassVar[type[Columns]]
    id_columns: ClassVar[tuple[str, ...]] = ("instance_id",)

    def __init__(
        self,
        path: str | None = None,
        *,
        dataset: str | None = None,
        revision: str | None = None,
        config: str | None = None,
        split: str | None = None,
        image: str | None = None,
    ) -> None:
        super().__init__()
        self._image = image
        for rows in self._files(path, dataset or self.dataset, revision, config, split):
            for number, key in enumerate(rows.keys(self.id_columns)):
                self.add(task_name(self.key_id(key, rows.place(number))), (rows, number))
        if not self._items:
            raise TaskError(f"{path or dataset or self.dataset} has no rows")

    def _files(
        self, path: str | None, dataset: str, revision: str | None, config: str | None, split: str | None
    ) -> list[Rows]:
        columns = [*self.id_columns, *self.model.model_fields]
        if path is None:
            files = fetch_dataset(dataset, revision=revision, config=config, split=split or self.split)
            return [rows for file in files for rows in open_rows(file, columns=columns)]
        if (dataset, revision, config) != (self.dataset, None, None):
            raise UsageError("path= names a local file or folder: remove it, or remove dataset=, revision= and config=")
        return open_rows(Path(path).expanduser().absolute(), split=split, columns=columns)

    def place(self, item: tuple[Rows, int]) -> str:
        """Return file and row."""
        rows, number = item
        return rows.place(number)

    def key_id(self, key: Key, place: str) -> str:
        """Return the dataset's id of a row, from the values of its `id_columns`.

        Raises:
            TaskError: A value is missing.
        """
        named = zip(self.id_columns, key, strict=True)
        missing = [name for name, value in named if value in (None, "") or value != value]  # NaN is not itself
        if missing:
            raise TaskError(f"{place}: {', '.join(missing)}: missing, but required for the id")
        return self.instance_id(*map(str, key))

    def build(self, task_id: str, item: tuple[Rows, int]) -> Task:
        """Read the row and build its task."""
        rows, number = item
        task = self.task_of(rows.read(number), self.place(item))
        image = task.image
        if self._image is not None:
            image = self._image.replace("{image}", task.image or "").replace("{task_id}", task_id)
        return task.model_copy(update={"task_id": task_id, "image": image})

    @classmethod
    def instance_id(cls, *values: str) -> str:
        """Return the dataset's id of a row, from the values of `id_columns` as text."""
        return values[0]

    @abc.abstractmethod
    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a row.

        Args:
            row: The row, by column.
            place: File and row, for messages.

        Raises:
            TaskError: The row is broken; the message names place and column.
        """
