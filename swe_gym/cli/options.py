"""Options that several commands take. Each is declared once and means the same in all of them."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..sandboxes import BACKENDS
from ..tools import TOOLSETS
from ..types import JsonObject

SOURCE_HELP = (
    "Task source (toy, swebench-verified, ...), task file (.jsonl, .json, .parquet), bundle, or hf://owner/name. "
    "SOURCE:50 takes the first 50 tasks, SOURCE[START:STOP] a slice."
)
MATCH_HELP = "Only tasks whose id matches this glob pattern."

SOURCE = typer.Option("--source", "-s", help=SOURCE_HELP)
BACKEND = typer.Option("--backend", help=f"Sandbox backend: {', '.join(BACKENDS)} or module:Class.")
POLICY = typer.Option("--policy", "-p", help="Policy: baseline, llm, gold, random, ... or module:Class.")
WORKERS = typer.Option("--workers", "-w", min=1, help="Number of episodes, tasks or images at a time.")
SEED = typer.Option("--seed", help="Seed of random choices.")
BASE_IMAGE = typer.Option("--base", metavar="IMAGE", help="Base image, with a shell, git and a C library.")

Source = Annotated[str, SOURCE]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--source-option",
        metavar="NAME=VALUE",
        help="Argument of the source, for example path=rows.parquet. Repeatable.",
    ),
]
Match = Annotated[str, typer.Option("--match", "-m", help=MATCH_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]

Backend = Annotated[str, BACKEND]
Backends = Annotated[list[str] | None, typer.Option("--backend", help="Only this backend. Repeatable.")]
SandboxOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--sandbox-option",
        metavar="NAME=VALUE",
        help="Field of SandboxSpec, for example memory_mb=512, or backend option, as options.pull=never. Repeatable.",
    ),
]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--backend-option", metavar="NAME=VALUE", help="Backend option, for example namespace=sandboxes. Repeatable."
    ),
]
Tools = Annotated[
    str | None,
    typer.Option("--tools", help=f"Tool preset ({', '.join(TOOLSETS)}) or comma-separated tool names."),
]
MaxTurns = Annotated[int | None, typer.Option("--max-turns", min=1, help="Steps per episode (default: 50).")]

FromTurn = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="RUN/TASK/ATTEMPT:TURN", help="Continue a recorded episode after this turn, counted from 1."
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help=r"Ignore text that matches this regular expression, for example `in \d+\.\d+s`. Repeatable."),
]

Workers = Annotated[int, WORKERS]
RUNS = 3
"""Test runs in each state, by default."""

TIMES = typer.Option(
    "--times", "-k", min=1, help=f"Test runs in each state, with the gold patch and without it (default: {RUNS})."
)
ResultRecord = Annotated[
    Path | None,
    typer.Option("--record", "-r", help="JSONL file of results. A second run resumes from it."),
]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds per image or upload.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="URL", help="Address of the Docker engine (default: DOCKER_HOST)."),
]
RunsFolder = Annotated[str | None, typer.Option("--output", "-o", help="Folder of runs (default: runs).")]
Check = Annotated[bool, typer.Option("--check", help="Check everything and exit. Nothing starts.")]

ExecutorName = Annotated[
    str | None,
    typer.Option("--executor", help="Where episodes run: threads, process, ray or module:Class (default: threads)."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", help="Address of the Ray cluster: auto or HOST:PORT. Implies --executor ray."),
]

Models = Annotated[
    list[str] | None, typer.Option("--model", help="Model name at the server. Repeat to use several models.")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", help="Server URL, for example http://localhost:8000/v1 (default: OPENAI_BASE_URL, else OpenAI)."
    ),
]


class CounterScope(enum.StrEnum):
    """The tests that get a counter-test."""

    few = "few"
    all = "all"


Counters = Annotated[
    CounterScope,
    typer.Option("--counter", help="Counter-test few or all of the tests that must keep passing."),
]


def executor_options(executor: str | None, ray_address: str | None) -> JsonObject:
    """Return the fields `executor` and `executor_options` that the options set.

    Raises:
        UsageError: An address is given for another executor.
    """
    if ray_address and executor not in (None, "ray"):
        raise UsageError(f"--ray-address needs --executor ray, not {executor}")
    options = {"executor_options": {"address": ray_address}} if ray_address else {}
    return {"executor": "ray" if ray_address else executor, **options}


def tools_of(tools: str | None) -> str | list[str] | None:
    """Return the preset or the names of tools that `--tools` sets."""
    return tools.split(",") if tools and "," in tools else tools
