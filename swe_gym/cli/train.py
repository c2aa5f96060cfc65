"""`swe-gym train`: the reference trainer on a configuration."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import MissingDependency
from .common import open_console


def train(
    config: Annotated[Path, typer.Argument(help="TOML configuration; see docs/learning.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SECTION.FIELD=VALUE", help="Overrides, for example optim.lr=2e-5."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the full configuration and exit.")] = False,
) -> None:
    """Train a language model on an environment. Run the same command again to resume."""
    from ..train.config import load_config  # without torch

    found = load_config(config, changes or ())
    console = open_console()
    console.print_json(found.model_dump_json())
    if check:
        return
    try:
        from ..train.loop import train as run
    except ImportError as error:
        raise MissingDependency(f"training needs torch: pip install 'swe-gym[train]' ({error})") from error
    console.print(f"Log: {Path(found.run.output) / 'log.jsonl'}")
    try:
        console.print(f"Model: {run(found)}")
    except KeyboardInterrupt:
        console.print("Interrupted. Run the same command to resume from the last checkpoint.")
        raise
