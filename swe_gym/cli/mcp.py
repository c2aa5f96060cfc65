"""`swe-gym mcp`: offer a task to a client of the Model Context Protocol."""

import os
import random
import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..rollout import Plan
from ..tasks import load_source
from ..toml import parse_pairs
from ..types import JsonObject
from .common import sandbox_options as parse_sandbox_options
from .common import source_of
from .options import SEED, Backend, MaxTurns, RunsFolder, SandboxOptions, Source, SourceOptions, Tools, tools_of


def mcp(
    task_id: Annotated[str | None, typer.Argument(metavar="TASK_ID", help="Task id (default: a random task).")] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments of the environment, for example time_limit=3600."),
    ] = None,
    source: Source = "toy",
    source_option: SourceOptions = None,
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Tools = None,
    max_turns: MaxTurns = None,
    seed: Annotated[int | None, SEED] = None,
    output: RunsFolder = None,
) -> None:
    """Offer one task to an MCP client, over standard input and output.

    The client starts this command, calls `start_task` for the problem statement, and uses the tools of the environment.
    `submit` ends the episode. Each server plays one episode and records it in a run folder of its own.
    """
    from ..adapters import serve_mcp  # an extra, which help does not need

    if task_id and "=" in task_id:
        options = [task_id, *(options or [])]
        task_id = None
    name, source_options = source_of(source, source_option)
    chosen = task_id or _choose(name, source_options, seed)
    given = {"tools": tools_of(tools), "max_turns": max_turns}
    env = {
        "backend": backend,
        "sandbox_options": parse_sandbox_options(backend, sandbox_option),
        **{field: value for field, value in given.items() if value is not None},
        **parse_pairs("argument", options),
    }
    load_source(name, **source_options).get(chosen)
    plan = Plan(source=name, source_options=source_options, tasks=(chosen,), env=env, policy="mcp", seed=seed or 0)
    run = f"mcp-{chosen.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    serve_mcp(plan, Path(output or "runs").expanduser() / run)


def _choose(source: str, options: JsonObject, seed: int | None) -> str:
    """Return a random task.

    Raises:
        UsageError: The source is empty.
    """
    ids = load_source(source, **options).ids()
    if not ids:
        raise UsageError("the source has no tasks: choose another one, or other arguments of it")
    return ids[random.Random(seed).randrange(len(ids))]
