"""The results of a run: the numbers of an evaluation, and its predictions for SWE-bench's harness."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..atomic import write_text
from ..errors import UsageError
from ..trajectories.comparison import model_of, source_of
from ..trajectories.comparison import summarize as summarize_run
from ..trajectories.exports import export_trajectories
from ..trajectories.run_folder import RunInfo
from ..trajectories.trajectory import Trajectory
from ..types import JsonObject
from .index import EpisodeRow, RunIndex
from .stats import by_repository

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
    found = {**_facts(run), **summarize(run, index.rows, unchanged), "predictions": files}
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
