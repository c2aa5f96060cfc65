"""Pages without a server: self-contained HTML files, a run as one of them, and several runs as a folder to publish."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
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

PAGE = "index.html"
"""File name of the page of a run."""

_STYLE = re.compile(r'<link rel="stylesheet" href="(.*?)">\n?')
_SCRIPT = re.compile(r'<script src="(.*?)" defer></script>\n?')


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
