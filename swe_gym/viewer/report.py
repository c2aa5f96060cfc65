"""The report of a run: one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..trajectories.trajectory import Trajectory
from ..trajectories.turns import summary_of
from ..types import JsonObject
from .episode import as_page, parts_of
from .index import RunIndex
from .page import write_page
from .server import PAGE
from .stats import summary

MOST_EPISODES = 1000
"""Default number of episodes in a report; the table lists all."""


class Report(NamedTuple):
    """A summary of what was written.

    Attributes:
        episodes: Number of rows in the table.
        readable: Number of episodes that can be opened.
        size: Size of the file in bytes.
    """

    episodes: int
    readable: int
    size: int


def write_report(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    with_verdicts: bool = False,
    most_episodes: int = MOST_EPISODES,
) -> Report:
    """Write a run as one HTML file.

    Args:
        source: Run folder, or trajectory file.
        path: The file to write.
        with_verdicts: Include graders' verdicts and full failures. They reveal the names and output of hidden tests.
        most_episodes: Number of episodes that can be opened.

    Raises:
        UsageError: The run is missing, or an episode cannot be read.
    """
    index = RunIndex(source)
    index.read_all()
    readable = index.rows[:most_episodes]

    def blocks() -> Iterator[tuple[str, str]]:
        news = {**index.news(), "live": [], "active": False, "progress": {}, "with_verdicts": with_verdicts}
        yield "news", json.dumps(news)
        yield "stats", json.dumps(summary(index.rows, index.run))
        for row in readable:
            trajectory = index.trajectory(row.id)
            shown = _page(trajectory if with_verdicts else trajectory.without_oracle())
            packed = gzip.compress(json.dumps(shown).encode(), compresslevel=6, mtime=0)
            yield f"episode-{row.id}", base64.b64encode(packed).decode()

    return Report(len(index.rows), len(readable), write_page(Path(path), PAGE, blocks()))


def _page(trajectory: Trajectory) -> JsonObject:
    """Return an episode with the whole texts of its turns."""
    outline = [summary_of(turn.model_dump(), len(turn.observation)) for turn in trajectory.turns]
    return {**as_page(trajectory), "outline": outline, "turns": [parts_of(turn) for turn in trajectory.turns]}
