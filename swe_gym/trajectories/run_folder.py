"""The run folder: what a rollout leaves on disk, whole at every moment.

    runs/NAME/
      run.json             what was asked for
      trajectories.jsonl   finished episodes, one `Trajectory` per line; each (task, attempt) at most once
      index.jsonl          one `IndexLine` per line of trajectories.jsonl: where it is, and what a table shows
      failed.jsonl         tries that do not count, one `Trajectory` per line: failures, cancelled and killed episodes
      live/                one file per running episode: a `Trajectory` without turns, then one `Turn` per line
      progress.json        the last count, replaced every second or so
      lock                 held while a process writes

A line is finished when its newline is there. Whatever was killed in the middle of a line, the next process that opens
the folder cuts the half line off; readers just leave it out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, Self

from pydantic import ValidationError

from ..errors import UsageError, wrong_fields
from ..types import Frozen
from .trajectory import Trajectory, Turn, Usage, end_of_lines

logger = logging.getLogger(__name__)

RUN, TRAJECTORIES, INDEX, FAILED = "run.json", "trajectories.jsonl", "index.jsonl", "failed.jsonl"
LIVE, PROGRESS, LOCK = "live", "progress.json", "lock"


class EpisodeKey(NamedTuple):
    """What makes an episode one that was asked for: played once and never again."""

    task_id: str
    attempt: int
    config_hash: str


class RunInfo(Frozen):
    """What was asked for: the content of `run.json`.

    Attributes:
        version: Of the folder's layout.
        experiment: The name of the run.
        config: Everything that decides how an episode goes. A folder holds episodes of one config only.
        config_hash: Of `config`.
        settings: How it was played: workers, limits of the whole run and so on. May change when a run goes on.
        tasks: The tasks of the last call.
        attempts: Attempts at each task, likewise.
        swe_gym: The version that wrote it.
        created: Date and time (UTC, ISO 8601).
    """

    version: Literal[1] = 1
    experiment: str
    config: dict[str, Any]
    config_hash: str
    settings: dict[str, Any] = {}
    tasks: tuple[str, ...]
    attempts: int
    swe_gym: str = ""
    created: str = ""


class IndexLine(Frozen):
    """What a table shows of a finished episode, and where its line is.

    Attributes:
        offset: Of the line in `trajectories.jsonl`, in bytes.
        length: Of the line, in bytes, with its newline.
        turns: How many.
        cheat_signs: How many signs of cheating were seen, as `info` counts them.
        (others): As in `Trajectory`.
    """

    task_id: str
    repo: str = ""
    attempt: int
    config_hash: str
    offset: int
    length: int
    outcome: str
    reason: str
    resolved: bool
    reward: float
    turns: int
    tries: int
    cheat_signs: int = 0
    usage: Usage = Usage()
    seconds: dict[str, float] = {}
    started: str = ""

    @property
    def key(self) -> EpisodeKey:
        """Which episode it was."""
        return EpisodeKey(self.task_id, self.attempt, self.config_hash)

    @property
    def end(self) -> int:
        """Offset of the first byte behind the line."""
        return self.offset + self.length


# --- reading: for anybody, also while the run goes on ---------------------------------------------------------


def read_run(folder: str | os.PathLike[str]) -> RunInfo:
    """What the run of a folder was asked for.

    Raises:
        UsageError: It is no run folder.
    """
    path = Path(folder) / RUN
    try:
        return RunInfo.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} is no run folder: it holds no {RUN}") from None
    except ValidationError as error:
        raise UsageError(f"{path} does not describe a run of version 1: {wrong_fields(error)}") from error


def open_trajectories(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """The trajectories of a run folder, or of a file of them, one by one.

    Raises:
        UsageError: There is none, or a line is no trajectory.
    """
    source = Path(path)
    if source.is_dir():
        source = source / TRAJECTORIES
    if not source.exists():
        raise UsageError(f"{path} is neither a run folder nor a file of trajectories")
    return Trajectory.read(source)


def read_index(folder: str | os.PathLike[str]) -> list[IndexLine]:
    """One entry per finished episode, in the order in which they finished.

    Raises:
        UsageError: A line of it is broken.
    """
    path = Path(folder) / INDEX
    entries = []
    for number, (_, line) in enumerate(whole_lines(path), 1):
        try:
            entries.append(IndexLine.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{path}, line {number} is broken ({wrong_fields(error)}): delete the file") from error
    return entries


def read_indexed(folder: str | os.PathLike[str], entry: IndexLine) -> Trajectory:
    """The trajectory of an entry of the index.

    Raises:
        UsageError: The line is no trajectory.
    """
    with (Path(folder) / TRAJECTORIES).open("rb") as file:
        file.seek(entry.offset)
        return Trajectory.from_json(file.read(entry.length).decode())


def read_live(folder: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """The episodes that are running, or that a killed process left behind, as far as they got."""
    for path in sorted((Path(folder) / LIVE).glob("*.jsonl")):
        trajectory = read_live_file(path)
        if trajectory is not None:
            yield trajectory


def read_live_file(path: Path) -> Trajectory | None:
    """One of them; None where not even its beginning is on disk."""
    lines = [line for _, line in whole_lines(path)]
    if not lines:
        return None
    turns = tuple(Turn.model_validate_json(line) for line in lines[1:])
    return Trajectory.from_json(lines[0].decode()).model_copy(update={"turns": turns})


def whole_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each line that ends with a newline, which is kept. None where there is no file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        offset = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield offset, line
            offset += len(line)


# --- writing: one process ------------------------------------------------------------------------------------


class RunFolder:
    """A run folder that this process writes to. Its methods may be called from any thread.

    Args:
        path: The folder; it is made where it is missing.
        run: What is asked for.

    Raises:
        UsageError: Another process writes to it, it holds a run of another config, or a file of it is broken.
    """

    def __init__(self, path: str | os.PathLike[str], run: RunInfo) -> None:
        self.path = Path(path)
        (self.path / LIVE).mkdir(parents=True, exist_ok=True)
        self._mutex = threading.Lock()
        with contextlib.ExitStack() as stack:
            stack.enter_context(take_lock(self.path / LOCK))
            self.run = self._agree(run)
            self._trajectories, self._failed, self._index = (
                stack.enter_context(contextlib.closing(_Appender(self.path / name)))
                for name in (TRAJECTORIES, FAILED, INDEX)
            )
            self.finished = self._catch_up()
            self.left_behind = self._gather_live()
            write_whole(self.path / RUN, self.run.model_dump_json(indent=1))
            self._open = stack.pop_all()

    def _agree(self, run: RunInfo) -> RunInfo:
        """The run that goes on here, where one does."""
        if not (self.path / RUN).exists():
            return run
        old = read_run(self.path)
        if old.config_hash != run.config_hash:
            changed = "; ".join(differences(old.config, run.config)) or "its hash"
            raise UsageError(
                f"{self.path} holds a run of another configuration ({changed}). "
                "Give the new one another name, or ask for the old one to go on with it."
            )
        return run.model_copy(update={"created": old.created})

    def _catch_up(self) -> dict[EpisodeKey, IndexLine]:
        """Make the index say what the trajectories are, whatever was killed between the two."""
        size = self._trajectories.size
        entries: list[IndexLine] = []
        indexed = read_index(self.path)
        for entry in indexed:
            if entry.end > size or entry.offset != (entries[-1].end if entries else 0):
                break
            entries.append(entry)
        known = len(entries)
        for offset, line in whole_lines(self._trajectories.path, entries[-1].end if entries else 0):
            entries.append(index_line(Trajectory.from_json(line.decode()), offset, len(line)))
        finished = {entry.key: entry for entry in entries}
        if len(finished) < len(entries):
            raise UsageError(f"{self._trajectories.path} holds an episode twice: was it put together by hand?")
        if known < len(indexed):
            self._index.rewrite(entry.model_dump_json() for entry in entries[:known])
        if len(entries) > known:
            logger.warning("%s: added %d missing lines to the index", self.path, len(entries) - known)
        for entry in entries[known:]:
            self._index.append(entry.model_dump_json())
        return finished

    def _gather_live(self) -> int:
        """Move what a killed process left behind to the tries that do not count."""
        count = 0
        for path in sorted((self.path / LIVE).glob("*.jsonl")):
            left = read_live_file(path)
            if left is not None and _key(left) not in self.finished:
                self._failed.append(left.model_copy(update={"reason": "killed"}).to_json())
                count += 1
            path.unlink()
        if count:
            logger.warning("%s: moved %d unfinished episodes of a killed process to %s", self.path, count, FAILED)
        return count

    def start(self, beginning: Trajectory) -> LiveFile:
        """An episode begins. The file is gone when the episode was added or failed."""
        return LiveFile(self._live_path(beginning.task_id, beginning.attempt), beginning)

    def add(self, trajectory: Trajectory) -> None:
        """An episode is finished: it will not be played again.

        Raises:
            OSError: The disk did not take it. The folder is whole: what a line is lacking, the next process mends.
        """
        line = trajectory.to_json()
        with self._mutex:
            offset, length = self._trajectories.append(line, sync=True)
            entry = index_line(trajectory, offset, length)
            self._index.append(entry.model_dump_json())
            self.finished[entry.key] = entry
        self._live_path(trajectory.task_id, trajectory.attempt).unlink(missing_ok=True)

    def fail(self, trajectory: Trajectory) -> None:
        """A try came to an end that does not count."""
        line = trajectory.to_json()
        with self._mutex:
            self._failed.append(line)
        self._live_path(trajectory.task_id, trajectory.attempt).unlink(missing_ok=True)

    def progress(self, counts: Mapping[str, Any]) -> None:
        """Replace what `progress.json` says."""
        write_whole(self.path / PROGRESS, json.dumps(counts))

    def _live_path(self, task_id: str, attempt: int) -> Path:
        return self.path / LIVE / f"{task_id}.{attempt}.jsonl"

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LiveFile:
    """The file of a running episode: each turn is in it before the next one begins.

    Args:
        path: The file; an older one of that name is replaced.
        beginning: The record without turns.
    """

    def __init__(self, path: Path, beginning: Trajectory) -> None:
        self._file = path.open("wb", buffering=0)
        self._write(beginning.model_copy(update={"turns": ()}).to_json())

    def add(self, turn: Turn) -> None:
        """A step was taken."""
        self._write(json.dumps(turn.model_dump()))

    def _write(self, line: str) -> None:
        _write_all(self._file, line.encode("ascii") + b"\n")

    def close(self) -> None:
        """No more turns come. The file stays until the folder knows the end of the episode."""
        self._file.close()


class _Appender:
    """A file of lines that only grows, by whole lines. What stands behind its last newline is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("ab", buffering=0)
        with path.open("rb") as written:
            self.size = end_of_lines(written)
        self._file.truncate(self.size)

    def append(self, line: str, *, sync: bool = False) -> tuple[int, int]:
        """Add a line. Returns its offset and its length, in bytes.

        Raises:
            OSError: It was not written; nothing of it is in the file.
        """
        data = line.encode("ascii") + b"\n"
        start = self.size
        try:
            _write_all(self._file, data)
            if sync:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
            raise
        self.size += len(data)
        return start, len(data)

    def rewrite(self, lines: Iterator[str]) -> None:
        """Replace everything."""
        self._file.truncate(0)
        self.size = 0
        for line in lines:
            self.append(line)

    def close(self) -> None:
        self._file.close()


def _write_all(file: IO[bytes], data: bytes) -> None:
    """A file without a buffer may take a part of what it is given."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(text + "\n", encoding="utf-8")
    os.replace(new, path)


def take_lock(path: Path) -> IO[str]:
    """Keep other processes out of a run folder until the file is closed.

    Raises:
        UsageError: One is there; the message says which.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise UsageError(f"{path.parent}: another process writes to this run folder ({owner})") from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()}\n")
    file.flush()
    return file


def _key(trajectory: Trajectory) -> EpisodeKey:
    return EpisodeKey(trajectory.task_id, trajectory.attempt, trajectory.config_hash)


def index_line(trajectory: Trajectory, offset: int, length: int) -> IndexLine:
    """What the index says of a trajectory."""
    same = ("task_id", "repo", "attempt", "config_hash", "outcome", "reason", "resolved", "reward", "tries", "started")
    return IndexLine(
        **{name: getattr(trajectory, name) for name in same},
        offset=offset,
        length=length,
        turns=len(trajectory.turns),
        cheat_signs=trajectory.info.get("cheat_signs", 0),
        usage=trajectory.usage,
        seconds=trajectory.seconds,
    )


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """In words, where two pieces of plain data differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name}: {json.dumps(old)[:80]}, now {json.dumps(new)[:80]}"
