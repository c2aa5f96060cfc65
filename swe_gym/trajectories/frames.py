"""Trajectories as pandas data frames."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import MissingDependency, UsageError
from ..types import JsonObject
from .run_folder import FAILED, IndexLine, index_line, open_trajectories, read_episodes, read_failed, read_run
from .trajectory import Trajectory, Usage

if TYPE_CHECKING:
    import pandas

Row = JsonObject


def frame(
    folder: str | os.PathLike[str], per: Literal["episode", "turn"] = "episode", *, failed: bool = False
) -> pandas.DataFrame:
    """Return a run as a pandas data frame with one row per episode or per turn.

    Episodes of a run folder are read from its index, so a frame of 10,000 episodes takes well under a second. Turns are
    read from the trajectories, with their whole texts. To join several runs, use `pandas.concat`.

    Columns of both: `run` (name of the folder or file), `task_id`, `attempt` (from 0), `reward_valid` (whether the
    episode counts), `reward`, `prompt_tokens` (cached ones included), `cached_tokens`, `completion_tokens`, `calls`
    (answered requests), `cost` (US dollars; NaN if no price is known).

    Columns of an episode: `repo`, `tries` (failed ones included), `outcome`, `reason`, `resolved`, `turns`,
    `cheat_signs` (number), `start_seconds`, `policy_seconds`, `tools_seconds`, `grading_seconds`, `total_seconds`
    (wall-clock; NaN if not recorded), `started` (UTC).

    Columns of a turn: `turn` (from 1), `parent` (`turn` that it continues or starts from; 0 if it starts a conversation
    of its own), `tool` (empty if the call was invalid), `arguments` (a dict), `action`, `thought`, `observation`,
    `terminated`, `truncated`, `seconds` (wall-clock time of the step), `policy_seconds` (that of the policy).

    Args:
        folder: Run folder, or trajectory file.
        per: What a row is.
        failed: Also return failed tries: infrastructure failures, cancelled and killed episodes. Their `reward_valid`
            is False; leave them out of averages.

    Raises:
        UsageError: The run is missing, a line is invalid, or `per` is unknown.
        MissingDependency: pandas is not installed.
    """
    if per not in ("episode", "turn"):
        raise UsageError(f"per must be 'episode' or 'turn', not {per!r}")
    try:
        import pandas
    except ImportError as error:
        raise MissingDependency(f"data frames need pandas: pip install 'swe-gym[pandas]' ({error})") from error
    path = Path(folder)
    rows = _episode_rows(path, failed) if per == "episode" else _turn_rows(path, failed)
    columns = _EPISODE if per == "episode" else _TURN
    made = pandas.DataFrame.from_records(list(rows), columns=columns)
    made.insert(0, "run", path.resolve().name if path.is_dir() else path.stem)
    if per == "episode":
        made["started"] = pandas.to_datetime(made["started"], utc=True, format="ISO8601")
    return made


_SHARED = ["task_id", "attempt", "reward_valid", "reward"]
_SECONDS = ["start", "policy", "tools", "grading", "total"]
_USAGE = list(Usage.model_fields)
_OF_EPISODE = ["repo", "tries", "outcome", "reason", "resolved", "turns", "cheat_signs", "started"]
_OF_TURN = ["tool", "arguments", "action", "thought", "observation", "terminated", "truncated"]
_EPISODE = [*_SHARED, *_OF_EPISODE, *_USAGE, *(f"{name}_seconds" for name in _SECONDS)]
_TURN = [*_SHARED, "turn", "parent", *_OF_TURN, *_USAGE, "seconds", "policy_seconds"]


def _episode_rows(path: Path, failed: bool) -> Iterator[Row]:
    if path.is_dir():
        read_run(path)
        yield from (_episode_row(entry, True) for entry in read_episodes(path))
        if failed:
            yield from (_episode_row(entry, False) for entry in read_failed(path))
        return
    for trajectory in _trajectories(path, failed):
        yield _episode_row(index_line(trajectory, 0, 0), trajectory.reward_valid)


def _turn_rows(path: Path, failed: bool) -> Iterator[Row]:
    for trajectory in _trajectories(path, failed):
        shared = {name: getattr(trajectory, name) for name in _SHARED}
        for number, turn in enumerate(trajectory.turns, 1):
            own = {name: getattr(turn, name) for name in (*_OF_TURN, "reward", "seconds", "policy_seconds")}
            parent = number - 1 if turn.parent is None else turn.parent + 1
            yield {**shared, **own, **_usage(turn.usage), "turn": number, "parent": parent}


def _trajectories(path: Path, failed: bool) -> Iterator[Trajectory]:
    if path.is_dir():
        read_run(path)
    yield from (one for one in open_trajectories(path) if one.reward_valid or failed)
    if failed and path.is_dir() and (path / FAILED).exists():
        yield from open_trajectories(path / FAILED)


def _episode_row(entry: IndexLine, reward_valid: bool) -> Row:
    own = {name: getattr(entry, name) for name in ("task_id", "attempt", "reward", *_OF_EPISODE)}
    seconds = {f"{name}_seconds": entry.seconds.get(name, math.nan) for name in _SECONDS}
    return {**own, "started": entry.started or None, **_usage(entry.usage), **seconds, "reward_valid": reward_valid}


def _usage(usage: Usage) -> Row:
    unknown = math.nan if usage.calls or usage.tokens else 0.0
    return {**usage.model_dump(), "cost": unknown if usage.cost is None else usage.cost}
