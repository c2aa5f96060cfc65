"""`swe-gym train`: the reference trainer on a configuration."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MissingDependency
from .common import open_console
from .options import Check


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration (.toml).")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SECTION.FIELD=VALUE", help="Overrides, for example optim.lr=2e-5."),
    ] = None,
    check: Check = False,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Training processes, one per GPU; calls torchrun.")] = 1,
) -> None:
    """Train a language model on an environment. Run the same command again to resume.

    The configuration is checked and printed in full first.
    """
    from ..train import load_config  # without torch

    found = load_config(config, changes or ())
    console = open_console()
    console.quiet = os.environ.get("RANK", "0") != "0"  # another process of torchrun prints
    if nproc > 1 and not check:
        _run_torchrun(nproc, ["train", str(config), *(changes or ())])
    console.print_json(found.model_dump_json())
    if check:
        return
    try:
        from ..train import train as run
    except ImportError as error:
        raise MissingDependency(f"training needs torch: pip install 'swe-gym[train]' ({error})") from error
    console.print(f"Log: {Path(found.run.output) / 'log.jsonl'}")
    try:
        console.print(f"Model: {run(found)}")
    except KeyboardInterrupt:
        console.print("Interrupted. Run the same command to resume from the last checkpoint.")
        raise


def _run_torchrun(nproc: int, command: Sequence[str]) -> None:
    """Replace this process by torchrun, which runs a command of `swe-gym` in several processes."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency("training needs torch: pip install 'swe-gym[train]'")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    os.execv(sys.executable, [*torchrun, "-m", "swe_gym", *command])
