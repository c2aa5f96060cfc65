"""The data of the plots of a run."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from ..trajectories.comparison import sum_of_known
from ..trajectories.run_folder import RunInfo
from ..trajectories.statistics import pass_curve
from ..trajectories.trajectory import Usage
from ..types import JsonObject
from .index import EpisodeRow

MOST_BARS = 12
"""Maximum repositories in a plot. The others share one bar."""


def by_repository(rows: Iterable[EpisodeRow]) -> list[tuple[str, int, int]]:
    """Return repository, resolved and judged episodes, largest first."""
    judged: collections.Counter[str] = collections.Counter()
    resolved: collections.Counter[str] = collections.Counter()
    for row in rows:
        name = row.repo or "no repository"
        judged[name] += 1
        resolved[name] += row.resolved
    return [(name, resolved[name], judged[name]) for name in sorted(judged, key=lambda name: (-judged[name], name))]


def resolved_by(rows: Iterable[EpisodeRow]) -> list[tuple[str, int, int]]:
    """Return `by_repository`. Small repositories share the last entry."""
    bars = by_repository(rows)
    if len(bars) <= MOST_BARS:
        return bars
    others = bars[MOST_BARS - 1 :]
    shared = (f"{len(others)} others", sum(bar[1] for bar in others), sum(bar[2] for bar in others))
    return [*bars[: MOST_BARS - 1], shared]


def turn_bins(rows: Iterable[EpisodeRow], most: int = 25) -> list[tuple[int, int, int, int]]:
    """Return a histogram of turns: first and last number of turns of a bin, resolved episodes, and others.

    Args:
        rows: The judged episodes.
        most: Maximum number of bins.
    """
    counted = [(row.turns, row.state == "resolved") for row in rows]
    if not counted:
        return []
    longest = max(turns for turns, _ in counted)
    steps = (step * 10**power for power in range(9) for step in (1, 2, 5))
    width = next(step for step in steps if longest // step < most)
    bins = [[0, 0] for _ in range(longest // width + 1)]
    for turns, resolved in counted:
        bins[turns // width][0 if resolved else 1] += 1
    return [(i * width, (i + 1) * width - 1, good, bad) for i, (good, bad) in enumerate(bins)]


def wall_clock(rows: Iterable[EpisodeRow]) -> dict[str, float]:
    """Return the summed seconds of all episodes by activity. Failed tries are an activity of their own."""
    spent = dict.fromkeys(("model", "tools", "reset", "grading", "other", "failed tries"), 0.0)
    for row in rows:
        total = row.seconds.get("total", 0.0)
        if not row.judged:
            spent["failed tries"] += total
            continue
        parts = {
            "model": row.seconds.get("policy", 0.0),
            "tools": row.seconds.get("tools", 0.0),
            "reset": row.seconds.get("start", 0.0),
            "grading": row.seconds.get("grading", 0.0),
        }
        for name, seconds in parts.items():
            spent[name] += seconds
        spent["other"] += max(0.0, total - sum(parts.values()))
    return spent


def summary(rows: Sequence[EpisodeRow], run: RunInfo | None = None) -> JsonObject:
    """Return the data of all plots of a run, as plain JSON.

    Args:
        rows: Finished episodes and failed attempts.
        run: The run, which tells the attempts that count and its prices. None: all count.
    """
    rows = [row for row in rows if run is None or run.counts(row.task_id, row.attempt)]
    judged = [row for row in rows if row.judged]
    by_task: dict[str, list[bool]] = {}
    for row in judged:
        by_task.setdefault(row.task_id, []).append(row.state == "resolved")
    return {
        "judged": len(judged),
        "resolved": sum(row.state == "resolved" for row in judged),
        "failed": len(rows) - len(judged),
        "tasks": len(by_task),
        "turns": sum(row.turns for row in judged),
        "invalid_calls": sum_of_known(row.invalid_calls for row in judged),
        "shortened": sum(row.usage.shortened > 0 for row in judged),
        "seconds": sum(row.seconds.get("total", 0.0) for row in rows),
        "read": sum(row.usage.prompt_tokens for row in rows),
        "written": sum(row.usage.completion_tokens for row in rows),
        "requests": sum(row.usage.calls for row in rows),
        "uncounted": sum(row.usage.uncounted for row in rows),
        "retries": sum(row.usage.retries for row in rows),
        "cached_answers": sum(row.usage.cached_answers for row in rows),
        "cost": run.cost([row.usage for row in rows]) if run else sum((row.usage for row in rows), Usage()).cost,
        "repositories": resolved_by(judged),
        "pass_at_k": pass_curve(by_task),
        "turn_bins": turn_bins(judged),
        "wall_clock": wall_clock(rows),
        "reasons": collections.Counter(row.reason for row in judged).most_common(),
        "failures": collections.Counter(row.reason for row in rows if not row.judged).most_common(MOST_BARS),
    }
