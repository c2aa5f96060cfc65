"""The `swe-gym` command: one file per sub-command."""

import enum
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from ..errors import SweGymError, wrong_fields
from ..logs import logging_to
from . import (
    bench,
    clean,
    compare,
    demo,
    doctor,
    export,
    images,
    play,
    replay,
    report,
    rollout,
    tasks,
    train,
    validate,
    view,
)

app = typer.Typer(
    name="swe-gym",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(demo.demo)
app.command()(play.play)
app.command(cls=rollout.RolloutCommand)(rollout.rollout)
app.command()(view.view)
app.command()(compare.compare)
app.command()(report.report)
app.command()(replay.replay)
app.command()(export.export)
app.command("import")(export.import_)
app.command()(validate.validate)
app.command()(train.train)
app.command()(doctor.doctor)
app.add_typer(tasks.app, name="tasks")
app.add_typer(images.app, name="images")
app.command()(clean.clean)
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("swe-gym"))
        raise typer.Exit


class LogLevel(enum.StrEnum):
    """Levels of log records."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@app.callback()
def _options(
    context: typer.Context,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="Log retries, losses and cancellations to standard error.")
    ] = None,
    log_file: Annotated[Path | None, typer.Option(dir_okay=False, help="Log to this file instead.")] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Software-engineering tasks as Gymnasium environments."""
    if log_level or log_file:
        context.with_resource(logging_to(log_file, log_level or LogLevel.info))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Errors of the user, of values and of files are one message and exit status 2.

    Args:
        arguments: The arguments after `swe-gym`; None takes them from the command line.
    """
    try:
        app(arguments, prog_name="swe-gym")
    except (SweGymError, OSError, ValidationError) as error:
        said = wrong_fields(error) if isinstance(error, ValidationError) else str(error)
        console = Console(stderr=True, highlight=False)
        console.print(Text.assemble(("Error: ", "bold red"), said), soft_wrap=not console.is_terminal)
        sys.exit(2)
