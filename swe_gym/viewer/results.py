"""The results of a run: the numbers of an evaluation, and its predictions for SWE-bench's harness."""

from __future__ import annotations

import collections
import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..atomic import write_text
from ..errors import UsageError
from ..trajectories.exports import export_trajectories
from ..trajectories.run_folder import RunInfo
from ..trajectories.statistics import is_wilson, mean_interval, pass_curve
from ..trajectories.trajectory import Trajectory, Usage
from ..types import JsonObject
from .index import Row, RunIndex

RESULTS = "results.json"


def write_results(folder: str | os.PathLike[str], price: Callable[[Usage], float] | None = None) -> JsonObject:
    """Write `results.json` and the predictions of each attempt into a run folder.

    Args:
        folder: The run folder.
        price: Computes the cost of all tokens. None: the cost that was counted in the run, unknown if it is 0.

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
    tasks = set(run.tasks)
    rows = [row for row in index.rows if row.task_id in tasks and row.attempt < run.attempts]
    unchanged: set[str] = set()
    files = []
    for attempt in range(run.attempts):
        name = "predictions.jsonl" if run.attempts == 1 else f"predictions-{attempt}.jsonl"
        judged = [row for row in rows if row.judged and row.attempt == attempt]
        if export_trajectories(_records(index, judged, unchanged), "swebench", path / name):
            files.append(name)
    found = {**_facts(run), **summarize(rows, unchanged, price), "predictions": files}
    write_text(path / RESULTS, json.dumps(found, indent=1) + "\n")
    return found


def _records(index: RunIndex, rows: Iterable[Row], unchanged: set[str]) -> Iterator[Trajectory]:
    """Yield the records of rows; add the ids of those without a patch to `unchanged`."""
    for row in rows:
        record = index.trajectory(row.id)
        if not record.patch:
            unchanged.add(row.id)
        yield record


def _facts(run: RunInfo) -> JsonObject:
    """Return what was run."""
    policy = run.config.get("policy_options", {})
    return {
        "version": 1,
        "run": run.experiment,
        "created": run.created,
        "swe_gym": run.swe_gym,
        "config_hash": run.config_hash,
        "source": run.config.get("env", {}).get("source", ""),
        "model": policy.get("model") or run.config.get("policy", ""),
        "tasks": len(run.tasks),
        "attempts": run.attempts,
        "episodes": len(run.tasks) * run.attempts,
    }


def summarize(
    rows: Sequence[Row], unchanged: Iterable[str] = (), price: Callable[[Usage], float] | None = None
) -> JsonObject:
    """Return the numbers of a run, as plain JSON.

    Args:
        rows: Finished episodes and failed tries.
        unchanged: Ids of the rows without a patch.
        price: As for `write_results`.
    """
    graded = [row for row in rows if row.judged]
    by_task: dict[str, list[bool]] = {}
    for row in graded:
        by_task.setdefault(row.task_id, []).append(row.state == "resolved")
    usage = sum((row.usage for row in rows), Usage())
    return {
        "graded": len(graded),
        "resolved": sum(map(sum, by_task.values())),
        "resolved_rate": _mean([sum(tried) / len(tried) for tried in by_task.values()]),
        **_interval(list(by_task.values())),
        "pass_at_k": {str(point.k): point.value for point in pass_curve(by_task)},
        "cost": price(usage) if price else usage.cost or None,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "turns": _mean([row.turns for row in graded]),
        "seconds": _busy(rows),
        "episode_seconds": _mean([row.seconds.get("total", 0.0) for row in graded]),
        "cheat_signs": sum(row.cheat_signs > 0 for row in graded),
        "unresolved": _causes((row for row in graded if row.state != "resolved"), set(unchanged)),
        "failed_tries": _causes((row for row in rows if not row.judged), set()),
        "repositories": _repositories(graded),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _repositories(graded: Iterable[Row]) -> list[JsonObject]:
    """Return the graded and resolved episodes of each repository, the largest first."""
    found: dict[str, JsonObject] = {}
    for row in graded:
        one = found.setdefault(row.repo, {"repository": row.repo or "no repository", "resolved": 0, "graded": 0})
        one["resolved"] += row.state == "resolved"
        one["graded"] += 1
    return sorted(found.values(), key=lambda one: (-one["graded"], one["repository"]))


def _interval(by_task: Sequence[Sequence[bool]]) -> JsonObject:
    if not by_task:
        return {"interval": None, "interval_method": ""}
    low, high = mean_interval(by_task)
    method = "Wilson interval" if is_wilson(by_task) else "normal interval, attempts clustered by task"
    return {"interval": [max(0.0, low), min(1.0, high)], "interval_method": f"95 % {method}"}


def _causes(rows: Iterable[Row], unchanged: set[str]) -> dict[str, int]:
    """Return the number of rows by stop reason, the most frequent first."""
    named = (f"{row.reason}, no change" if row.id in unchanged else row.reason for row in rows)
    return dict(collections.Counter(named).most_common())


def _busy(rows: Iterable[Row]) -> float:
    """Return the seconds in which at least one episode ran. Pauses between two calls of a run do not count."""
    spans = []
    for row in rows:
        if row.started:
            start = datetime.datetime.fromisoformat(row.started).timestamp()
            spans.append((start, start + row.seconds.get("total", 0.0)))
    busy, end = 0.0, 0.0
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy
