"""What the plots show, in numbers. Pure functions."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..trajectories.statistics import pass_at_k
from .index import Row

MOST_BARS = 12
"""Repositories that a plot names; the others are one bar."""


class PassAtK(NamedTuple):
    """A point of the curve.

    Attributes:
        k: Attempts.
        value: Chance that at least one of `k` attempts solves a task, on average over the tasks.
        tasks: Those with at least `k` attempts, which the average is over.
    """

    k: int
    value: float
    tasks: int


def pass_curve(outcomes: Mapping[str, Sequence[bool]]) -> list[PassAtK]:
    """pass@k for each k up to the most attempts at a task.

    Args:
        outcomes: Of the judged attempts, by task. A task with fewer than k attempts is left out of pass@k.
    """
    counts = [(len(tried), sum(tried)) for tried in outcomes.values()]
    points = []
    for k in range(1, max((n for n, _ in counts), default=0) + 1):
        values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        points.append(PassAtK(k, sum(values) / len(values), len(values)))
    return points


def resolved_by(rows: Iterable[Row]) -> list[tuple[str, int, int]]:
    """Repository, resolved and judged episodes; the largest first, and the small ones together."""
    judged: collections.Counter[str] = collections.Counter()
    resolved: collections.Counter[str] = collections.Counter()
    for row in rows:
        name = row.repo or "no repository"
        judged[name] += 1
        resolved[name] += row.state == "resolved"
    order = sorted(judged, key=lambda name: (-judged[name], name))
    named, others = (order, []) if len(order) <= MOST_BARS else (order[: MOST_BARS - 1], order[MOST_BARS - 1 :])
    bars = [(name, resolved[name], judged[name]) for name in named]
    if others:
        total = sum(resolved[name] for name in others), sum(judged[name] for name in others)
        bars.append((f"{len(others)} others", *total))
    return bars


def turn_bins(rows: Iterable[Row], most: int = 25) -> list[tuple[int, int, int, int]]:
    """A histogram of turns: first and last number of turns of a bin, episodes that were resolved, and others.

    Args:
        rows: The judged episodes.
        most: Bins.
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


def wall_clock(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds of all episodes together by what they went to; what failed for another's fault is a part of its own."""
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


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that is plotted of a run, as plain JSON.

    Args:
        rows: Of the episodes that are over; failed tries are counted apart.
    """
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
        "seconds": sum(row.seconds.get("total", 0.0) for row in rows),
        "read": sum(row.usage.prompt_tokens for row in rows),
        "written": sum(row.usage.completion_tokens for row in rows),
        "cost": sum(row.usage.cost for row in rows),
        "repositories": resolved_by(judged),
        "pass_at_k": pass_curve(by_task),
        "turn_bins": turn_bins(judged),
        "wall_clock": wall_clock(rows),
        "reasons": collections.Counter(row.reason for row in judged).most_common(),
        "failures": collections.Counter(row.reason for row in rows if not row.judged).most_common(MOST_BARS),
    }
