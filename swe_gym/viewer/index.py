"""The index of a run for its page, read from the run folder as it grows.

It reads each line once and keeps no trajectory, only the position of its record. It waits for incomplete records.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from ..errors import UsageError
from ..files import json_lines, whole_lines
from ..trajectories import Trajectory, Usage, find_records, kind_of, parse_line
from ..trajectories.run_folder import (
    FAILED,
    INDEX,
    LIVE,
    RUN,
    TRAJECTORIES,
    IndexLine,
    RunInfo,
    index_line,
    read_live_file,
    read_progress,
    read_record,
    read_run,
)
from ..types import Json, JsonObject
from .episode import Span, TurnIndex, find_turns

State = Literal["resolved", "unresolved", "failed", "running", "left"]
"""Judged (two states), an attempt that does not count, running, or left behind by a killed process."""

NOT_JUDGED = ("infra_failed", "running")
"""Outcomes that do not count."""

SLICE = 1.0
"""Maximum seconds of one refresh."""

MOST_KEPT = 32
"""Number of finished episodes whose places of turns are kept."""

FIRST_RECORDS = 10


class EpisodeRow(NamedTuple):
    """A row of the table of episodes.

    Attributes:
        id: Id of the record, for `RunIndex.trajectory`.
        state: State.
        task_id: Task id.
        repo: Repository.
        attempt: Number of the attempt at this task, from 0.
        tries: Number of tries, retries included.
        reason: Stop reason; empty while the episode runs.
        reward: Reward; 0.0 if not judged.
        turns: Number of turns so far.
        usage: Tokens and cost of the policy's model.
        cheat_signs: Number of signs of cheating.
        seconds: Wall-clock seconds by activity ("start", "tools", "grading", "policy"), and "total".
        started: Start (UTC, ISO 8601).
        invalid_calls: Number of turns without a valid tool call; None if they were not counted.
        unproven: Why no counter-test proves that the work is resolved.
    """

    id: str
    state: State
    task_id: str
    repo: str
    attempt: int
    tries: int
    reason: str
    reward: float
    turns: int
    usage: Usage
    cheat_signs: int
    seconds: dict[str, float]
    started: str
    invalid_calls: int | None = None
    unproven: str = ""

    @property
    def judged(self) -> bool:
        """Whether the episode was judged."""
        return self.state in ("resolved", "unresolved")

    @property
    def resolved(self) -> bool:
        """Whether the episode was judged and resolved."""
        return self.state == "resolved"


def row_of(name: str, state: State, entry: IndexLine) -> EpisodeRow:
    """Make the row of an index entry."""
    return EpisodeRow(name, state, *(getattr(entry, field) for field in EpisodeRow._fields[2:]))


class RunIndex:
    """An index of a run folder or a trajectory file. Its methods may be called from any thread.

    Args:
        path: The folder or file.

    Attributes:
        path: The folder or file.
        generation: Id that changes when the index starts over, which invalidates earlier rows.
        rows: Finished episodes, in reading order. Only grows within a generation.
        live: Episodes that are running, or that a killed process left behind.
        problems: Messages about lines that cannot be read.
        run: Configuration of the run; None for a file.
        progress: Last progress of the run; empty without one.
        active: Whether the run is running.
        behind: Whether the last refresh ran out of time.

    Raises:
        UsageError: The path is neither.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = Path(path)
        self.path = given
        self.folder = given if given.is_dir() else None
        self._trajectories = given / TRAJECTORIES if self.folder else given
        self._files = [self._trajectories, given / FAILED] if self.folder else [given]
        if self.folder is not None:
            read_run(self.folder)
        if not given.exists():
            raise UsageError(f"{path} is neither a run folder nor a trajectory file")
        if self.folder is None and not _may_hold_trajectories(given):
            raise UsageError(f"{path} is not a trajectory file; `swe-gym import` converts files of other systems")
        self._mutex = threading.Lock()
        self.run: RunInfo | None = None
        self._run_changed = 0
        self._begin()

    def _begin(self) -> None:
        self.generation = secrets.token_hex(8)
        self.rows: list[EpisodeRow] = []
        self.live: list[EpisodeRow] = []
        self.problems: list[str] = []
        self.progress: JsonObject = {}
        self.active = self.behind = False
        self._places: dict[str, tuple[Path, Span]] = {}
        self._turns_at = functools.lru_cache(MOST_KEPT)(find_turns)
        self._ends = dict.fromkeys(self._files, 0)
        self._index_end = 0
        self._running: dict[str, _LiveReader] = {}

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run.experiment if self.run else self._trajectories.stem

    # --- reading what is new ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read new lines, for about a second at most."""
        with self._mutex:
            deadline = time.monotonic() + SLICE
            if self._is_another_run():
                self._begin()
            indexed = self.folder is None or self._read_index(self.folder / INDEX, deadline)  # the fast way
            self.behind = not (indexed and all(self._read_records(path, deadline) for path in self._files))
            if self.folder is not None:
                self.progress, self.active = read_progress(self.folder)
                self._read_live(self.folder)

    def read_all(self) -> None:
        """Read all lines."""
        self.refresh()
        while self.behind:
            self.refresh()

    def _is_another_run(self) -> bool:
        """Return whether the folder was replaced or its files were truncated."""
        before = self.run
        if self.folder is not None and (changed := _stat(self.folder / RUN, "st_mtime_ns")) != self._run_changed:
            self.run, self._run_changed = read_run(self.folder), changed
        replaced = before is not None and before.created != (self.run and self.run.created)
        return replaced or any(_stat(path, "st_size") < self._ends[path] for path in self._files)

    def _read_records(self, path: Path, deadline: float) -> bool:
        """Read new records. Return whether all were read."""
        for record in find_records(whole_lines(path, self._ends[path])):
            self._ends[path] = record.place + record.length
            try:
                self._add(path, index_line(Trajectory.from_lines(record.lines), record.place, record.length))
            except UsageError as error:
                self.problems.append(f"{path.name}, byte {record.place}: {error}")
            if time.monotonic() > deadline:
                return False
        return True

    def _read_index(self, path: Path, deadline: float) -> bool:
        size = _stat(self._trajectories, "st_size")
        if _stat(path, "st_size") < self._index_end:
            self._index_end = 0  # it was rebuilt
        for offset, line in whole_lines(path, self._index_end):
            try:
                entry = IndexLine.model_validate_json(line)
            except ValidationError:
                return True  # the next rollout rebuilds it
            end = self._ends[self._trajectories]
            if entry.offset > end or entry.end > size:
                return True
            self._index_end = offset + len(line)
            if entry.offset == end:
                self._ends[self._trajectories] = entry.end
                self._add(self._trajectories, entry)
            if time.monotonic() > deadline:
                return False
        return True

    def _add(self, path: Path, entry: IndexLine) -> None:
        failed = path.name == FAILED
        name = f"{'failed' if failed else 'line'}-{entry.offset}"
        self._places[name] = path, Span(entry.offset, entry.length)
        state: State = "resolved" if entry.resolved else "unresolved"
        if failed or entry.outcome in NOT_JUDGED:
            state = "failed"
        self.rows.append(row_of(name, state, entry))

    def _read_live(self, folder: Path) -> None:
        running = {}
        for path in sorted((folder / LIVE).glob("*.jsonl")):
            known = self._running.get(path.name)
            running[path.name] = known if known and known.is_current() else _LiveReader(path)
        self._running = running
        state: State = "running" if self.active else "left"
        self.live = [row for file in running.values() if (row := file.row(state)) is not None]
        if self.live:  # its record may be written before its live file is removed
            over = {(row.task_id, row.attempt, row.started) for row in self.rows[-1000:]}
            self.live = [row for row in self.live if (row.task_id, row.attempt, row.started) not in over]

    def news(self, generation: str = "", known: int = 0) -> JsonObject:
        """Return what is new to a page, as plain JSON.

        Args:
            generation: Generation that the page has.
            known: Number of rows that the page has.
        """
        with self._mutex:
            start = known if generation == self.generation else 0
            return {
                "name": self.name,
                "folder": self.path.resolve().name,
                "run": self.run.model_dump(exclude={"tasks"}) if self.run else {},
                "columns": COLUMNS,
                "generation": self.generation,
                "start": start,
                "rows": [as_list(row) for row in self.rows[start:]],
                "live": [as_list(row) for row in self.live],
                "progress": self.progress,
                "active": self.active,
                "behind": self.behind,
                "problems": self.problems[-5:],
                "unreadable": len(self.problems),
            }

    # --- one episode ------------------------------------------------------------------------------------------

    def trajectory(self, name: str) -> Trajectory:
        """Read the record of a row from disk.

        Args:
            name: The row's `id`.

        Raises:
            UsageError: The id is unknown, or its record is not a trajectory.
        """
        place, running = self._find(name)
        if place is not None:
            return read_record(place[0], *place[1])
        trajectory = read_live_file(running.path) if running else None
        if trajectory is None:
            raise _make_unknown_error(name)
        return trajectory

    def turns(self, name: str) -> TurnIndex:
        """Return the places and summaries of the turns of a row, which grow while it runs.

        Raises:
            UsageError: The id is unknown, or its record is not a trajectory.
        """
        place, running = self._find(name)
        if place is not None:
            return self._turns_at(*place)
        if running is None or not running.turns.head:
            raise _make_unknown_error(name)
        return running.turns

    def _find(self, name: str) -> tuple[tuple[Path, Span] | None, _LiveReader | None]:
        with self._mutex:
            return self._places.get(name), self._running.get(name.removeprefix("live-"))


def _may_hold_trajectories(path: Path) -> bool:
    """Return whether one of the first records is a trajectory, or there is none yet."""
    found = list(itertools.islice(find_records(json_lines(path)), FIRST_RECORDS))
    return not found or any(kind_of(record.lines[0]) in ("header", "whole") for record in found)


def _make_unknown_error(name: str) -> UsageError:
    return UsageError(f"unknown episode {name!r}: it may have ended since the page was loaded")


class _LiveReader:
    """A reader of the file of a running episode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beginning = b""
        self._entry: IndexLine | None = None
        self._end = 0
        self.turns = TurnIndex(lambda: path.open("rb"))
        self._usage = Usage()
        self._tools = self._policy = 0.0

    def is_current(self) -> bool:
        """Return whether the file still belongs to the same try."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            return file.read(len(self._beginning)) == self._beginning and _stat(self.path, "st_size") >= self._end
        return False

    def row(self, state: State) -> EpisodeRow | None:
        """Read new turns and return the row; None if the file has no valid start of an episode."""
        with contextlib.suppress(ValueError, KeyError):  # of another version; its record will be reported
            self._read()
        if self._entry is None:
            return None
        spent = {**self._entry.seconds, "tools": self._tools, "policy": self._policy}
        spent["total"] = spent.get("start", 0.0) + self._tools + self._policy
        changes = {"turns": len(self.turns.turns), "usage": self._usage, "seconds": spent, "reason": ""}
        return row_of(f"live-{self.path.name}", state, self._entry.model_copy(update=changes))

    def _read(self) -> None:
        for offset, line in whole_lines(self.path, self._end):
            self._end = offset + len(line)
            if self._entry is None:
                self._beginning = line
                self._entry = index_line(Trajectory.from_lines([parse_line(line)]), 0, 0)
                self.turns.head = (Span(0, len(line)),)
            else:
                self._add(self.turns.add(Span(offset, len(line)), line))

    def _add(self, turn: JsonObject) -> None:
        self._tools += turn["seconds"]
        self._policy += turn["policy_seconds"]
        self._usage += Usage.model_validate(turn["usage"])


COLUMNS = (
    *("id", "state", "task", "repo", "attempt", "tries", "reason", "reward", "turns"),
    *("read", "written", "cost", "signs", "started", "start", "policy", "tools", "grading", "total"),
)
"""The order of the values in `as_list`."""


def as_list(row: EpisodeRow) -> list[Json]:
    """Return a row as a list in the order of `COLUMNS`."""
    used, spent = row.usage, row.seconds
    times = [round(spent.get(name, 0.0), 3) for name in COLUMNS[-5:]]
    return [*row[:9], used.prompt_tokens, used.completion_tokens, used.cost, row.cheat_signs, row.started, *times]


def _stat(path: Path, field: str) -> int:
    """Return a field of the status of a file, 0 if it is missing."""
    try:
        return int(getattr(path.stat(), field))
    except FileNotFoundError:
        return 0
