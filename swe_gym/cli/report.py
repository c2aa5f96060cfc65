"""`swe-gym report`: write runs to one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..viewer.report import MOST_EPISODES, write_report
from ..viewer.training import is_training
from ..viewer.training_report import TrainingReport, write_curves, write_training_report
from .common import open_console


def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folder, trajectory file, or folders of `swe-gym train`.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file (default: NAME.html).")] = None,
    with_verdicts: Annotated[
        bool,
        typer.Option("--with-verdicts", help="Include verdicts, which name hidden tests and quote their output."),
    ] = False,
    most_episodes: Annotated[
        int, typer.Option(min=0, help="Episodes that can be opened. The table and the plots show all.")
    ] = MOST_EPISODES,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write the curves of training runs to this SVG file.")
    ] = None,
) -> None:
    """Write a run to one HTML file that needs no server and no network.

    Verdicts are left out unless --with-verdicts is set, because they name hidden tests. Several training runs share
    one page.
    """
    training = all(is_training(path) for path in paths)
    if len(paths) > 1 and not training:
        other = next(path for path in paths if not is_training(path))
        raise UsageError(
            f"{other} is not a training run, and only training runs share a report: pass one run at a time"
        )
    if svg is not None and not training:
        raise UsageError(f"--svg needs training runs, and {paths[0]} is not one")
    if svg is not None and svg.suffix != ".svg":
        raise UsageError(f"{svg}: the name must end with .svg")
    target = output or Path(f"{paths[0].resolve().stem if len(paths) == 1 else 'training'}.html")
    if target.suffix != ".html":
        raise UsageError(f"{target}: the name must end with .html")
    if not training:
        _report_episodes(paths[0], target, with_verdicts=with_verdicts, most_episodes=most_episodes)
        return
    if svg is not None:
        _say(svg, write_curves(paths, svg))
    if svg is None or output is not None:
        _say(target, write_training_report(paths, target))


def _report_episodes(path: Path, target: Path, *, with_verdicts: bool, most_episodes: int) -> None:
    written = write_report(path, target, with_verdicts=with_verdicts, most_episodes=most_episodes)
    readable = "" if written.readable == written.episodes else f", {written.readable:,} can be opened"
    kept = "with verdicts: they name hidden tests" if with_verdicts else "without verdicts"
    open_console().print(f"{target}: {written.episodes:,} episodes{readable}, {written.size / 1e6:.1f} MB, {kept}")


def _say(target: Path, written: TrainingReport) -> None:
    runs = "training run" if written.runs == 1 else "training runs"
    open_console().print(
        f"{target}: {written.runs} {runs}, {written.updates:,} updates, {max(1, round(written.size / 1e3)):,} kB"
    )
