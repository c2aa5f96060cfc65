"""What a page shows of a run, read from its folder as it grows.

Nothing is read twice and no trajectory is kept: a row of the table knows the bytes of its line. Half-written lines are
waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from ..errors import UsageError
from ..lines import whole_lines
from ..trajectories.run_folder import (
    FAILED,
    INDEX,
    LIVE,
    PROGRESS,
    RUN,
    TRAJECTORIES,
    IndexLine,
    RunInfo,
    index_line,
    read_live_file,
    read_run,
)
from ..trajectories.trajectory import Trajectory, Usage

State = Literal["resolved", "unresolved", "failed", "running", "left"]
"""Judged one way or the other, a try that does not count, being played, left behind by a process that was killed."""

NOT_JUDGED = ("infra_failed", "running")
"""Outcomes of a trajectory that do not count."""

STALE = 15.0
"""Seconds after which a run is over whose count was not replaced; a rollout replaces it about once a second."""

SLICE = 1.0
"""Seconds that one look at a folder may take; the next one goes on."""


class Row(NamedTuple):
    """A line of the run's table.

    Attributes:
        id: Of the episode's record, for `RunIndex.trajectory`.
        state: How it ended, where it did.
        task_id: The task.
        repo: Whose code it is.
        attempt: Which of the attempts at this task, from 0.
        tries: How often it was played.
        reason: What ended it; empty while it is played.
        reward: What it was worth; 0.0 where it was not judged.
        turns: Steps so far.
        usage: What the policy used of its model.
        cheat_signs: How many signs of cheating were seen.
        seconds: Wall-clock time by activity: "start", "tools", "grading", "policy"; and "total".
        started: Date and time (UTC, ISO 8601).
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

    @property
    def judged(self) -> bool:
        """It counts."""
        return self.state in ("resolved", "unresolved")


def row_of(name: str, state: State, entry: IndexLine) -> Row:
    """The row of an entry of the index."""
    return Row(
        id=name,
        state=state,
        task_id=entry.task_id,
        repo=entry.repo,
        attempt=entry.attempt,
        tries=entry.tries,
        reason=entry.reason,
        reward=entry.reward,
        turns=entry.turns,
        usage=entry.usage,
        cheat_signs=entry.cheat_signs,
        seconds=entry.seconds,
        started=entry.started,
    )


class _Place(NamedTuple):
    """Where a record stands: a line of a file, in bytes."""

    path: Path
    offset: int
    length: int


class RunIndex:
    """A run folder, or a file of trajectories, as far as it was read. Its methods may be called from any thread.

    Args:
        path: The folder or file.

    Attributes:
        generation: Another one each time that reading began anew: rows that were handed out before are void.
        rows: Episodes that are over, in the order in which they were read. It only grows, within a generation.
        live: Episodes that are being played, or that a killed process left behind.
        problems: Lines that could not be read, in words.
        run: What was asked for; None for a file.
        progress: The run's last count, as `Progress`; empty where there is none.
        active: The run goes on.
        behind: There is more to read than one look had time for.

    Raises:
        UsageError: It is neither.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = Path(path)
        self.folder = given if given.is_dir() else None
        self._trajectories = given / TRAJECTORIES if self.folder else given
        if self.folder is not None and not (self.folder / RUN).exists():
            inside = sorted(found.parent.name for found in self.folder.glob(f"*/{RUN}"))
            hint = f"; in it are {', '.join(inside)}" if inside else ""
            raise UsageError(f"{path} is no run folder: it holds no {RUN}{hint}")
        if not given.exists():
            raise UsageError(f"{path} is neither a run folder nor a file of trajectories")
        self._mutex = threading.Lock()
        self.run: RunInfo | None = None
        self._run_changed = 0
        self._begin()

    def _begin(self) -> None:
        self.generation = secrets.token_hex(8)
        self.rows: list[Row] = []
        self.live: list[Row] = []
        self.problems: list[str] = []
        self.progress: dict[str, Any] = {}
        self.active = self.behind = False
        self._places: dict[str, _Place] = {}
        self._end = self._failed_end = self._index_end = 0
        self._running: dict[str, _Running] = {}

    @property
    def name(self) -> str:
        """Of the run."""
        return self.run.experiment if self.run else self._trajectories.stem

    # --- reading what is new ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what came since the last time, for about a second at most."""
        with self._mutex:
            deadline = time.monotonic() + SLICE
            if self._is_another_run():
                self._begin()
            self.behind = not (self._read_finished(deadline) and self._read_failed(deadline))
            if self.folder is not None:
                self._read_progress(self.folder)
                self._read_live(self.folder)

    def read_all(self) -> None:
        """Read until nothing is left, however long it takes."""
        self.refresh()
        while self.behind:
            self.refresh()

    def _is_another_run(self) -> bool:
        """The folder was replaced, or files of it were cut by more than half a line."""
        before = self.run
        if self.folder is not None and (changed := _changed(self.folder / RUN)) != self._run_changed:
            self.run, self._run_changed = read_run(self.folder), changed
        failed = self._trajectories.with_name(FAILED)
        return (
            (before is not None and before.created != (self.run and self.run.created))
            or _size(self._trajectories) < self._end
            or (self.folder is not None and _size(failed) < self._failed_end)
        )

    def _read_finished(self, deadline: float) -> bool:
        """The index says it quickly; what it does not say yet, the lines themselves do. True if nothing is left."""
        if self.folder is not None and not self._read_index(self.folder / INDEX, deadline):
            return False
        for offset, line in whole_lines(self._trajectories, self._end):
            self._end = offset + len(line)
            self._add_line(_Place(self._trajectories, offset, len(line)), line)
            if time.monotonic() > deadline:
                return False
        return True

    def _read_index(self, path: Path, deadline: float) -> bool:
        size = _size(self._trajectories)
        if _size(path) < self._index_end:
            self._index_end = 0  # it was made again
        for offset, line in whole_lines(path, self._index_end):
            try:
                entry = IndexLine.model_validate_json(line)
            except ValidationError:
                return True  # the next rollout makes it again; until then the lines themselves are read
            if entry.offset > self._end or entry.end > size:
                return True
            self._index_end = offset + len(line)
            if entry.offset == self._end:
                self._end = entry.end
                self._add(_Place(self._trajectories, entry.offset, entry.length), entry)
            if time.monotonic() > deadline:
                return False
        return True

    def _read_failed(self, deadline: float) -> bool:
        if self.folder is None:
            return True
        path = self.folder / FAILED
        for offset, line in whole_lines(path, self._failed_end):
            self._failed_end = offset + len(line)
            self._add_line(_Place(path, offset, len(line)), line)
            if time.monotonic() > deadline:
                return False
        return True

    def _add_line(self, place: _Place, line: bytes) -> None:
        try:
            entry = index_line(Trajectory.from_json(line.decode()), place.offset, place.length)
        except ValueError as error:  # UsageError and UnicodeDecodeError are such
            self.problems.append(f"{place.path.name}, byte {place.offset}: {error}")
            return
        self._add(place, entry)

    def _add(self, place: _Place, entry: IndexLine) -> None:
        failed = place.path.name == FAILED
        name = f"{'failed' if failed else 'line'}-{place.offset}"
        self._places[name] = place
        state: State = "resolved" if entry.resolved else "unresolved"
        if failed or entry.outcome in NOT_JUDGED:
            state = "failed"
        self.rows.append(row_of(name, state, entry))

    def _read_progress(self, folder: Path) -> None:
        path = folder / PROGRESS
        with contextlib.suppress(FileNotFoundError):
            self.active = time.time() - path.stat().st_mtime < STALE
            self.progress = json.loads(path.read_bytes())
        self.active = self.active and self.progress.get("running", 0) > 0

    def _read_live(self, folder: Path) -> None:
        running = {}
        for path in sorted((folder / LIVE).glob("*.jsonl")):
            known = self._running.get(path.name)
            running[path.name] = known if known and known.goes_on() else _Running(path)
        self._running = running
        state: State = "running" if self.active else "left"
        self.live = [row for file in running.values() if (row := file.row(state)) is not None]
        if self.live:  # its end may be on disk before the file of its turns is gone
            over = {(row.task_id, row.attempt, row.started) for row in self.rows[-1000:]}
            self.live = [row for row in self.live if (row.task_id, row.attempt, row.started) not in over]

    def news(self, generation: str = "", known: int = 0) -> dict[str, Any]:
        """What a page does not know yet, as plain JSON.

        Args:
            generation: What the page has seen before.
            known: How many of its rows.
        """
        with self._mutex:
            start = known if generation == self.generation else 0
            return {
                "name": self.name,
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
        """The record of a row, read from disk.

        Args:
            name: The row's `id`.

        Raises:
            UsageError: There is none of that name, or its line is no trajectory.
        """
        with self._mutex:
            place, running = self._places.get(name), self._running.get(name.removeprefix("live-"))
        if place is not None:
            with place.path.open("rb") as file:
                file.seek(place.offset)
                return Trajectory.from_json(file.read(place.length).decode())
        trajectory = read_live_file(running.path) if running else None
        if trajectory is None:
            raise UsageError(f"there is no episode {name!r} here, or no longer: it may have ended")
        return trajectory


class _Running:
    """The file of a running episode, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beginning = b""
        self._entry: IndexLine | None = None
        self._end = 0
        self._turns = 0
        self._usage = Usage()
        self._tools = self._policy = 0.0

    def goes_on(self) -> bool:
        """It is still the same try, and not the next one in a file of the same name."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            return file.read(len(self._beginning)) == self._beginning and _size(self.path) >= self._end
        return False

    def row(self, state: State) -> Row | None:
        """With the turns that are on disk by now; None where not even a beginning is, or nothing that is an episode."""
        with contextlib.suppress(ValueError, KeyError):  # of another version: its end will be named as such
            self._read()
        if self._entry is None:
            return None
        spent = {**self._entry.seconds, "tools": self._tools, "policy": self._policy}
        spent["total"] = spent.get("start", 0.0) + self._tools + self._policy
        changes = {"turns": self._turns, "usage": self._usage, "seconds": spent, "reason": ""}
        return row_of(f"live-{self.path.name}", state, self._entry.model_copy(update=changes))

    def _read(self) -> None:
        for offset, line in whole_lines(self.path, self._end):
            self._end = offset + len(line)
            if self._entry is None:
                self._beginning = line
                self._entry = index_line(Trajectory.from_json(line.decode()), 0, 0)
            else:
                self._add(json.loads(line))

    def _add(self, turn: dict[str, Any]) -> None:
        self._turns += 1
        self._tools += turn["seconds"]
        self._policy += turn["policy_seconds"]
        self._usage += Usage.model_validate(turn["usage"])


COLUMNS = (
    *("id", "state", "task", "repo", "attempt", "tries", "reason", "reward", "turns"),
    *("read", "written", "cost", "signs", "started", "start", "policy", "tools", "grading", "total"),
)
"""What stands where in a row as a page takes it."""


def as_list(row: Row) -> list[Any]:
    """A row as a page takes it: short, in the order of `COLUMNS`."""
    used, spent = row.usage, row.seconds
    times = [round(spent.get(name, 0.0), 3) for name in COLUMNS[-5:]]
    return [*row[:9], used.prompt_tokens, used.completion_tokens, used.cost, row.cheat_signs, row.started, *times]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
