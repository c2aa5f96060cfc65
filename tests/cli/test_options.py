"""The options of all commands: few, and each declared once."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from swe_gym_command.app import COMMANDS, REMOVED, app, load_command

MOST = 100
"""Options that someone meets who reads the help of every command. An option that several commands share counts once."""


def options(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command and of those below it, each with the name of its command."""
    yield from ((" ".join(path), one) for one in command.params if one.param_type_name == "option")
    for name, one in getattr(command, "commands", {}).items():
        yield from options(one if path else load_command(name), *path, name)


EVERY_OPTION = list(options(typer.main.get_command(app)))


def test_options_are_few() -> None:
    """An option is the same in two commands if its names and its help are."""
    assert {command.split()[0] for command, _ in EVERY_OPTION if command} == set(COMMANDS)
    declared = {(*one.opts, *one.secondary_opts, one.help) for _, one in EVERY_OPTION}
    assert len(declared) <= MOST, sorted(declared)


@pytest.mark.parametrize("command", REMOVED)
def test_an_option_that_is_gone_names_its_successor(cli, command: str) -> None:
    known = {name for path, one in EVERY_OPTION for name in one.opts if path.startswith(command)}
    for option, successor in REMOVED[command].items():
        assert option not in known
        assert not successor.startswith("-") or successor.split()[0] in known
        words = command.split() if " " in command else [command, "list"]
        refused = cli(*words, f"{option}=x")
        assert (refused.status, refused.err) == (2, f"Error: no option {option}: write {successor}\n")
