"""The results of a run: the numbers of an evaluation, the data of plots, and predictions for SWE-bench's harness."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import UsageError
from ..files import write_text
from ..trajectories import Trajectory, Usage, pass_curve
from ..trajectories.comparison import model_of, source_of, sum_of_known
from ..trajectories.comparison import summarize as summarize_run
from ..trajectories.formats import export_trajectories
from ..trajectories.run_folder import RunInfo
from ..types import JsonObject
from .index import EpisodeRow, RunIndex

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
        "stopped_early": run is not None and run.stopped_early(len(judged)),
        "turn_bins": turn_bins(judged),
        "wall_clock": wall_clock(rows),
        "reasons": collections.Counter(row.reason for row in judged).most_common(),
        "failures": collections.Counter(row.reason for row in rows if not row.judged).most_common(MOST_BARS),
    }


RESULTS = "results.json"


def write_results(folder: str | os.PathLike[str]) -> JsonObject:
    """Write `results.json` and the predictions of each attempt into a run folder.

    Args:
        folder: The run folder.

    Returns:
        The content of `results.json`, as plain JSON.

    Raises:
        UsageError: The folder is not a run folder.
    """
    index = RunIndex(folder)
    index.read_all()
    if index.run is None:
        raise UsageError(f"{folder} is a file of trajectories: results need a run folder")
    path, run = Path(folder), index.run
    rows = [row for row in index.rows if run.counts(row.task_id, row.attempt)]
    unchanged: set[str] = set()
    files = []
    for attempt in range(run.attempts):
        name = "predictions.jsonl" if run.attempts == 1 else f"predictions-{attempt}.jsonl"
        judged = [row for row in rows if row.judged and row.attempt == attempt]
        if export_trajectories(_records(index, judged, unchanged), "swebench", path / name):
            files.append(name)
    for stale in path.glob("predictions*.jsonl"):  # of attempts that the run no longer has
        if stale.name not in files:
            stale.unlink()
    settled = int(index.progress.get("settled", 0)) if run.stopped_early(0) else 0
    found = {**_facts(run), "settled": settled, **summarize(run, index.rows, unchanged), "predictions": files}
    write_text(path / RESULTS, json.dumps(found, indent=1) + "\n")
    return found


def _records(index: RunIndex, rows: Iterable[EpisodeRow], unchanged: set[str]) -> Iterator[Trajectory]:
    """Yield the records of rows; add the ids of those without a patch to `unchanged`."""
    for row in rows:
        record = index.trajectory(row.id)
        if not record.patch:
            unchanged.add(row.id)
        yield record


def _facts(run: RunInfo) -> JsonObject:
    """Return what was run."""
    return {
        "version": 1,
        "run": run.experiment,
        "created": run.created,
        "swe_gym": run.swe_gym,
        "config_hash": run.config_hash,
        "source": source_of(run),
        "model": model_of(run) or run.config.get("policy", ""),
        "servers": [one.model_dump() for one in run.servers],
        "agent": run.config.get("agent", ""),
        "tasks": len(run.tasks),
        "attempts": run.attempts,
        "episodes": len(run.tasks) * run.attempts,
    }


def summarize(run: RunInfo, rows: Sequence[EpisodeRow], unchanged: Iterable[str] = ()) -> JsonObject:
    """Return the numbers of a run, as plain JSON.

    Args:
        run: The run.
        rows: Finished episodes and failed tries.
        unchanged: Ids of the rows without a patch.
    """
    found = summarize_run(
        run.experiment, run, [row for row in rows if row.judged], [row for row in rows if not row.judged]
    )
    rows = [row for row in rows if run.counts(row.task_id, row.attempt)]
    graded = [row for row in rows if row.judged]
    summary, tries = found.summary, [len(tried) for tried in found.outcomes.values()]
    clustered = ", attempts clustered by task" if summary.graded > summary.tasks else ""
    return {
        "graded": summary.graded,
        "omitted": summary.omitted,
        "resolved": sum(map(sum, found.outcomes.values())),
        "resolved_rate": summary.resolved,
        "interval": [summary.low, summary.high] if graded else None,
        "interval_method": f"95 % Wilson interval{clustered}" if graded else "",
        "pass_at_k": {str(k): value for k, value in summary.pass_at_k.items()},
        "pass_at_k_tasks": {str(k): sum(number >= k for number in tries) for k in summary.pass_at_k},
        "answered_as": summary.answered_as,
        "cost": summary.cost,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "cached_at_full_price": summary.cached_at_full_price,
        "completion_tokens": summary.completion_tokens,
        "requests": summary.requests,
        "uncounted": summary.uncounted,
        "retries": summary.retries,
        "cached_answers": summary.cached_answers,
        "turns": summary.turns,
        "all_turns": summary.all_turns,
        "invalid_calls": summary.invalid_calls,
        "shortened": summary.shortened,
        "seconds": summary.duration,
        "episode_seconds": summary.seconds,
        "cheat_signs": sum(row.cheat_signs > 0 for row in graded),
        "unproven": sum(bool(row.unproven) for row in graded),
        "unresolved": _causes((row for row in graded if not row.resolved), set(unchanged)),
        "failed_tries": _causes((row for row in rows if not row.judged), set()),
        "repositories": [
            dict(zip(("repository", "resolved", "graded"), row, strict=True)) for row in by_repository(graded)
        ],
    }


def _causes(rows: Iterable[EpisodeRow], unchanged: set[str]) -> dict[str, int]:
    """Return the number of rows by stop reason, the most frequent first."""
    named = (f"{row.reason}, no change" if row.id in unchanged else row.reason for row in rows)
    return dict(collections.Counter(named).most_common())
