"""`swe-gym train`: the reference trainer on a configuration."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..errors import MissingDependency
from .common import open_console
from .options import Check

if TYPE_CHECKING:
    from ..train import TrainConfig


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration (.toml).")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SECTION.FIELD=VALUE", help="Overrides, for example optim.lr=2e-5."),
    ] = None,
    check: Check = False,
    plan: Annotated[
        float | None,
        typer.Option("--plan", metavar="GB", min=0, help="Print the memory needed on cards of this many GB, and exit."),
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Training processes, one per GPU; calls torchrun.")] = 1,
) -> None:
    """Train a language model on an environment. Run the same command again to resume.

    The configuration is checked and printed in full first. With --plan, a run that does not fit is an error.
    """
    from ..train import load_config  # without torch

    found = load_config(config, changes or ())
    console = open_console()
    console.quiet = os.environ.get("RANK", "0") != "0"  # another process of torchrun prints
    if plan is not None:
        _print_plan(found, plan, nproc, console)
        return
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


def _print_plan(config: "TrainConfig", card: float, nproc: int, console: Console) -> None:
    try:
        from ..train import plan_memory
    except ImportError as error:
        raise MissingDependency(f"training needs torch: pip install 'swe-gym[train]' ({error})") from error
    plan = plan_memory(config, int(card * 1e9), nproc)
    whole = "peak" if plan.sleeps else "all"
    for name, size in {**plan.parts, **plan.sampler, whole: plan.total}.items():
        console.print(f"{name:<16} {size / 1e9:8.2f} GB")
    if cache := plan.sampler.get("vLLM: cache"):
        fit = cache / (plan.kv_per_token * config.generation.max_context)
        console.print(f"The cache holds {fit:.0f} conversations of {config.generation.max_context} tokens.")


def _run_torchrun(nproc: int, command: Sequence[str]) -> None:
    """Replace this process by torchrun, which runs a command of `swe-gym` in several processes."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency("training needs torch: pip install 'swe-gym[train]'")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    os.execv(sys.executable, [*torchrun, "-m", "swe_gym", *command])
