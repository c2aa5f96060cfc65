"""The `swe-gym` command: one file per sub-command."""

import sys

import typer
from rich.console import Console

from ..errors import SweGymError
from . import bench, demo, doctor, play, tasks, validate

app = typer.Typer(
    name="swe-gym",
    help="Software-engineering tasks as Gymnasium environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.command()(validate.validate)
app.command()(play.play)
app.command()(doctor.doctor)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; our own errors are one readable message and exit status 2."""
    try:
        app()
    except SweGymError as error:
        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]:", str(error), highlight=False, markup=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
