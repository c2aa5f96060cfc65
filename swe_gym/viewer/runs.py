"""The runs of a page: one run, or all run folders in a folder, and the reader's notes beside each."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from ..errors import UsageError, wrong_fields
from ..files import append_lines, json_lines
from ..trajectories.comparison import (
    Comparison,
    RunResults,
    compare_results,
    compared_settings,
    config_differences,
    run_state,
    summarize,
)
from ..trajectories.run_folder import RUN, RunInfo, holds_runs
from ..types import Frozen, JsonObject
from .index import SLICE, EpisodeRow, RunIndex


class Runs:
    """The runs of a page. Its methods may be called from any thread.

    Args:
        path: A run folder, a trajectory file, or a folder of run folders. New runs in it are found as they start.

    Attributes:
        name: Name of the folder or file.
        many: Whether it is a folder of run folders.

    Raises:
        UsageError: The path is none of them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = Path(path)
        self.name = given.resolve().name
        self._folder = given
        self.many = holds_runs(given)
        self._mutex = threading.Lock()
        self._indexes: dict[str, RunIndex] = {} if self.many else {self.name: RunIndex(given)}
        self._problems: dict[str, str] = {}
        self._results: dict[str, tuple[tuple[str, int], RunResults]] = {}

    def index(self, name: str = "") -> RunIndex:
        """Return the index of a run.

        Args:
            name: Name of the run folder; empty if there is one run only.

        Raises:
            UsageError: The run does not exist.
        """
        if self.many and name not in self._indexes:
            self._find()
        index = self._indexes.get(name or ("" if self.many else self.name))
        if index is None:
            raise UsageError(f"no run {name!r} in {self.name}")
        return index

    def news(self) -> JsonObject:
        """Read what is new, for about a second at most, and return all runs as plain JSON."""
        if not self.many:
            return {"many": False, "name": self.name, "runs": []}
        indexes = self._find()
        read = self._refresh(indexes)
        indexes = {name: index for name, index in indexes.items() if name not in self._problems}
        behind = {name for name, index in indexes.items() if name not in read or index.behind}
        runs = list_runs(indexes, {name: self._result(name, index) for name, index in indexes.items()}, behind)
        return {"many": True, "name": self.name, "runs": runs, "problems": self._problems}

    def compare(self, names: Sequence[str]) -> JsonObject:
        """Compare runs as far as they have been read.

        Args:
            names: Names of the run folders.

        Returns:
            The `Comparison` as plain JSON, and `attempts`: for each task and run, the number, state, id of the row and
            stop reason of each attempt.

        Raises:
            UsageError: A run does not exist, or fewer than two are named.
        """
        indexes = {name: self.index(name) for name in names}
        if len(indexes) < 2:
            raise UsageError("choose two or more runs to compare")
        for index in indexes.values():
            index.read_all()
        found = compare_results([self._result(name, index) for name, index in indexes.items()])
        return comparison_page(found, indexes.values())

    def _find(self) -> dict[str, RunIndex]:
        """Return the indexes of the run folders that are there now, by name."""
        names = sorted(path.parent.name for path in self._folder.glob(f"*/{RUN}"))
        with self._mutex:
            self._problems = {}
            for name in names:
                if name in self._indexes:
                    continue
                try:
                    self._indexes[name] = RunIndex(self._folder / name)
                except (UsageError, OSError) as error:
                    self._problems[name] = str(error)
            self._indexes = {name: self._indexes[name] for name in names if name in self._indexes}
            return self._indexes

    def _refresh(self, indexes: dict[str, RunIndex]) -> set[str]:
        """Read what is new in each run until the time is over. Return the names of the runs that were read."""
        deadline = time.monotonic() + SLICE
        read = set()
        for name, index in sorted(indexes.items(), key=lambda pair: pair[0] in self._results):
            if time.monotonic() > deadline:
                break
            try:
                index.refresh()
            except (UsageError, OSError) as error:  # such as a run.json that was replaced by an invalid one
                self._problems[name] = str(error)
            read.add(name)
        return read

    def _result(self, name: str, index: RunIndex) -> RunResults:
        """Return the results of a run, counted again if it has new rows."""
        version = (index.generation, len(index.rows))
        known = self._results.get(name)
        if known is None or known[0] != version:
            known = self._results[name] = (version, results_of(name, index))
        return known[1]


def results_of(name: str, index: RunIndex) -> RunResults:
    """Count the attempts of a run as far as it has been read."""
    rows = index.rows[:]
    judged, failed = [row for row in rows if row.judged], [row for row in rows if not row.judged]
    info = index.run or RunInfo(experiment=name, config={}, config_hash="", tasks=(), attempts=0)
    return summarize(name, info, judged, failed)


def list_runs(
    indexes: Mapping[str, RunIndex], results: Mapping[str, RunResults], behind: Container[str] = ()
) -> list[JsonObject]:
    """Return the list of runs as plain JSON.

    Args:
        indexes: The runs by name.
        results: Their results.
        behind: Names of the runs that have not been read as a whole.
    """
    settings = config_differences([compared_settings(results[name].info) for name in indexes])
    return [
        {
            **results[name].summary.model_dump(),
            "active": index.active,
            "state": run_state(results[name].summary, index.progress, running=index.active),
            "behind": name in behind,
            "running": len(index.live) if index.active else 0,
            "eta": index.progress.get("eta"),
            "settings": {field: values[place] for field, values in settings.items()},
        }
        for place, (name, index) in enumerate(indexes.items())
    ]


def comparison_page(found: Comparison, indexes: Iterable[RunIndex]) -> JsonObject:
    """Return a comparison of runs, with their attempts at each task, as plain JSON."""
    attempts = [_attempts(index) for index in indexes]
    listed = [task.task_id for task in found.tasks]
    return {
        **found.model_dump(exclude={"runs"}),
        "attempts": {
            task_id: [run.get(task_id, []) for run in attempts]
            for task_id in [*listed, *sorted(set().union(*attempts) - {*listed})]
        },
    }


def _attempts(index: RunIndex) -> dict[str, list[tuple[int, str, str, str]]]:
    """Return number, state, id of the row and stop reason of each attempt, by task. Of its tries, the graded one."""
    best: dict[tuple[str, int], EpisodeRow] = {}
    for row in (*index.rows, *index.live):
        known = best.get((row.task_id, row.attempt))
        if known is None or not known.judged:
            best[row.task_id, row.attempt] = row
    found: dict[str, list[tuple[int, str, str, str]]] = {}
    for task_id, attempt in sorted(best):
        row = best[task_id, attempt]
        found.setdefault(task_id, []).append((attempt, row.state, row.id, row.reason))
    return found


NOTES = "notes.jsonl"


class Note(Frozen):
    """A note on a turn, or on an attempt as a whole.

    Attributes:
        task_id: Task id.
        attempt: Number of the attempt.
        turn: Number of the turn from 1; 0 for the whole attempt.
        labels: Labels.
        text: Text.
    """

    task_id: str = Field(max_length=500)
    attempt: int = Field(ge=0)
    turn: int = Field(default=0, ge=0)
    labels: tuple[str, ...] = Field(default=(), max_length=20)
    text: str = Field(default="", max_length=20_000)


def notes_path(source: Path) -> Path:
    """Return the file of the notes on a run folder, or on a trajectory file."""
    return source / NOTES if source.is_dir() else source.with_name(f"{source.name}.{NOTES}")


def read_notes(path: Path) -> list[Note]:
    """Return the notes of a file, which may be missing. Invalid lines are skipped."""
    notes: dict[tuple[str, int, int], Note] = {}
    for _, line in json_lines(path) if path.exists() else ():
        try:
            note = Note.model_validate_json(line)
        except ValidationError:
            continue
        notes[note.task_id, note.attempt, note.turn] = note
    return [note for note in notes.values() if note.labels or note.text]


def write_note(path: Path, content: bytes) -> None:
    """Add or replace a note. One without labels and text removes it.

    Args:
        path: File of the notes.
        content: The note as JSON.

    Raises:
        UsageError: The note is invalid, or the file cannot be written.
    """
    try:
        note = Note.model_validate_json(content)
    except ValidationError as error:
        raise UsageError(f"invalid note: {wrong_fields(error)}") from error
    try:
        append_lines(path, json.dumps(note.model_dump()))
    except OSError as error:
        raise UsageError(
            f"cannot save the note in {path} ({error.strerror}): make the folder writable, or copy the run"
        ) from error
