"""Pages without a server: a run or training runs as one HTML file, runs as a folder to publish, curves as an SVG."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import itertools
import json
import logging
import math
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from ..errors import MissingDependency, UsageError, quantify
from ..files import replacing
from ..guard import TemporaryFolder
from ..trajectories import Trajectory
from ..trajectories.comparison import RunResults, compare_results, distinct_names
from ..trajectories.run_folder import find_runs
from ..types import Json, JsonObject
from .episode import as_page, parts_of, summary_of
from .index import RunIndex
from .results import summary
from .runs import comparison_page, list_runs, results_of
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

PAGE = "index.html"
"""File name of the page of a run."""

_STYLE = re.compile(r'<link rel="stylesheet" href="(.*?)">\n?')
_SCRIPT = re.compile(r'<script src="(.*?)" defer></script>\n?')

MOST_BARS = 60
"""Maximum bars of a plot. With more updates, a bar is the mean of several."""

SMOOTHED_FROM = 40
"""Number of updates from which the page shows running means."""

MOST_ROWS = 20_000
"""Maximum episodes of a run that the page lists: those of its last updates."""

_ON_THE_DRAWING = ("Held-out reward", "Reward in training", "Valid calls", "Log-probability difference", "Entropy")

_MARKS = {"+": "add", "-": "del", "@": "hunk"}
"""First character of a line of a diff -> class of its row."""


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


def static_text(name: str) -> str:
    """Return the text of a static file."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def write_page(path: Path, page: str, blocks: Iterable[tuple[str, str]], *, beside: bool = False) -> int:
    """Write a page with its styles, scripts and data as one HTML file, whose policy allows nothing else.

    Args:
        path: The file. It is replaced at the end, so that an error leaves the old one.
        page: Name of the static HTML file.
        blocks: Element id and JSON text of each block of data, written one after the other.
        beside: Whether the page loads more data from scripts beside it.

    Returns:
        The size of the file in bytes.
    """
    text = static_text(page)
    style = "\n".join(map(static_text, _STYLE.findall(text)))
    scripts = [_inline(static_text(name)) for name in _SCRIPT.findall(text)]
    allowed = [*map(_hash, scripts), *(["'self'", "file:"] if beside else [])]
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    inline = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    head, body_end, foot = (
        _SCRIPT.sub("", _STYLE.sub("", text)).replace("</head>", inline + "</head>").rpartition("</body>")
    )
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(head)
        for name, data in blocks:
            escaped = data.replace("<", "\\u003c")  # nothing in the data can end its element
            file.write(f'<script type="application/json" id="{html.escape(name)}">{escaped}</script>\n')
        file.writelines(f"<script>{script}</script>\n" for script in scripts)
        file.write(body_end + foot)
    return path.stat().st_size


def _inline(script: str) -> str:
    """Return a script that cannot end its element: `<` begins a tag or comment only inside a string or pattern."""
    return re.sub(r"<(?=!--|/?script)", r"\\x3C", script)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


MOST_EPISODES = 1000
"""Default number of episodes in a report; the table lists all."""


class Report(NamedTuple):
    """A summary of what was written.

    Attributes:
        runs: Number of runs.
        episodes: Number of rows in the tables.
        readable: Number of episodes that can be opened.
        size: Size of all files in bytes.
    """

    runs: int
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
        yield "news", json.dumps(_news(index, with_verdicts=with_verdicts))
        yield "stats", json.dumps(summary(index.rows, index.run))
        for row in readable:
            yield f"episode-{row.id}", _pack(_page(index.trajectory(row.id), with_verdicts=with_verdicts))

    return Report(1, len(index.rows), len(readable), write_page(Path(path), PAGE, blocks()))


# --- several runs -----------------------------------------------------------------------------------------------

DATA = "data"


def write_site(
    sources: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    with_verdicts: bool = False,
    most_episodes: int = MOST_EPISODES,
) -> Report:
    """Write runs as a folder of files that any web server offers, and that a browser opens from disk.

    Its page is that of the viewer. It loads each run and each episode when it is opened.

    Args:
        sources: Run folders, folders of run folders, or trajectory files.
        folder: The folder to write. A former report in it is replaced at the end, so that an error leaves it.
        with_verdicts: As in `write_report`.
        most_episodes: Number of episodes of each run that can be opened.

    Raises:
        UsageError: A run is missing or given twice, an episode cannot be read, or the folder holds something else.
    """
    target = Path(folder).resolve()
    _check_site(target)
    indexes = _read_all(sources)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(f".{target.name}.", target.parent) as partial:
        made = partial.path / target.name
        readable = sum(
            _write_run(made / DATA / str(number), name, index, with_verdicts, most_episodes)
            for number, (name, index) in enumerate(indexes.items())
        )
        results = {name: results_of(name, index) for name, index in indexes.items()}
        _write_data(made / DATA, "comparison", _all_comparisons(indexes, results))
        runs = {"many": True, "name": target.name, "runs": list_runs(indexes, results), "problems": {}}
        write_page(made / PAGE, PAGE, [("runs", json.dumps(runs))], beside=True)
        size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return Report(len(indexes), sum(len(index.rows) for index in indexes.values()), readable, size)


def _check_site(folder: Path) -> None:
    """Refuse to replace anything but a former report or an empty folder.

    Raises:
        UsageError: There is something else.
    """
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    ours = inside == {PAGE, DATA} and (folder / DATA / "comparison.js").exists()
    if folder.exists() and (not folder.is_dir() or (inside and not ours)):
        raise UsageError(f"{folder} holds something else than a report: choose another folder")


def _read_all(sources: Sequence[str | os.PathLike[str]]) -> dict[str, RunIndex]:
    """Read runs, and return them by name."""
    given = map(Path, sources)
    paths = [path for source in given for path in ([source] if source.is_file() else find_runs(source))]
    indexes = dict(zip(distinct_names(paths), map(RunIndex, paths), strict=True))
    for index in indexes.values():
        index.read_all()
        index.live, index.active = [], False  # the page has what was finished when it was written
    return indexes


def _write_run(folder: Path, name: str, index: RunIndex, with_verdicts: bool, most_episodes: int) -> int:
    """Write the data of a run. Return the number of episodes that can be opened."""
    _write_data(folder, "news", {**_news(index, with_verdicts=with_verdicts), "folder": name, "name": name})
    _write_data(folder, "stats", summary(index.rows, index.run))
    readable = index.rows[:most_episodes]
    for row in readable:
        _write_data(folder, f"episode-{row.id}", _page(index.trajectory(row.id), with_verdicts=with_verdicts))
    return len(readable)


def _write_data(folder: Path, name: str, data: Json) -> None:
    """Write data as a script, since a page that was opened from disk may load nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.js").write_text(f'arrived("{_pack(data)}");\n', encoding="ascii")


def _all_comparisons(indexes: Mapping[str, RunIndex], results: Mapping[str, RunResults]) -> JsonObject:
    """Return the tasks of all runs, and the paired difference, the warnings and the settings of each two."""
    if len(results) < 2:
        return {}
    pairs = []
    for two in itertools.combinations(results.values(), 2):
        found = compare_results(two)
        pair = found.pairs[0].model_dump() if found.pairs else None
        pairs.append({"names": [run.name for run in found.runs], "pair": pair, "warnings": found.warnings})
    whole = comparison_page(compare_results(list(results.values())), indexes.values())
    return {**whole, "names": list(results), "pairs": pairs}


# --- audits -------------------------------------------------------------------------------------------------------


def write_audits(audits: Sequence[JsonObject], path: Path) -> int:
    """Write audits of tasks as one HTML file without scripts, in their order, with what escaped as diffs.

    Args:
        audits: The fields of `AuditRecord`, for each audit.
        path: The file.

    Returns:
        The size of the file in bytes.
    """
    style = static_text("style.css")
    rows = "".join(map(_audit_row, audits))
    sections = "".join(map(_audit_section, audits))
    text = static_text("audits.html").format(policy=_hash(style), style=style, rows=rows, sections=sections)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path.stat().st_size


def _audit_row(audit: JsonObject) -> str:
    name = _escape(audit["task_id"])
    kinds = Counter(one["kind"] for one in audit["findings"])
    said = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or audit["reason"] or "none"
    strength = "" if audit["strength"] is None else f"{audit['strength']:.2f} ({audit['killed']} of {audit['tried']})"
    return f'<tr><td><a href="#task-{name}">{name}</a><td>{strength}<td>{_escape(said)}\n'


def _audit_section(audit: JsonObject) -> str:
    name = _escape(audit["task_id"])
    found = "".join(f"<li><b>{_escape(one['kind'])}</b>: {_escape(one['what'])}\n" for one in audit["findings"])
    escaped = "".join(
        f"<details open><summary>{_escape(one['kind'])} in {_escape(one['path'])}{_rejected(one)}</summary>"
        f"<pre>{_color_diff(one['diff'])}</pre></details>\n"
        for one in audit["escaped"]
    )
    said = f"<ul>{found}</ul>" if found else f"<p>{_escape(audit['reason'] or 'No findings.')}</p>"
    missing = "".join(f"<li>{_escape(line)}\n" for line in _find_missing(audit))
    said += f"<p>Not checked:</p><ul>{missing}</ul>" if missing else ""
    title = f"<h3>{quantify(len(audit['escaped']), 'wrong solution')} that every test of the task accepts</h3>"
    return f'<section id="task-{name}"><h2>{name}</h2>{said}{escaped and title + escaped}</section>\n'


def _rejected(escaped: JsonObject) -> str:
    return f", rejected by the added test {_escape(escaped['rejected_by'])}" if escaped.get("rejected_by") else ""


def _find_missing(audit: JsonObject) -> Iterator[str]:
    """Yield what an audit did not find out, each with the reason."""
    for name, end in {**audit["conditions"], **audit["not_tried"]}.items():
        if end not in ("same", "changed"):
            yield f"{name}: {end}"
    if audit["unjudged"]:
        yield f"{quantify(audit['unjudged'], 'wrong solution')}: no test run judged it"


def _escape(text: str) -> str:
    """Return a text as HTML, with characters that no reader sees as escapes: some turn the direction of a line."""
    shown = (c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return html.escape("".join(shown))


def _color_diff(diff: str) -> str:
    lines = diff.rstrip("\n").split("\n")
    return "\n".join(f'<span class="{_MARKS.get(line[:1], "")}">{_escape(line)}</span>' for line in lines)


# --- their content ----------------------------------------------------------------------------------------------


def _news(index: RunIndex, *, with_verdicts: bool) -> JsonObject:
    """Return the rows of a run that has ended, or is shown as if it had."""
    return {**index.news(), "live": [], "active": False, "progress": {}, "with_verdicts": with_verdicts}


def _page(trajectory: Trajectory, *, with_verdicts: bool) -> JsonObject:
    """Return an episode with the whole texts of its turns."""
    shown = trajectory if with_verdicts else trajectory.without_oracle()
    outline = [summary_of(turn.model_dump(), len(turn.observation)) for turn in shown.turns]
    return {**as_page(shown), "outline": outline, "turns": [parts_of(turn) for turn in shown.turns]}


def _pack(data: Json) -> str:
    """Return data as text that cannot end a script or a string: JSON, compressed, in base64."""
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), compresslevel=6, mtime=0)).decode()


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
