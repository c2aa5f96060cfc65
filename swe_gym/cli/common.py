"""What several sub-commands share: how a user names a task source, and the options that mean the same everywhere."""

import json
from typing import Annotated, Any

import gymnasium
import typer

from ..envs.registration import register_families
from ..errors import UsageError
from ..tasks import TaskSource, load_source

TASK_FILES = (".jsonl", ".json", ".parquet")

Source = Annotated[str, typer.Option("--source", "-s", help="'toy', or a task file (.jsonl, .json, .parquet).")]
Backend = Annotated[str, typer.Option(help="Kind of sandbox.")]
SandboxOptions = Annotated[
    list[str] | None,
    typer.Option("--sandbox-option", metavar="NAME=VALUE", help="A field of SandboxSpec; may be repeated."),
]


def open_source(name: str) -> TaskSource:
    """The task source that a user named."""
    return load_source("file", path=name) if name.endswith(TASK_FILES) else load_source(name)


def make_env(source: str, **settings: Any) -> gymnasium.Env[str, str]:
    """The environment over the task source that a user named."""
    register_families()
    if source == "toy":
        return gymnasium.make("SWE/Toy-v0", **settings)
    if source.endswith(TASK_FILES):
        return gymnasium.make("SWE/Tasks-v0", path=source, **settings)
    raise UsageError(f"{source!r} is neither 'toy' nor a task file ({', '.join(TASK_FILES)})")


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """`["memory_mb=512", "image=python:3.12"]` as a dictionary; values are JSON where they can be, else text."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair!r} is not NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
