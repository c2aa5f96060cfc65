"""Training runs beside each other: as one page of HTML, and as a drawing for a document. Neither needs a script."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..atomic import write_text
from .curves import HEIGHT, WIDTH, Line, bar_chart, fill, ink, legend, line_chart, number_text, style
from .markup import Markup, element
from .server import static_text
from .training import (
    METRICS,
    PARTS,
    Metric,
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

MOST_BARS = 60
"""Bars of a plot; with more updates than that, one stands for several."""

MOST_ROWS = 40
"""Rows of the table below a plot; with more updates than that, every so many."""

_ON_THE_DRAWING = ("Reward in training", "Valid calls", "Sampler and trainer apart", "Entropy")
_HELD_OUT = "Held-out reward"
_HELD_OUT_ABOUT = "Mean over tasks that are not trained on, with the interval of 95 % confidence."


class TrainingReport(NamedTuple):
    """What was written.

    Attributes:
        runs: Training runs.
        updates: Of all of them together.
        size: Of the file, in bytes.
    """

    runs: int
    updates: int
    size: int


def write_training_report(sources: Iterable[str | os.PathLike[str]], path: str | os.PathLike[str]) -> TrainingReport:
    """Write training runs as one file of HTML, their curves in common plots.

    Args:
        sources: Folders of `swe-gym train`.
        path: The file; it is replaced.

    Raises:
        UsageError: One is no folder of a training run, or its log cannot be read.
    """
    runs = read_training(sources)
    return _write(path, runs, _page(runs))


def write_curves(sources: Iterable[str | os.PathLike[str]], path: str | os.PathLike[str]) -> TrainingReport:
    """Write the most telling curves of training runs as one SVG file, to show in a document.

    Args:
        sources: Folders of `swe-gym train`.
        path: The file; it is replaced.

    Raises:
        UsageError: One is no folder of a training run, or its log cannot be read.
    """
    runs = read_training(sources)
    return _write(path, runs, _drawing(runs))


def _write(path: str | os.PathLike[str], runs: Sequence[TrainingRun], text: str) -> TrainingReport:
    target = Path(path)
    write_text(target, text)
    return TrainingReport(len(runs), sum(len(run.updates) for run in runs), target.stat().st_size)


# --- plots --------------------------------------------------------------------------------------------------


class _Plot(NamedTuple):
    """A number of all runs: one list of points for each of them."""

    title: str
    about: str
    points: Sequence[Sequence[Point]]
    share: bool = False
    from_zero: bool = True
    dotted: bool = False


def _plots(runs: Sequence[TrainingRun]) -> list[_Plot]:
    """Those for which at least one log has something."""
    found = [_Plot(_HELD_OUT, _HELD_OUT_ABOUT, [held_out(run) for run in runs], dotted=True)]
    passed = [pass_at(run) for run in runs]
    for name in dict.fromkeys(name for one in passed for name in one):
        about = "Chance that at least one of so many attempts at a held-out task solves it, unbiased."
        found.append(_Plot(name, about, [one.get(name, []) for one in passed], share=True, dotted=True))
    for metric in METRICS:
        found.append(_plot(metric, runs))
    return [plot for plot in found if any(plot.points)]


def _plot(metric: Metric, runs: Sequence[TrainingRun]) -> _Plot:
    points = [curve(run, metric) for run in runs]
    return _Plot(metric.title, metric.about, points, share=metric.share, from_zero=metric.from_zero)


def _draw(plot: _Plot, names: Sequence[str], *, minutes: bool) -> Markup:
    def x(point: Point) -> float:
        return point.minutes if minutes else point.update

    lines: list[Line] = []
    for run, points in enumerate(plot.points):
        shown = [(x(point), point.value) for point in points]
        width = _smoothing(points)
        if plot.dotted:
            words = [f"{names[run]}, {_told(point, plot.share)}" for point in points]
            lines.append(Line(run, shown, [(x(point), point.low, point.high) for point in points], words=words))
        elif width > 1:
            lines.append(Line(run, shown, faint=True))
            lines.append(Line(run, [(x(point), point.value) for point in smooth(points, width)]))
        elif points:
            lines.append(Line(run, shown))
    axis = "minutes" if minutes else "updates"
    return line_chart(
        lines,
        label=f"{plot.title} over {axis}",
        x_title=axis,
        share=plot.share,
        from_zero=plot.from_zero,
        whole_x=not minutes,
    )


def _smoothing(points: Sequence[Point]) -> int:
    """Updates whose mean is drawn."""
    return len(points) // 20 if len(points) >= 40 else 1


def _told(point: Point, share: bool) -> str:
    interval = f" ({_shown(point.low, share)} to {_shown(point.high, share)})" if math.isfinite(point.low) else ""
    return f"update {point.update}, minute {point.minutes:.1f}: {_shown(point.value, share)}{interval}"


def _shown(value: float, share: bool) -> str:
    return f"{100 * value:.3g} %" if share and math.isfinite(value) else number_text(value)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


# --- the page -----------------------------------------------------------------------------------------------


def _page(runs: Sequence[TrainingRun]) -> str:
    rules = "\n".join([static_text("style.css"), static_text("training.css"), style(), *_switches(len(runs))])
    allowed = base64.b64encode(hashlib.sha256(rules.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = ", ".join(run.name for run in runs)
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("title", f"{title} · swe-gym"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(rules)),
    ]
    body = [_header(runs), element("main", _runs_table(runs), _curves(runs), _times(runs), _asked(runs), id="main")]
    return f"<!doctype html>\n{element('html', element('head', *head), element('body', *body), lang='en')}\n"


def _switches(runs: int) -> list[str]:
    """What the boxes and buttons above the plots do, without a script."""
    hide = [f"body:has(#show-{run}:not(:checked)) .of-run-{run} {{ display: none; }}" for run in range(runs)]
    return [
        *hide,
        "body:has(#by-minute:checked) .by-update, body:has(#by-update:checked) .by-minute { display: none; }",
    ]


def _header(runs: Sequence[TrainingRun]) -> Markup:
    links = [
        element("a", name, href=f"#{place}")
        for name, place in (("Runs", "runs"), ("Curves", "curves"), ("Time", "time"), ("Configuration", "asked"))
    ]
    axis = [
        element("label", element("input", type="radio", name="axis", id=f"by-{name}", checked=name == "update"), words)
        for name, words in (("update", "updates"), ("minute", "minutes"))
    ]
    shown = [
        element(
            "label",
            element("input", type="checkbox", id=f"show-{index}", checked=True),
            element("i", class_=f"key {ink(index)}"),
            run.name,
        )
        for index, run in enumerate(runs)
    ]
    updates = sum(len(run.updates) for run in runs)
    counts = f"{len(runs)} training run{'s' if len(runs) > 1 else ''} · {updates:,} updates"
    return element(
        "header",
        element("h1", runs[0].name if len(runs) == 1 else "Training runs"),
        element("nav", *links, aria_label="Parts of the page"),
        element("p", counts, id="counts"),
        element("fieldset", element("legend", "Curves of"), *shown) if len(runs) > 1 else Markup(),
        element("fieldset", element("legend", "over"), *axis),
    )


def _runs_table(runs: Sequence[TrainingRun]) -> Markup:
    heads = ("Run", "Estimator", "Updates", "Wall clock", "Held out, first", "Held out, last", "Gain")
    more = ("Largest gap", "Trainer's own time")
    rows = [_run_row(number, run) for number, run in enumerate(runs)]
    notes = (
        "Held out: mean reward and its interval. Largest gap: of the mean absolute difference of log-probabilities "
        "between sampler and trainer, over all updates and hand-overs. Trainer's own time: share of the updates' wall "
        "clock outside model and sandboxes, checkpoints included."
    )
    table = _table((*heads, *more), rows)
    return element("section", table, element("p", notes, class_="dim"), class_="plots runs", id="runs")


def _run_row(index: int, run: TrainingRun) -> list[str]:
    evaluated = [point for point in held_out(run) if math.isfinite(point.value)]
    gaps = [
        point.value for metric in METRICS if metric.names in (("gap",), ("probe_gap",)) for point in curve(run, metric)
    ]
    own = overhead(run)
    return [
        element("span", element("i", class_=f"key {ink(index)}"), run.name),
        str(run.config.get("algorithm", {}).get("advantage", "")),
        f"{len(run.updates):,}",
        _time(60 * run.minutes),
        _with_interval(evaluated[0]) if evaluated else "",
        _with_interval(evaluated[-1]) if evaluated else "",
        f"{evaluated[-1].value - evaluated[0].value:+.3g}" if len(evaluated) > 1 else "",
        number_text(max((gap for gap in gaps if math.isfinite(gap)), default=math.nan)),
        f"{100 * own:.2g} %" if math.isfinite(own) else "",
    ]


def _with_interval(point: Point) -> str:
    interval = f" ({point.low:.2f} to {point.high:.2f})" if math.isfinite(point.low) else ""
    return f"{point.value:.2f}{interval}"


def _curves(runs: Sequence[TrainingRun]) -> Markup:
    names = [run.name for run in runs]
    figures = [_figure(plot, names) for plot in _plots(runs)]
    smoothed = any(len(run.updates) >= 40 for run in runs)
    note = (
        "Where there are many updates, thin lines are single ones, and thick ones the mean of a twentieth of the run."
        if smoothed
        else ""
    )
    empty = [] if figures else [element("p", "Nothing yet.", class_="empty")]
    content = [element("h2", "Curves"), element("p", note, class_="dim"), *empty]
    return element("section", *content, element("div", *figures, class_="figures"), class_="plots", id="curves")


def _figure(plot: _Plot, names: Sequence[str]) -> Markup:
    drawings = [
        element("div", _draw(plot, names, minutes=minutes), class_=f"drawing {kind}")
        for minutes, kind in ((False, "by-update"), (True, "by-minute"))
    ]
    caption = element("figcaption", element("h3", plot.title), element("p", plot.about))
    return element("figure", caption, *drawings, _numbers(plot, names))


def _numbers(plot: _Plot, names: Sequence[str]) -> Markup:
    """The same as a table: a row per update, a column per run."""
    columns = [{point.update: point for point in points} for points in plot.points]
    updates = sorted({update for column in columns for update in column})
    every = math.ceil(len(updates) / MOST_ROWS)
    chosen = sorted({*updates[::every], updates[-1]})
    rows = []
    for update in chosen:
        points = [column.get(update) for column in columns]
        rows.append([str(update), *(_cell(point, plot) for point in points)])
    summary = element("summary", "Numbers" if every == 1 else f"Numbers, of every {every} updates")
    return element("details", summary, _table(("update", *names), rows))


def _cell(point: Point | None, plot: _Plot) -> str:
    if point is None:
        return ""
    value = _shown(point.value, plot.share)
    if not math.isfinite(point.low):
        return value
    return f"{value} ({_shown(point.low, plot.share)} to {_shown(point.high, plot.share)})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in heads))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="wide")


# --- where the time went ------------------------------------------------------------------------------------


def _times(runs: Sequence[TrainingRun]) -> Markup:
    note = (
        "Wall-clock time of the updates. Episodes are played beside each other: the time that an update waited for "
        "them is split in the proportion of what their threads did, summed over the threads. Where the next episodes "
        "are played while the model learns, only the time that was still waited for them counts."
    )
    figures = [_time_figure(run) for run in runs if run.updates]
    content = [element("h2", "Where the time went"), element("p", note, class_="dim")]
    return element("section", *content, *figures, class_="plots", id="time")


def _time_figure(run: TrainingRun) -> Markup:
    in_all, count = spent_in_all(run), len(run.updates)
    whole = sum(in_all.values()) or 1.0
    present = [part for part in PARTS if in_all[part] > 0]
    about = f"Seconds per update. The trainer's own time is {100 * overhead(run):.2g} % of them."
    chart = element("div", bar_chart(_bars(run), present, label=f"seconds per update of {run.name}"), class_="drawing")
    rows = [
        [
            element("span", element("i", class_=f"key {fill(part)}"), part),
            _time(in_all[part] / count),
            f"{100 * in_all[part] / whole:.1f} %",
            PARTS[part],
        ]
        for part in reversed(present)
    ]
    rows.append(["all", _time(whole / count), "100 %", _rest_of_the_run(run, whole)])
    table = _table(("part", "per update", "share", "what it is"), rows)
    caption = element("figcaption", element("h3", run.name), element("p", about))
    return element("figure", caption, element("div", chart, table, class_="beside"))


def _bars(run: TrainingRun) -> list[tuple[str, dict[str, float]]]:
    updates = spent_by_update(run)
    size = math.ceil(len(updates) / MOST_BARS)
    bars = []
    for start in range(0, len(updates), size):
        group = updates[start : start + size]
        mean = {part: sum(parts[part] for _, parts in group) / len(group) for part in PARTS}
        bars.append((str(group[0][0]), mean))
    return bars


def _rest_of_the_run(run: TrainingRun, updates: float) -> str:
    evaluating = sum(line["seconds"] for line in run.evaluations)
    left = max(0.0, 60 * run.minutes - updates - evaluating)
    return (
        f"of {_time(60 * run.minutes)}: updates {_time(updates)}, evaluations {_time(evaluating)}, "
        f"loading, warm start and the like {_time(left)}"
    )


# --- what was asked for -------------------------------------------------------------------------------------


def _asked(runs: Sequence[TrainingRun]) -> Markup:
    content = [element("h2", "What was asked for")]
    if len(runs) > 1:
        rows = [[name, *map(_plain, values)] for name, values in differences(runs).items()]
        content.append(_table(("different in", *(run.name for run in runs)), rows))
    for run in runs:
        text = element("pre", json.dumps(run.config, indent=2))
        content.append(element("details", element("summary", run.name), text, class_="raw"))
    return element("section", *content, class_="plots", id="asked")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- the drawing --------------------------------------------------------------------------------------------


def _drawing(runs: Sequence[TrainingRun]) -> str:
    names = [run.name for run in runs]
    by_title = {plot.title: plot for plot in _plots(runs)}
    panels = [(plot, True) for plot in (by_title.get(_HELD_OUT),) if plot]
    panels += [(by_title[title], False) for title in (_HELD_OUT, *_ON_THE_DRAWING) if title in by_title]
    keys, top = legend(names, 2 * WIDTH)
    drawn = [element("g", keys, transform="translate(16 12)")]
    for index, (plot, minutes) in enumerate(panels):
        x, y = 16 + index % 2 * (WIDTH + 16), 12 + top + index // 2 * (HEIGHT + 34)
        title = element("text", f"{plot.title} over {'minutes' if minutes else 'updates'}", x=8, y=18, class_="title")
        chart = element("svg", _draw(plot, names, minutes=minutes), y=26, width=WIDTH, height=HEIGHT)
        drawn.append(element("g", title, chart, transform=f"translate({x} {y})"))
    width, height = 2 * WIDTH + 48, 24 + top + math.ceil(len(panels) / 2) * (HEIGHT + 34)
    rules = "\n".join([style(), *_GROUND])
    ground = element("rect", class_="ground", width=width, height=height, rx=8)
    return element(
        "svg",
        element("style", Markup(rules)),
        ground,
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=f"Learning curves of {', '.join(names)}",
    )


_GROUND = (
    ".ground { fill: #ffffff; }",
    "svg .title { font-size: 14px; font-weight: 600; }",
    "svg .title, svg .name { fill: #1d2330; }",
    "@media (prefers-color-scheme: dark) { .ground { fill: #14171d; } svg .title, svg .name { fill: #e4e8ef; } }",
)
"""A drawing has a ground of its own: whoever shows it may be of another mind about light and dark."""
