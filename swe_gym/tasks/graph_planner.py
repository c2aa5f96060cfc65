"""Graph Planner's task files: JSON lines, and the parquet files that it derives from them for verl.

A record holds the issue and the image, but not how the work is judged. That is in the R2E-Gym row which
`sandbox.r2e_ds_json` names, or in SWE-bench rows, passed as `rows`.
"""

import contextlib
import json
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import BeforeValidator

from ..errors import TaskError, UsageError
from ..types import Json, JsonMapping, JsonObject, Task
from . import r2e
from .dataset import AsObject, Columns, DatasetSource, Key, Text, facts, read_columns, task_name
from .swebench import SWEBenchSource


class Box(Columns):
    """The sandbox of a record."""

    docker_image: Text = ""
    r2e_ds_json: Text = ""
    env: Annotated[dict[str, str], BeforeValidator(lambda value: value or {})] = {}


class Issue(Columns):
    """The issue of a record."""

    title: Text = ""
    body: Text = ""


class Extra(Columns):
    """The fields of a record in parquet files."""

    issue_id: Text = ""
    repo: Text = ""
    sandbox: Annotated[Box, AsObject] = Box()


class GraphPlannerRow(Columns):
    """A record of JSON lines or, with `extra_info`, of parquet."""

    task_id: Text = ""
    extra_info: Annotated[Extra, AsObject] = Extra()
    issue: Annotated[Issue, AsObject] = Issue()
    sandbox: Annotated[Box, AsObject] = Box()
    docker_image: Text = ""
    repo: Text = ""
    max_steps: int | None = None
    data_source: Text = ""

    @property
    def box(self) -> Box:
        """The sandbox, at the top or in `extra_info`."""
        return self.sandbox if self.sandbox != Box() else self.extra_info.sandbox

    @property
    def record_id(self) -> str:
        """Id of the record or its issue. Parquet files often have neither, but a file named like the task."""
        return self.task_id or self.extra_info.issue_id or PurePath(self.box.r2e_ds_json).stem


class GraphPlannerSource(DatasetSource):
    """The tasks of Graph Planner's files.

    Args:
        path: A `.jsonl` or `.parquet` file, or a folder of them.
        rows: File or folder of SWE-bench rows, which define how their tasks are judged.
        **options: `split` and `image`, as in `DatasetSource`.

    Raises:
        UsageError: `path` is missing: these files are not on the Hub.
    """

    model = GraphPlannerRow
    id_columns = ("task_id", "extra_info", "sandbox")

    def __init__(self, path: str | None = None, *, rows: str | None = None, **options: Json) -> None:
        if path is None:
            raise UsageError("path= is required: Graph Planner's files are not on the Hub")
        file = Path(path).expanduser().absolute()
        self._folder = file if file.is_dir() else file.parent
        self._rows = None if rows is None else SWEBenchSource(rows)
        super().__init__(path, **options)

    def key_id(self, key: Key, place: str) -> str:
        """Return the record's id."""
        columns = read_columns(GraphPlannerRow, dict(zip(self.id_columns, key, strict=True)), place)
        if columns.record_id:
            return columns.record_id
        raise TaskError(f"{place}: task_id, extra_info.issue_id: both missing, but one is required for the id")

    def task_of(self, row: JsonMapping, place: str) -> Task:
        """Return the task of a record, judged like the row that it was derived from."""
        columns = read_columns(GraphPlannerRow, row, place)
        sandbox = columns.box
        task = self._read_judged(columns.record_id, sandbox.r2e_ds_json, place)
        said: JsonObject = {
            "task_id": task_name(columns.record_id),
            "repo": columns.repo or columns.extra_info.repo or task.repo,
            "image": columns.docker_image or sandbox.docker_image or task.image,
            "env": {**task.env, **sandbox.env},
            "metadata": facts(**task.metadata, data_source=columns.data_source, max_steps=columns.max_steps),
        }
        title, body = columns.issue.title.strip(), r2e.issue_text(columns.issue.body)
        if title or body:
            said["problem_statement"] = body if body.startswith(title) else f"# {title}\n\n{body}".strip()
        return task.model_copy(update=said)

    def _read_judged(self, record_id: str, named: str, place: str) -> Task:
        if self._rows is not None and task_name(record_id) in self._rows.ids():
            return self._rows.get(task_name(record_id))
        file = self._find(named) if named else None
        if file is None:
            raise TaskError(
                f"{place}: sandbox.r2e_ds_json: file not found: {named or 'none named'}; pass SWE-bench rows as rows="
            )
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{file}: not JSON: {error}") from None
        original = data.get("raw", data) if isinstance(data, dict) else {}
        if not isinstance(original, dict) or "expected_output_json" not in original:
            raise TaskError(f"{file}: expected_output_json: missing; pass the rows of SWE-bench tasks as rows=")
        return r2e.task_from_row(original, place=str(file))

    def _find(self, name: str) -> Path | None:
        """Return the file of a record. Records name it by a path of the machine that created them."""
        places = (
            Path(name),
            self._folder / name,
            self._folder.parent / name,
            self._folder / "instances" / Path(name).name,
        )
        with contextlib.suppress(OSError):  # not a valid file name
            return next((place for place in places if place.is_file()), None)
        return None
