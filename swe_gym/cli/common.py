"""What sub-commands share: how a user names tasks and sandboxes, and how a command prints."""

import enum
import fnmatch
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..envs.checks import check_sandbox
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..tasks import TaskSource, load_source
from ..types import Task

TASK_FILES = (".jsonl", ".json", ".parquet")

SOURCE_HELP = "A task source (toy, micro, swebench, ...), or a task file (.jsonl, .json, .parquet)."
Source = Annotated[str, typer.Option("--source", "-s", help=SOURCE_HELP)]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--source-option",
        metavar="NAME=VALUE",
        help="Argument of the source, as in path=rows.parquet; may be repeated.",
    ),
]
Match = Annotated[str, typer.Option("--match", "-m", help="Only ids that match this glob pattern.")]


class CounterScope(enum.StrEnum):
    """The tests that get a counter-test."""

    few = "few"
    all = "all"


Counters = Annotated[
    CounterScope,
    typer.Option("--counter", help="Tests that must keep passing and also run changed: few or all."),
]
Backend = Annotated[str, typer.Option(help="Kind of sandbox: local, docker, kubernetes, e2b.")]
SandboxOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--sandbox-option", metavar="NAME=VALUE", help="A field of SandboxSpec, as in memory_mb=512; may be repeated."
    ),
]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--backend-option",
        metavar="NAME=VALUE",
        help="One of the backend's own, as in namespace=sandboxes; may be repeated.",
    ),
]


# --- what a user names --------------------------------------------------------------------------------------


def open_source(name: str, pairs: list[str] | None = None) -> TaskSource:
    """The task source that a user named, with its arguments as `--source-option` gives them."""
    source, options = source_of(name, pairs)
    return load_source(source, **options)


def open_env(name: str, pairs: list[str] | None = None, **settings: Any) -> SweEnv:
    """An environment over the task source that a user named."""
    source, options = source_of(name, pairs)
    return SweEnv(source, options, **settings)


def source_of(name: str, pairs: list[str] | None = None) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a task source; a file's name stands for the tasks in it."""
    options = parse_pairs("--source-option", pairs)
    return ("file", {"path": name, **options}) if name.endswith(TASK_FILES) else (name, options)


def matching(source: TaskSource, pattern: str) -> list[str]:
    """The ids of the tasks that match; there is at least one."""
    ids = fnmatch.filter(source.ids(), pattern)
    if not ids:
        raise UsageError(f"no task matches {pattern!r}; `swe-gym tasks list` lists them")
    return ids


def sandbox_options(backend: str, pairs: list[str] | None) -> dict[str, Any]:
    """`["memory_mb=512", "image=python:3.12"]` as a dictionary, checked before anything is started."""
    options = parse_pairs("--sandbox-option", pairs)
    check_sandbox(backend, options)
    return options


def parse_pairs(option: str, pairs: list[str] | None) -> dict[str, Any]:
    """`["max_tokens=512", "calls=text"]` as a dictionary; values are JSON where they can be, else text."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{option} {pair!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


# --- how a command prints -----------------------------------------------------------------------------------


def open_console() -> Console:
    """Where a command prints: as a terminal takes it, or plain lines of any length into a file or pipe.

    Nothing is taken for markup: much of what is printed was written by somebody else.
    """
    plain = Console(highlight=False, markup=False, emoji=False)
    return plain if plain.is_terminal else Console(highlight=False, markup=False, emoji=False, width=100_000)


def plain_table(*headers: str) -> Table:
    """A table without lines, whose columns are as wide as what is in them; the last may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers[:-1]:
        table.add_column(header, no_wrap=True, overflow="fold")
    table.add_column(headers[-1], overflow="fold")
    return table


def headline(task: Task) -> str:
    """The first line of the issue."""
    return task.problem_statement.strip().partition("\n")[0].lstrip("# ")
