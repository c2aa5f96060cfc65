"""The run folder: the files of a rollout, consistent at every moment.

    runs/NAME/
      run.json             the configuration
      trajectories.jsonl   records of graded episodes (see `find_records`); each (task, attempt) at most once
      index.jsonl          one `IndexLine` per record of trajectories.jsonl: its place, and the columns of a table
      failed.jsonl         records of failed tries: failures, cancelled and killed episodes
      regraded.jsonl       new verdicts, which others add (see `swe_gym.certification.regrading`)
      selection.json       choices among its attempts (see `swe_gym.selection`)
      live/                one file per running episode: its record so far
      progress.json        the last progress, replaced about every second
      lock                 held while a process writes

A line is complete once its newline is written, a record once its result is. Readers skip what is incomplete, and the
next process that opens the folder removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Literal, NamedTuple, Self

from pydantic import ValidationError

from ...errors import UsageError, wrong_fields
from ...files import end_of_lines, whole_lines, write_text
from ...types import Frozen, Json, JsonMapping, JsonObject
from ..trajectory import ModelServer, Prices, Trajectory, Turn, Usage, end_of_records, find_records, parse_line

logger = logging.getLogger(__name__)

RUN, TRAJECTORIES, INDEX, FAILED = "run.json", "trajectories.jsonl", "index.jsonl", "failed.jsonl"
LIVE, PROGRESS, LOCK = "live", "progress.json", "lock"
STALE = 15.0
"""Seconds without a new progress file before a run counts as stopped. A rollout writes one about once a second."""

MOST_NAMED = 20
"""Run folders that an error names."""


class EpisodeKey(NamedTuple):
    """The identity of an episode in a run."""

    task_id: str
    attempt: int
    config_hash: str


class RunInfo(Frozen):
    """The content of `run.json`.

    Attributes:
        version: Version of the folder's layout. In version 1, a record is one line.
        experiment: Run name.
        config: Everything that determines the episodes. A folder holds episodes of one configuration.
        config_hash: Hash of `config`.
        servers: Servers of the model whose answers the folder holds, in the order in which they were first asked. One
            without a URL: attempts of a version that recorded none.
        settings: How the last call ran: workers, budget of the run, prices if it was told any. May change when a run is
            resumed.
        tasks: Tasks of the last call.
        attempts: Attempts per task in the last call.
        swe_gym: Version of the package.
        created: Date and time (UTC, ISO 8601).
    """

    version: Literal[1, 2] = 2
    experiment: str
    config: JsonObject
    config_hash: str
    servers: tuple[ModelServer, ...] = ()
    settings: JsonObject = {}
    tasks: tuple[str, ...]
    attempts: int
    swe_gym: str = ""
    created: str = ""

    def counts(self, task_id: str, attempt: int) -> bool:
        """Return whether the last call asked for an attempt. Earlier calls may have graded more."""
        return attempt < self.attempts and task_id in self._known_tasks

    def stopped_early(self, graded: int) -> bool:
        """Return whether `early_stop` may have left attempts out, so that the rates of those graded are biased.

        Args:
            graded: Number of graded attempts that count.
        """
        return bool(self.settings.get("early_stop")) and graded < len(self.tasks) * self.attempts

    @functools.cached_property
    def _known_tasks(self) -> frozenset[str]:
        return frozenset(self.tasks)

    def cost(self, used: Sequence[Usage]) -> float | None:
        """Return the dollars of all requests. None: none was paid, or the price of some is unknown."""
        return sum(map(self.priced, used), Usage()).cost

    def priced(self, used: Usage) -> Usage:
        """Return usage at the prices of the last call, if it was told any."""
        return used.priced(self.prices) if self.prices else used

    @functools.cached_property
    def prices(self) -> Prices | None:
        """Prices that the last call was told."""
        told = self.settings.get("prices")
        return Prices.model_validate(told) if told else None

    def cached_at_full_price(self, used: Iterable[Usage]) -> bool:
        """Return whether cached prompt tokens are billed like others, since no price of them was told."""
        told = self.prices
        return told is not None and told.cached is None and any(one.cached_tokens for one in used)


class IndexLine(Frozen):
    """A line of the index: a summary of a graded episode, and the place of its record.

    Attributes:
        offset: Offset of the record in `trajectories.jsonl`, in bytes.
        length: Length of the record in bytes, newlines included.
        turns: Number of turns.
        cheat_signs: Number of cheat signs, as in `info`.
        invalid_calls: Number of turns without a valid tool call, as `invalid_actions` in `info`. None: not counted, in
            episodes of an agent with its own tools and in runs of the first version.
        unproven: Why no counter-test proves that the work is resolved, as in `info`.
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
    invalid_calls: int | None = None
    unproven: str = ""
    usage: Usage = Usage()
    seconds: dict[str, float] = {}
    started: str = ""

    @property
    def key(self) -> EpisodeKey:
        """The identity of the episode."""
        return EpisodeKey(self.task_id, self.attempt, self.config_hash)

    @property
    def end(self) -> int:
        """Offset of the first byte after the record."""
        return self.offset + self.length


# --- reading, also while the run is written ---------------------------------------------------------


def read_run(folder: str | os.PathLike[str]) -> RunInfo:
    """Read `run.json`.

    Raises:
        UsageError: The folder is not a run folder.
    """
    path = Path(folder) / RUN
    try:
        return RunInfo.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(_no_run(path.parent)) from None
    except ValidationError as error:
        raise UsageError(f"{path} is not a run of version 1 or 2: {wrong_fields(error)}") from error


def holds_runs(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is not a run folder itself, but has run folders in it."""
    path = Path(folder)
    return not (path / RUN).exists() and any(path.glob(f"*/{RUN}"))


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the run folders in a folder by name, or the folder itself if it is one.

    Raises:
        UsageError: The folder holds no run.
    """
    path = Path(folder)
    if (path / RUN).exists():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} {'is a file' if path.exists() else 'does not exist'}: pass a folder of run folders")
    found = sorted(run.parent for run in path.glob(f"*/{RUN}"))
    if not found:
        raise UsageError(f"{path} holds no run folder: `swe-gym rollout --output {path}` makes one")
    return found


def read_progress(folder: str | os.PathLike[str]) -> tuple[JsonObject, bool]:
    """Return the last progress of a run, empty without one, and whether the run is running."""
    path = Path(folder) / PROGRESS
    try:
        fresh = time.time() - path.stat().st_mtime < STALE
        progress = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # a copy may be damaged
        return {}, False
    return progress, fresh and progress.get("running", 0) > 0


def _no_run(path: Path) -> str:
    """Return why a path is not a run folder."""
    if not path.is_dir():
        return f"not a run folder: {path} {'is a file' if path.exists() else 'does not exist'}"
    inside = sorted(found.parent.name for found in path.glob(f"*/{RUN}"))
    more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    hint = f". Run folders in it: {', '.join(inside[:MOST_NAMED])}{more}" if inside else ""
    return f"not a run folder: {path} has no {RUN}{hint}"


def open_trajectories(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Yield the trajectories of a run folder or a file.

    Raises:
        UsageError: The file is missing, or a record is not a trajectory.
    """
    source = Path(path)
    if source.is_dir():
        source = source / TRAJECTORIES
    if not source.exists():
        raise UsageError(f"{path} is neither a run folder nor a trajectory file")
    return Trajectory.read(source)


def read_index(folder: str | os.PathLike[str]) -> list[IndexLine]:
    """Return one entry per graded episode, in the order in which they finished.

    Raises:
        UsageError: A line is invalid.
    """
    path = Path(folder) / INDEX
    entries = []
    for number, (_, line) in enumerate(whole_lines(path), 1):
        try:
            entries.append(IndexLine.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(
                f"{path}, line {number} is invalid ({wrong_fields(error)}): delete the file to rebuild it"
            ) from error
    return entries


def read_episodes(folder: str | os.PathLike[str]) -> list[IndexLine]:
    """Return one entry per graded episode, as `read_index` does, also for those that the index lacks.

    Raises:
        UsageError: A line is invalid.
    """
    path = Path(folder) / TRAJECTORIES
    entries = _agreeing(read_index(folder), path)
    return [*entries, *_entries(path, _end(entries))]


def read_failed(folder: str | os.PathLike[str]) -> list[IndexLine]:
    """Return one entry per failed try; its place is in `failed.jsonl`.

    Raises:
        UsageError: A line is invalid.
    """
    return list(_entries(Path(folder) / FAILED, 0))


def _agreeing(indexed: list[IndexLine], trajectories: Path) -> list[IndexLine]:
    """Return the entries of the index that agree with the trajectories. A process may be killed between the two."""
    size = trajectories.stat().st_size if trajectories.exists() else 0
    entries: list[IndexLine] = []
    for entry in indexed:
        if entry.end > size or entry.offset != _end(entries):
            break
        entries.append(entry)
    return entries


def _end(entries: list[IndexLine]) -> int:
    return entries[-1].end if entries else 0


def _entries(path: Path, start: int) -> Iterator[IndexLine]:
    """Yield the entries of the trajectories from an offset."""
    for record in find_records(whole_lines(path, start)):
        try:
            yield index_line(Trajectory.from_lines(record.lines), record.place, record.length)
        except UsageError as error:
            raise UsageError(f"{path}, byte {record.place}: {error}") from error


def read_indexed(folder: str | os.PathLike[str], entry: IndexLine) -> Trajectory:
    """Read the trajectory of an index entry.

    Raises:
        UsageError: The record is not a trajectory.
    """
    return read_record(Path(folder) / TRAJECTORIES, entry.offset, entry.length)


def read_record(path: Path, offset: int, length: int) -> Trajectory:
    """Read the record at a place of a file.

    Raises:
        UsageError: The range is not a record.
    """
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read(length).removesuffix(b"\n").split(b"\n")
    return Trajectory.from_lines(list(map(parse_line, lines)))


def read_live(folder: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Yield the episodes that run, or that a killed process left behind, so far."""
    for path in sorted((Path(folder) / LIVE).glob("*.jsonl")):
        trajectory = read_live_file(path)
        if trajectory is not None:
            yield trajectory


def read_live_file(path: Path) -> Trajectory | None:
    """Read a file of `live/`; None if its first line is incomplete."""
    lines = [parse_line(line) for _, line in whole_lines(path)]
    if not lines:
        return None
    so_far = Trajectory.from_lines(lines)
    return so_far.with_turns(so_far.turns)


# --- writing: one process ------------------------------------------------------------------------------------


class RunFolder:
    """A run folder that this process writes to. Methods may be called from any thread.

    Args:
        path: The folder; created if it is missing.
        run: The run.
        any_server: Whether attempts of another server may be in the folder.

    Attributes:
        finished: Graded episodes.
        failed: Tries that failed before the folder was opened.
        left_behind: Number of episodes that a killed process left behind.

    Raises:
        UsageError: Another process writes to the folder, it holds graded episodes of another configuration, or a file
            is invalid.
    """

    def __init__(self, path: str | os.PathLike[str], run: RunInfo, *, any_server: bool = False) -> None:
        self.path = Path(path)
        _check_ours(self.path)
        (self.path / LIVE).mkdir(parents=True, exist_ok=True)
        self._mutex = threading.Lock()
        with contextlib.ExitStack() as stack:
            stack.enter_context(take_lock(self.path / LOCK))
            self.run = self._agree(run, any_server=any_server)
            self._trajectories, self._failed, self._index = (
                stack.enter_context(contextlib.closing(_Appender(self.path / name, end_of)))
                for name, end_of in ((TRAJECTORIES, end_of_records), (FAILED, end_of_records), (INDEX, end_of_lines))
            )
            self.finished = self._catch_up()
            self.left_behind = self._gather_live()
            self.failed = read_failed(self.path)
            write_text(self.path / RUN, self.run.model_dump_json(indent=1) + "\n")
            self._open = stack.pop_all()

    def _agree(self, run: RunInfo, *, any_server: bool) -> RunInfo:
        """Return the run to resume, or the new one if there is none or it has no graded episode."""
        old = check_run(self.path, run.config, run.config_hash)
        if not any_server:
            check_servers(self.path, run.servers)
        if old is None:
            return run
        if old.config_hash == run.config_hash:
            servers = _with(old.servers, run.servers) if _has_content(self.path / TRAJECTORIES) else run.servers
            return run.model_copy(update={"created": old.created, "servers": servers})
        for path in (self.path / FAILED, self.path / PROGRESS, *(self.path / LIVE).glob("*.jsonl")):
            path.unlink(missing_ok=True)
        logger.info("%s held another configuration without graded episodes: it was replaced", self.path)
        return run

    def _catch_up(self) -> dict[EpisodeKey, IndexLine]:
        """Make the index agree with the trajectories. A process may have been killed between the two."""
        indexed, entries = read_index(self.path), read_episodes(self.path)
        finished = {entry.key: entry for entry in entries}
        if len(finished) < len(entries):
            raise UsageError(
                f"{self._trajectories.path} holds an episode twice: remove one of the records and delete index.jsonl"
            )
        if entries != indexed:
            logger.warning(
                "%s: the index had %d lines for %d episodes: repaired", self.path, len(indexed), len(entries)
            )
            self._index.rewrite(map(_line, entries))
        return finished

    def _gather_live(self) -> int:
        """Move episodes that a killed process left behind to the failed tries."""
        count = 0
        for path in sorted((self.path / LIVE).glob("*.jsonl")):
            left = read_live_file(path)
            if left is not None and _key(left) not in self.finished:
                self._failed.append(*left.model_copy(update={"reason": "killed"}).to_lines())
                count += 1
            path.unlink()
        if count:
            logger.warning("%s: moved %d unfinished episodes of a killed process to %s", self.path, count, FAILED)
        return count

    def start(self, beginning: Trajectory) -> LiveFile:
        """Open the file of a running episode. `add` and `fail` remove it."""
        return LiveFile(self._live_path(beginning.task_id, beginning.attempt), beginning)

    def add(self, trajectory: Trajectory) -> None:
        """Add a graded episode, which is never run again.

        Raises:
            OSError: Writing failed. The folder is consistent: the next process repairs the index.
        """
        lines = trajectory.to_lines()
        with self._mutex:
            offset, length = self._trajectories.append(*lines, sync=True)
            entry = index_line(trajectory, offset, length)
            self._index.append(_line(entry))
            self.finished[entry.key] = entry
        self._live_path(trajectory.task_id, trajectory.attempt).unlink(missing_ok=True)

    def fail(self, trajectory: Trajectory) -> None:
        """Add a failed try."""
        lines = trajectory.to_lines()
        with self._mutex:
            self._failed.append(*lines)
        self._live_path(trajectory.task_id, trajectory.attempt).unlink(missing_ok=True)

    def progress(self, counts: JsonMapping) -> None:
        """Replace `progress.json`."""
        write_text(self.path / PROGRESS, json.dumps(counts) + "\n")

    def _live_path(self, task_id: str, attempt: int) -> Path:
        return self.path / LIVE / f"{task_id}.{attempt}.jsonl"

    def close(self) -> None:
        """Release the folder. Idempotent."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


class LiveFile:
    """The file of a running episode. Each turn is written before the next one starts.

    Args:
        path: The file; replaced if it exists.
        beginning: The record without turns.
    """

    def __init__(self, path: Path, beginning: Trajectory) -> None:
        path.unlink(missing_ok=True)
        self._file = _Appender(path, end_of_lines)
        self._file.append(json.dumps(beginning.model_dump(exclude={"turns"})))

    def add(self, turn: Turn) -> None:
        """Write a turn."""
        self._file.append(json.dumps(turn.model_dump()))

    def close(self) -> None:
        """Close the file. It stays until the folder has the end of the episode."""
        self._file.close()


class _Appender:
    """A file that grows by whole lines. What a killed process left is removed when it is opened.

    Args:
        path: The file.
        end_of: Returns the offset behind what is kept of the file.
    """

    def __init__(self, path: Path, end_of: Callable[[BinaryIO], int]) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("ab", buffering=0)
        with path.open("rb") as written:
            self.size = end_of(written)
        self._file.truncate(self.size)

    def append(self, *lines: str, sync: bool = False) -> tuple[int, int]:
        """Add lines. Returns their offset and length in bytes.

        Raises:
            OSError: Writing failed; the file is unchanged.
        """
        data = b"".join(line.encode("ascii") + b"\n" for line in lines)
        start = self.size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]  # an unbuffered file may take less than it is given
            if sync:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
            raise
        self.size += len(data)
        return start, len(data)

    def rewrite(self, lines: Iterable[str]) -> None:
        """Replace the content."""
        self._file.truncate(0)
        self.size = 0
        self.append(*lines)

    def close(self) -> None:
        self._file.close()


def take_lock(path: Path) -> IO[str]:
    """Lock a run folder until the returned file is closed.

    Raises:
        UsageError: Another process holds the lock; the message names it.
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


def check_run(path: Path, config: JsonObject, config_hash: str) -> RunInfo | None:
    """Return the run that a folder holds, None if it holds none.

    Raises:
        UsageError: The folder holds graded episodes of another configuration, or something else.
    """
    _check_ours(path)
    if not (path / RUN).exists():
        return None
    old = read_run(path)
    if old.config_hash != config_hash and _has_content(path / TRAJECTORIES):
        changed = "; ".join(differences(old.config, config)) or "its hash"
        raise UsageError(
            f"{path} holds a run of another configuration ({changed}): "
            "choose another name, or restore the configuration to resume it"
        )
    return old


def check_servers(path: Path, servers: Sequence[ModelServer]) -> None:
    """Check that the graded episodes of a run, if there are any, are those of the same server and model.

    Raises:
        UsageError: They are not.
    """
    if not (path / RUN).exists() or not _has_content(path / TRAJECTORIES):
        return
    old = read_run(path).servers
    for new in servers if old else ():
        if not any(known.may_be(new) for known in old):
            changed = "; ".join(differences(old[-1].model_dump(), new.model_dump()))
            raise UsageError(
                f"{path} holds attempts of another server or model ({changed}): choose another name, ask the same "
                "one, or mix them in one run: run.any_server=true"
            )


def _with(known: Sequence[ModelServer], new: Sequence[ModelServer]) -> tuple[ModelServer, ...]:
    """Return the servers of a run that is resumed. What a server tells later adds to what it told before."""
    if new and not known:
        return (ModelServer(), *new)  # a former version recorded none
    servers = list(known)
    for one in new:
        same = next((place for place, server in enumerate(servers) if server.may_be(one)), None)
        if same is None:
            servers.append(one)
        else:
            servers[same] = one.model_copy(update={"model": {**servers[same].model, **one.model}})
    return tuple(servers)


def _check_ours(path: Path) -> None:
    """Refuse a file, and a folder of something else."""
    if not path.exists() or (path / RUN).exists():
        return
    ours = {RUN, TRAJECTORIES, INDEX, FAILED, LIVE, PROGRESS, LOCK}
    found = [path.name] if not path.is_dir() else [one.name for one in path.iterdir() if one.name not in ours]
    if found:
        raise UsageError(
            f"{path} is not a run folder, and holds something else ({', '.join(sorted(found)[:3])}): choose another "
            "name, or another folder of runs"
        )


def _key(trajectory: Trajectory) -> EpisodeKey:
    return EpisodeKey(trajectory.task_id, trajectory.attempt, trajectory.config_hash)


def index_line(trajectory: Trajectory, offset: int, length: int) -> IndexLine:
    """Return the index line of a trajectory."""
    same = ("task_id", "repo", "attempt", "config_hash", "outcome", "reason", "resolved", "reward", "tries", "started")
    return IndexLine(
        **{name: getattr(trajectory, name) for name in same},
        offset=offset,
        length=length,
        turns=len(trajectory.turns),
        cheat_signs=trajectory.info.get("cheat_signs", 0),
        invalid_calls=None if "agent" in trajectory.policy.options else trajectory.info.get("invalid_actions"),
        unproven=trajectory.info.get("unproven", ""),
        usage=_read_usage(trajectory),
        seconds=trajectory.seconds,
    )


def _read_usage(trajectory: Trajectory) -> Usage:
    """Return the usage of a trajectory. That of a killed try was recorded for its turns only, by former versions."""
    unknown = trajectory.usage == Usage()
    return sum((turn.usage for turn in trajectory.turns), Usage()) if unknown else trajectory.usage


def _line(entry: IndexLine) -> str:
    """Return the line of an entry, in ASCII like every line of the folder."""
    return json.dumps(entry.model_dump())


def differences(old: Json, new: Json, name: str = "") -> Iterator[str]:
    """Yield the differences of two JSON values as text."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name}: {json.dumps(old)[:80]}, now {json.dumps(new)[:80]}"
