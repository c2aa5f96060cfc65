"""Base of the task sources of public datasets: it finds rows, checks their columns and names their tasks."""

import abc
import datetime
import hashlib
import re
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ..errors import TaskError, UsageError, wrong_fields
from ..tables import decode_column, to_plain
from ..types import Json, JsonMapping, JsonObject, Task
from .base import ListedSource
from .hub import fetch_dataset
from .rows import Key, Rows, open_rows

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
