"""The report of training runs: one HTML page, and their main curves as one SVG file."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import MissingDependency, UsageError
from ..files import replacing
from ..types import JsonObject
from .report import write_page, write_report
from .training import (
    EPISODES_NAME,
    METRICS,
    PARTS,
    Line,
    Point,
    TrainingRun,
    curve,
    differences,
    held_out,
    overhead,
    pass_at,
    read_training,
    smooth,
    spent_by_update,
    spent_in_all,
)

logger = logging.getLogger(__name__)

MOST_BARS = 60
"""Maximum bars of a plot. With more updates, a bar is the mean of several."""

SMOOTHED_FROM = 40
"""Number of updates from which the page shows running means."""

MOST_ROWS = 20_000
"""Maximum episodes of a run that the page lists: those of its last updates."""

_ON_THE_DRAWING = ("Held-out reward", "Reward in training", "Valid calls", "Log-probability difference", "Entropy")


class TrainingReport(NamedTuple):
    """A summary of what was written.

    Attributes:
        runs: Number of training runs.
        updates: Number of updates of all runs.
        size: Size of the file in bytes.
    """

    runs: int
    updates: int
    size: int


class Plot(NamedTuple):
    """A plot of all runs.

    Attributes:
        title: Title.
        about: Description.
        points: Points of each run.
        share: Whether the values are shown in percent.
        from_zero: Whether the axis starts at 0.
        dotted: Whether points are marked.
    """

    title: str
    about: str
    points: Sequence[Sequence[Point]]
    share: bool = False
    from_zero: bool = True
    dotted: bool = False


def write_training_report(sources: Iterable[str | os.PathLike[str]], path: str | os.PathLike[str]) -> TrainingReport:
    """Write training runs as one HTML file, with the curves of all runs in common plots.

    The episodes that the runs kept become pages in the folder FILE-episodes beside it, to which lists of episodes link.
    Those that cannot be read, as a running training removes them, get no page.

    Args:
        sources: Run folders of `swe-gym train`.
        path: The file to write.

    Raises:
        UsageError: A folder is not a training run, or its log cannot be read.
    """
    runs = read_training(sources)
    beside = Path(path).with_name(f"{Path(path).stem}-episodes")
    data = {
        "beside": beside.name,
        "runs": [{**_run_data(run), "readable": _write_pages(run, beside / run.name)} for run in runs],
        "plots": [
            {**plot._asdict(), "points": None, "lines": [_line_data(plot, points) for points in plot.points]}
            for plot in plots(runs)
        ],
        "parts": PARTS,
        "differences": differences(runs),
    }
    size = write_page(Path(path), "training.html", [("training", json.dumps(data, allow_nan=False))])
    return _summary(runs, size)


def _write_pages(run: TrainingRun, folder: Path) -> list[str]:
    """Write a page for each file of episodes that can be read, remove other pages, and return the names."""
    if run.episodes:
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, file in run.episodes.items():
        try:
            write_report(file, folder / f"{name}.html", most_episodes=sys.maxsize)
            written.append(name)
        except (UsageError, FileNotFoundError) as error:
            logger.warning("the episodes of %s get no page: %s", name, error)
    for page in folder.glob("*.html"):
        if page.stem not in written and EPISODES_NAME.fullmatch(page.stem):
            page.unlink()
    return written


def write_curves(sources: Iterable[str | os.PathLike[str]], path: str | os.PathLike[str]) -> TrainingReport:
    """Write the main curves of training runs as one SVG file, for a document.

    Args:
        sources: Run folders of `swe-gym train`.
        path: The file to write.

    Raises:
        UsageError: A folder is not a training run, or its log cannot be read.
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"SVG files need matplotlib: pip install 'swe-gym[plots]' ({error})") from error
    runs = read_training(sources)
    by_title = {plot.title: plot for plot in plots(runs)}
    chosen = [by_title[title] for title in _ON_THE_DRAWING if title in by_title]
    panels = [*((plot, "minutes") for plot in chosen[:1]), *((plot, "update") for plot in chosen)]
    with matplotlib.rc_context({"svg.hashsalt": "swe-gym", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(11, 2.8 * max(1, math.ceil(len(panels) / 2))), layout="constrained")
        for index, (plot, axis) in enumerate(panels):
            axes = figure.add_subplot(math.ceil(len(panels) / 2), 2, index + 1)
            axes.set_title(f"{plot.title} over {'updates' if axis == 'update' else axis}", loc="left")
            axes.grid(alpha=0.3)
            for run, points in zip(runs, plot.points, strict=True):
                x = [getattr(point, axis) for point in points]
                axes.plot(x, [point.value for point in points], "o-" if plot.dotted else "-", ms=3, label=run.name)
                axes.fill_between(x, [point.low for point in points], [point.high for point in points], alpha=0.15)
            if plot.from_zero:
                axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if axes.dataLim.ymin < 0 else 0.0)
            if not index:
                axes.legend(loc="lower right")  # "best" may take long, and warns then
        with replacing(Path(path)) as unfinished:
            figure.savefig(unfinished, format="svg", metadata={"Date": None, "Creator": None})
    return _summary(runs, Path(path).stat().st_size)


def _summary(runs: Sequence[TrainingRun], size: int) -> TrainingReport:
    return TrainingReport(len(runs), sum(len(run.updates) for run in runs), size)


def plots(runs: Sequence[TrainingRun]) -> list[Plot]:
    """Return the plots for which at least one run has points."""
    about = "Mean over held-out tasks, with its 95 % confidence interval."
    found = [Plot("Held-out reward", about, [held_out(run) for run in runs], dotted=True)]
    passed = [pass_at(run) for run in runs]
    for name in dict.fromkeys(name for one in passed for name in one):
        about = "Unbiased estimate over held-out tasks."
        found.append(Plot(name, about, [one.get(name, []) for one in passed], share=True, dotted=True))
    for metric in METRICS:
        points = [curve(run, metric) for run in runs]
        found.append(Plot(metric.title, metric.about, points, share=metric.share, from_zero=metric.from_zero))
    return [plot for plot in found if any(plot.points)]


def _line_data(plot: Plot, points: Sequence[Point]) -> JsonObject:
    line: JsonObject = {
        "update": [point.update for point in points],
        "minutes": [point.minutes for point in points],
        "value": [_drop_nonfinite(point.value) for point in points],
    }
    if any(math.isfinite(point.low) for point in points):
        line["low"] = [_drop_nonfinite(point.low) for point in points]
        line["high"] = [_drop_nonfinite(point.high) for point in points]
    if not plot.dotted and len(points) >= SMOOTHED_FROM:
        line["mean"] = [_drop_nonfinite(point.value) for point in smooth(points, len(points) // 20)]
    return line


def _run_data(run: TrainingRun) -> JsonObject:
    evaluated = [point for point in held_out(run) if math.isfinite(point.value)]
    names = {"logprob_diff", "sync_logprob_diff"}
    gaps = [point.value for metric in METRICS if names & {*metric.names} for point in curve(run, metric)]
    return {
        "name": run.name,
        "config": run.config,
        "advantage": str(run.config.get("algorithm", {}).get("advantage", "")),
        "updates": len(run.updates),
        "minutes": run.minutes,
        "evaluating": sum(line["seconds"] for line in run.evaluations),
        "first": [*map(_drop_nonfinite, evaluated[0][2:])] if evaluated else None,
        "last": [*map(_drop_nonfinite, evaluated[-1][2:])] if evaluated else None,
        "logprob_diff": max((gap for gap in gaps if math.isfinite(gap)), default=None),
        "overhead": _drop_nonfinite(overhead(run)),
        "seconds": spent_in_all(run),
        "bars": _bars(run),
        "episodes": {"update": _episode_lists(run.updates), "evaluation": _episode_lists(run.evaluations)},
    }


def _episode_lists(lines: Sequence[Line]) -> JsonObject:
    """Return the episodes of the last updates or evaluations, and the number of lost ones, by number of updates."""
    found: JsonObject = {}
    left = MOST_ROWS
    for line in reversed(lines):
        left -= len(line.get("played", ()))
        if left < 0 and found:
            break
        if line.get("played"):
            found[str(line["update"])] = {"lost": line.get("lost", 0), "rows": line["played"]}
    return dict(reversed(found.items()))


def _bars(run: TrainingRun) -> JsonObject:
    """Mean seconds by part for groups of successive updates, and the first update of each group."""
    updates = spent_by_update(run)
    size = max(1, math.ceil(len(updates) / MOST_BARS))
    groups = [updates[start : start + size] for start in range(0, len(updates), size)]
    parts = {part: [sum(spent[part] for _, spent in group) / len(group) for group in groups] for part in PARTS}
    return {"first_updates": [group[0][0] for group in groups], "parts": parts}


def _drop_nonfinite(value: float) -> float | None:
    return value if math.isfinite(value) else None
