"""What all sources of public datasets share: finding rows, checking their columns, naming their tasks."""

from __future__ import annotations

import abc
import datetime
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ..errors import TaskError, UsageError, unknown_name, wrong_fields
from ..tables import decoded, plain
from ..types import Task
from .hub import fetch_dataset
from .rows import Rows, open_rows

# --- columns ----------------------------------------------------------------------------------------------


def _structure(value: Any, kind: type, empty: Any) -> Any:
    value = decoded(value)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"it is no {kind.__name__}, but {type(value).__name__}")
    return empty if value is None else value


def _moment(value: Any) -> Any:
    """A date as text; some datasets count milliseconds, parquet may bring a datetime."""
    if isinstance(value, int | float):
        try:
            return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC).isoformat()
        except (OverflowError, OSError):
            raise ValueError("it is no date") from None
    return value.isoformat() if isinstance(value, datetime.date) else value


Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Moment = Annotated[Text, BeforeValidator(_moment)]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(_structure(value, list, [])))]
AsObject = BeforeValidator(lambda value: _structure(value, dict, {}))
Object = Annotated[dict[str, Any], AsObject]


class Columns(BaseModel):
    """Base of row models: the columns that make a task, by their own names. Others that a row has do not matter."""

    model_config = ConfigDict(frozen=True, extra="ignore")


ColumnsT = TypeVar("ColumnsT", bound=Columns)


def read_columns(model: type[ColumnsT], row: Mapping[str, Any], place: str) -> ColumnsT:
    """A row, checked.

    Raises:
        TaskError: Columns are missing or wrong; the message names the place and each column, and not what is in it.
    """
    try:
        return model.model_validate(_plain_columns(model, row, place))
    except ValidationError as error:
        raise TaskError(f"{place}: {wrong_fields(error)}") from None


def _plain_columns(model: type[Columns], row: Mapping[str, Any], place: str) -> dict[str, Any]:
    columns = {}
    for name in model.model_fields:
        if name in row:
            try:
                columns[name] = plain(row[name])
            except ValueError as error:
                raise TaskError(f"{place}: {name}: {error}") from None
    return columns


def facts(**values: Any) -> dict[str, Any]:
    """Metadata without what is empty."""
    return {name: value for name, value in values.items() if value not in (None, "", [], (), {})}


def task_name(instance_id: str) -> str:
    """The id of the task of a row: the row's own, or where that has odd characters one made of it, as unique."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", instance_id):
        return instance_id
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", instance_id).lstrip("._-")[:120]
    digest = hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable or 'task'}-{digest[:8]}"


# --- sources ----------------------------------------------------------------------------------------------


class DatasetSource(abc.ABC):
    """The tasks of a dataset: each row is one. Opening it reads the ids, `get` reads one row.

    Args:
        path: A `.parquet`, `.jsonl` or `.json` file of the dataset's rows, or a folder of them; None is the Hub.
        dataset: Its id on the Hugging Face Hub, where that is another than the source's own.
        revision: A commit, tag or branch of it. Only a commit means the same for ever.
        config: One of its configurations; None is the default.
        split: One of its splits; None is the source's own on the Hub, and all files of a local folder.
        image: What image a task runs in, where that is not the one that the row means: "{image}" in it is the row's,
            as in "registry.example/{image}", and "{task_id}" is the task's id.

    Raises:
        UsageError: There is no such file, dataset or split.
        TaskError: The rows are broken, two have one id, or the Hub cannot be reached.
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
        self._image = image
        self._found: dict[str, tuple[Rows, int]] = {}
        columns = [*self.id_columns, *self.model.model_fields]
        for rows in self._files(path, dataset or self.dataset, revision, config, split, columns):
            for number, key in enumerate(rows.keys(self.id_columns)):
                self._add(rows, number, key)
        if not self._found:
            raise TaskError(f"{path or dataset or self.dataset} holds no rows")
        self._ids = tuple(self._found)

    def _files(
        self, path: str | None, dataset: str, revision: str | None, config: str | None, split: str | None, columns: Any
    ) -> list[Rows]:
        if path is None:
            files = fetch_dataset(dataset, revision=revision, config=config, split=split or self.split)
            return [rows for file in files for rows in open_rows(file, columns=columns)]
        if (dataset, revision, config) != (self.dataset, None, None):
            raise UsageError("path= is a local file or folder; dataset=, revision= and config= are for the Hub")
        return open_rows(Path(path).expanduser().absolute(), split=split, columns=columns)

    def _add(self, rows: Rows, number: int, key: Sequence[Any]) -> None:
        task_id = task_name(self.key_id(key, rows.place(number)))
        if task_id in self._found:
            other, first = self._found[task_id]
            raise TaskError(f"{rows.place(number)}: {task_id!r} is the id of {other.place(first)} already")
        self._found[task_id] = rows, number

    def key_id(self, key: Sequence[Any], place: str) -> str:
        """The dataset's name for a row, from the values of its `id_columns`.

        Raises:
            TaskError: One of them is missing.
        """
        named = zip(self.id_columns, key, strict=True)
        missing = [name for name, value in named if value in (None, "") or value != value]  # NaN is not itself
        if missing:
            raise TaskError(f"{place}: {', '.join(missing)}: needed for the id, and missing")
        return self.instance_id(*map(str, key))

    def ids(self) -> Sequence[str]:
        """The ids of all tasks, in the order of the rows."""
        return self._ids

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            UsageError: There is none; the message suggests the nearest.
            TaskError: Its row is broken; the message names file, row and column.
        """
        if task_id not in self._found:
            raise unknown_name("task", task_id, self._ids)
        rows, number = self._found[task_id]
        task = self.task_of(rows.read(number), rows.place(number))
        image = task.image
        if self._image is not None:
            image = self._image.replace("{image}", task.image or "").replace("{task_id}", task_id)
        return task.model_copy(update={"task_id": task_id, "image": image})

    @classmethod
    def instance_id(cls, *values: str) -> str:
        """The dataset's name for a row, from the values of `id_columns`."""
        return values[0]

    @abc.abstractmethod
    def task_of(self, row: Mapping[str, Any], place: str) -> Task:
        """The task that a row means.

        Args:
            row: The row, by column.
            place: Where it stands, for messages.

        Raises:
            TaskError: It is broken; the message names place and column.
        """
