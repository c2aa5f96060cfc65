"""`swe-gym view` and `swe-gym report`: show runs in the browser, or write them to HTML files."""

import contextlib
import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError, quantify
from ..trajectories.run_folder import holds_runs
from ..viewer import (
    MOST_EPISODES,
    PAGE,
    Report,
    TrainingReport,
    ViewServer,
    is_training,
    write_audits,
    write_curves,
    write_report,
    write_site,
    write_training_report,
)
from .common import open_console


def view(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, trajectory file, or folder of run folders.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8642,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run, or all runs of a folder, in the browser, also while they are running.

    The page has a table, episodes, comparisons and plots; for a folder of runs, a list of runs to compare. Only this
    machine can open it. It shows verdicts, which name hidden tests: do not share its address. Press Ctrl-C to stop.
    """
    with ViewServer(path, port) as server, contextlib.suppress(KeyboardInterrupt):
        open_console().print(server.url)
        if open_:
            webbrowser.open(server.url)
        server.wait()


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folders, trajectory files, run folders of `swe-gym train`, or a record of audits."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file or folder (default: NAME.html; report for several runs)."),
    ] = None,
    with_verdicts: Annotated[
        bool,
        typer.Option("--with-verdicts", help="Include verdicts, which name hidden tests and quote their output."),
    ] = False,
    most_episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of a run that can be opened. The table and the plots show all.")
    ] = MOST_EPISODES,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write the curves of training runs to this SVG file.")
    ] = None,
) -> None:
    """Write a run to one HTML file, or several runs to a folder to publish. Neither needs a server.

    The page is that of `swe-gym view`. Verdicts are left out unless --with-verdicts is set, because they name hidden
    tests. Several training runs share one HTML file. The page of `swe-gym tasks audit --record FILE` shows the worst
    task first, and each wrong solution that its tests accept.
    """
    audits, trained = [_is_audit(path) for path in runs], [is_training(path) for path in runs]
    if svg is not None and not any(trained):
        raise UsageError(f"--svg needs training runs, and {runs[0]} is not one")
    if any(audits) or any(trained):
        if with_verdicts or most_episodes != MOST_EPISODES:
            raise UsageError("--with-verdicts and --most-episodes need run folders of `swe-gym rollout`")
        if any(trained):
            _report_training(runs, trained, output, svg)
        else:
            _report_audits(runs, audits, output)
        return
    several = len(runs) > 1 or holds_runs(runs[0])
    target = output or Path("report" if several else f"{runs[0].resolve().stem}.html")
    console = open_console()
    if target.suffix != ".html":
        written = write_site(runs, target, with_verdicts=with_verdicts, most_episodes=most_episodes)
        place = f". Open {target / PAGE}, or copy the folder to a web server"
    elif several:
        raise UsageError(f"{target}: several runs make a folder, not one file: remove .html")
    else:
        written = write_report(runs[0], target, with_verdicts=with_verdicts, most_episodes=most_episodes)
        place = ""
    console.print(f"{target}: {_content(written, several=not target.suffix, with_verdicts=with_verdicts)}{place}")


def _content(written: Report, *, several: bool, with_verdicts: bool) -> str:
    """Return what was written, in words."""
    runs = f"{quantify(written.runs, 'run')}, " if several else ""
    readable = "" if written.readable == written.episodes else f", {written.readable:,} can be opened"
    kept = "with verdicts: they name hidden tests" if with_verdicts else "without verdicts"
    return f"{runs}{quantify(written.episodes, 'episode')}{readable}, {_size(written.size)}, {kept}"


def _report_training(runs: list[Path], trained: list[bool], output: Path | None, svg: Path | None) -> None:
    """Write training runs to one HTML file, or their curves to an SVG file.

    Raises:
        UsageError: A run is not a training run, or a name has another suffix.
    """
    if not all(trained):
        raise UsageError(
            f"{runs[trained.index(False)]} is not a training run, and {runs[trained.index(True)]} is one: write a "
            "report for each kind"
        )
    if svg is not None and svg.suffix != ".svg":
        raise UsageError(f"{svg}: the name must end with .svg")
    target = output or Path(f"{runs[0].resolve().stem if len(runs) == 1 else 'training'}.html")
    if target.suffix != ".html":
        raise UsageError(f"{target}: the name must end with .html")
    if svg is not None:
        _say(svg, write_curves(runs, svg))
    if svg is None or output is not None:
        _say(target, write_training_report(runs, target))


def _is_audit(path: Path) -> bool:
    """Whether a file is a record of audits, by its first line that is not blank."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        line = next(filter(bytes.strip, file), b"")
    try:
        first = json.loads(line)
    except ValueError:
        return False
    if not isinstance(first, dict) or not {"task_id", "status"} <= set(first):
        return False
    from ..curation import AuditRecord  # slow to import

    return set(first) <= set(AuditRecord.model_fields)


def _report_audits(paths: list[Path], audited: list[bool], output: Path | None) -> None:
    """Write a record of audits to one HTML file.

    Raises:
        UsageError: There are several files, or the name has another suffix.
    """
    from ..curation import read_audits  # slow to import

    if not all(audited):
        raise UsageError(
            f"{paths[audited.index(False)]} is not a record of audits, and {paths[audited.index(True)]} is one: write "
            "a report for each kind"
        )
    if len(paths) > 1:
        raise UsageError(f"one record of audits at a time: join the files, cat {' '.join(map(str, paths))} > all.jsonl")
    (path,) = paths
    target = output or Path(f"{path.resolve().stem}.html")
    if target.suffix != ".html":
        raise UsageError(f"{target}: the name must end with .html")
    audits = sorted(read_audits(path), key=lambda audit: audit.rank)
    size = write_audits([audit.model_dump() for audit in audits], target)
    open_console().print(f"{target}: {quantify(len(audits), 'audit')}, {_size(size)}; it names hidden tests")


def _say(target: Path, written: TrainingReport) -> None:
    runs = "training run" if written.runs == 1 else "training runs"
    open_console().print(f"{target}: {written.runs} {runs}, {written.updates:,} updates, {_size(written.size)}")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size > 1e6 else f"{max(1, round(size / 1e3))} kB"
