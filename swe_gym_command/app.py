"""The list of sub-commands, each a function in a file of `swe_gym.cli` that is imported when it is chosen."""

import enum
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import ending_at_ctrl_c

COMMANDS = {
    "demo": ("play:demo", "Play and grade the bundled tasks."),
    "play": ("play:play", "Solve a task yourself."),
    "rollout": ("rollout:rollout", "Run many episodes; monitor, stop and resume them."),
    "eval": ("rollout:evaluate", "Evaluate a model: checks, a rollout, results."),
    "agents": ("agents:agents", "List agents and the size of their kits; build kits."),
    "view": ("view:view", "Show a run in the browser."),
    "runs": ("runs:runs", "List runs."),
    "compare": ("runs:compare", "Compare runs over the same tasks."),
    "select": ("select:select", "Choose among the attempts of a run, and measure the choices."),
    "report": ("view:report", "Write runs to HTML files."),
    "replay": ("export:replay", "Replay recorded actions and compare the results."),
    "export": ("export:export", "Convert trajectories to the format of another system."),
    "import": ("export:import_", "Convert trajectories from the format of another system."),
    "validate": ("validate:validate", "Check that tasks are usable."),
    "certify": ("certify:certify", "Judge rewarded attempts anew, and certify what was found."),
    "regrade": ("certify:regrade", "Judge the attempts of a run anew, and compare the rewards."),
    "serve": ("serve:serve", "Offer an environment to trainers on other machines."),
    "mcp": ("serve:mcp", "Offer a task to an MCP client."),
    "train": ("train:train", "Train a language model on an environment."),
    "doctor": ("doctor:doctor", "Report what works here, and how to fix what does not."),
    "tasks": ("tasks:app", "List, show, export, split and make tasks."),
    "images": ("images:app", "Manage the Docker images of tasks."),
    "clean": ("doctor:clean", "Remove sandboxes that dead clients left behind."),
    "bench": ("bench:app", "Measure the cost of sandboxes and rollouts."),
}
"""Command -> "module:function or Typer", and its line in the list of commands.

A module may name the class of its command as `COMMAND_CLASS`."""

METAVARS = {
    "N": (
        *("attempt", "attempts", "episodes", "limit", "max_turns"),
        *("most_episodes", "nproc", "quota", "rounds", "seed", "sessions", "times", "workers"),
    ),
    "NUMBER": ("min_reward", "min_strength", "temperature"),
    "SECONDS": ("idle", "timeout"),
    "MIB": ("min_free_mb",),
    "GIB": ("keep_gb",),
    "NAME": ("agent", "backend", "difficulty", "executor", "license", "model", "name", "policy"),
    "FORMAT": ("form", "to"),
    "SOURCE": ("source",),
    "TOOLS": ("tools",),
    "TAG": ("tag",),
    "OWNER/NAME": ("repo",),
    "PATTERN": ("match",),
    "REGEX": ("ignore",),
    "FILE": ("archive", "mcp", "record", "statement", "svg", "tls_cert", "tls_key"),
    "FOLDER": ("from_git", "skills"),
    "PATH": ("output",),
    "URL": ("base_url",),
    "HOST": ("allow_host", "host"),
    "HOST:PORT": ("ray_address",),
    "PORT": ("port",),
    "TOKEN": ("token",),
    "IMAGE": ("default",),
    "COMMAND": ("tests",),
    "COMMIT": ("commit",),
    "VERSION": ("python",),
    "REQUIREMENT": ("requirement",),
}
"""Metavariable -> options that show it in help, unless they name another one themselves."""

FILE = "the file as an argument, without an option"
TOOL_SETTINGS = ("region", "registry_type", "role_arn", "envd_image", "network", "cpus", "memory_mb", "endpoint")
LINES = {"--min-lines": "--lines MIN:", "--max-lines": "--lines :MAX"}
REMOVED: dict[str, dict[str, str]] = {
    **dict.fromkeys(("rollout", "eval", "validate", "tasks"), LINES),
    "tasks new": {"--output": FILE, "-o": FILE, "--runs": "--times", "--commit": "--from-git FOLDER COMMIT"},
    "tasks split": {"--suffix": "the format in a part's name, as --part train.parquet=0.9"},
    "images": {"--jobs": "--workers", "-j": "-w"},
    "images build": {"--output": FILE, "-o": FILE},
    "images ags": {
        **{"--output": FILE, "-o": FILE},
        **{f"--{name.replace('_', '-')}": f"{name}=VALUE" for name in TOOL_SETTINGS},
    },
}
"""Command -> options that it and its sub-commands had, and what to write instead."""

_METAVAR = {option: metavar for metavar, options in METAVARS.items() for option in options}


class LazyCommands(TyperGroup):
    """Imports a command when it is chosen, so that the list of commands is quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        _refuse_removed(args)
        with ending_at_ctrl_c():
            return name, load_command(name) if name else command, rest


def _refuse_removed(args: Sequence[str]) -> None:
    """Name the successor of an option that a command no longer has.

    Raises:
        UsageError: It is among the arguments.
    """
    removed = {**REMOVED.get(args[0], {}), **REMOVED.get(" ".join(args[:2]), {})}
    for option in (one.partition("=")[0] for one in args):
        if option in removed:
            from swe_gym.errors import UsageError

            raise UsageError(f"no option {option}: write {removed[option]}")


def load_command(name: str) -> Any:
    """Return the command of this name, with its options."""
    place, _, attribute = COMMANDS[name][0].partition(":")
    module = importlib.import_module(f"swe_gym.cli.{place}")
    target = getattr(module, attribute)
    alone = typer.Typer(rich_markup_mode="markdown")
    if isinstance(target, typer.Typer):
        alone.add_typer(target, name=name)
    else:
        alone.command(name, cls=getattr(module, "COMMAND_CLASS", None))(target)
    command = typer.main.get_group(alone).commands[name]
    _name_values(command)
    return command


def _name_values(command: Any) -> None:
    """Set the metavariables of the options of a command, or of its sub-commands."""
    for one in getattr(command, "commands", {}).values():
        _name_values(one)
    for option in command.params:
        if option.param_type_name == "option" and not option.is_flag and option.metavar is None:
            option.metavar = _METAVAR.get(option.name)


def _unloaded() -> None:
    """Stand for a command in the list of commands."""


app = typer.Typer(
    cls=LazyCommands,
    name="swe-gym",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_unloaded)


def _print_version(wanted: bool) -> None:
    if wanted:
        import platform
        from importlib.metadata import version

        typer.echo(f"swe-gym {version('swe-gym')}\npython {platform.python_version()}\n{platform.platform()}")
        for package, found in _installed():
            typer.echo(f"{package} {found}")
        raise typer.Exit


def _installed() -> Iterator[tuple[str, str]]:
    """Yield name and version of what the package and its extras need, as far as it is installed."""
    import re
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    needed = [one for one in requires("swe-gym") or () if not re.search(r"extra == .(dev|docs|all)\b", one)]
    for package in dict.fromkeys(Requirement(one).name for one in needed):
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if package != "swe-gym":
            yield package, found


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
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Log to this file instead.")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print all versions and exit."),
    ] = False,
) -> None:
    """Software-engineering tasks as Gymnasium environments."""
    if log_level or log_file:
        from swe_gym.logs import logging_to

        context.with_resource(logging_to(log_file, log_level or LogLevel.info))


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, as `swe_gym_command.main` does."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack characters of a task
    try:
        app(arguments, prog_name="swe-gym")
    except Exception as error:
        if not _print_error(error):
            raise
        sys.exit(2)


def _print_error(error: Exception) -> bool:
    """Print an error of the user, of values or of files as one message. Return whether it is one."""
    from pydantic import ValidationError  # slow to import, as are the next ones
    from rich.console import Console
    from rich.text import Text

    from swe_gym.errors import SweGymError, wrong_fields

    if not isinstance(error, SweGymError | OSError | ValidationError):
        return False
    said = wrong_fields(error) if isinstance(error, ValidationError) else str(error)
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("Error: ", "bold red"), said), soft_wrap=not console.is_terminal)
    return True
