"""`swe-gym play`: a person in the policy's place."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import typer
from rich.console import Console
from rich.markdown import Markdown

from ..actions import render_call
from ..actions.arguments import shell_tool
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..rollout.episode import play as play_episode
from ..types import ToolCall, ToolSpec
from .common import Backend, Source, make_env

HELP = """\
A line is a shell command. A line that begins with a colon is a tool:

    :view src/app.py 10 40        arguments in the order of the schema
    :grep pattern='def main'      or by name
    :edit                         alone: what the tool takes
    :submit                       ends the episode and grades your work
    :help                         this text;  Ctrl-D gives up
"""


def play(
    task_id: Annotated[str | None, typer.Argument(help="The task; by default one is drawn.")] = None,
    source: Source = "toy",
    backend: Backend = "local",
    tools: Annotated[str, typer.Option(help="Preset of tools.")] = "default",
    seed: Annotated[int | None, typer.Option(help="Of the draw.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Append the trajectory to this file.")] = None,
) -> None:
    """Play one task yourself, with the tools that a policy has."""
    console = Console()
    env = make_env(source, task_id=task_id, backend=backend, tools=tools, max_turns=10_000, time_limit=86_400.0)
    try:
        trajectory = play_episode(env, Person(env, console), seed=seed)
    except EOFError:
        console.print("\ngiven up; nothing was graded")
        return
    finally:
        env.close()
    info = trajectory.info
    console.rule(f"reward {trajectory.reward:g}: {'resolved' if trajectory.resolved else 'not resolved'}")
    console.print(
        f"{info['fail_to_pass_passed']} of {info['fail_to_pass_total']} tests that had to start passing do, "
        f"{info['pass_to_pass_passed']} of {info['pass_to_pass_total']} still pass. {len(trajectory.turns)} turns."
    )
    if output:
        trajectory.append(output)
        console.print(f"trajectory: {output}")


class Person:
    """A policy that asks whoever sits at the terminal.

    Args:
        env: Whose tools the person uses.
        console: Where observations are shown.
        ask: Gives the next line; raises EOFError at the end.
    """

    def __init__(self, env: gymnasium.Env[str, str], console: Console, ask: Callable[[str], str] = input) -> None:
        if not isinstance(env.unwrapped, SweEnv):
            raise UsageError(f"this plays SweEnv, not {type(env.unwrapped).__name__}")
        self._tools = {spec.name: spec for spec in env.unwrapped.tools}
        self._shell = shell_tool(env.unwrapped.tools)
        self._console = console
        self._ask = ask
        self._first = True

    def reset(self, info: dict[str, Any]) -> None:
        """Show which task it is, and how to play."""
        self._first = True
        self._console.rule(str(info["task_id"]))

    def act(self, observation: str) -> str:
        """Show the observation and ask until the person typed something that is a call."""
        if self._first:
            self._console.print(Markdown(observation))
            self._console.print(HELP, style="dim", markup=False, highlight=False)
            self._console.print("tools: " + ", ".join(self._tools), style="dim")
            self._first = False
        else:
            self._console.print(observation, markup=False, highlight=False)
        while True:
            line = self._ask("swe-gym> ").strip()
            if line:
                try:
                    return render_call(self._parse(line))
                except UsageError as error:
                    self._console.print(str(error), style="yellow", markup=False)

    def _parse(self, line: str) -> ToolCall:
        if not line.startswith(":"):
            if self._shell is None:
                raise UsageError(f"there is no shell among the tools: use :{', :'.join(self._tools)}")
            spec, parameter = self._shell
            return ToolCall(name=spec.name, arguments={parameter: line})
        try:
            name, *words = shlex.split(line[1:])
        except ValueError as error:
            raise UsageError(f"{error}: is a quote not closed?") from error
        if name not in self._tools:
            raise UsageError(HELP if name == "help" else f"no tool {name!r}; there are {', '.join(self._tools)}")
        return ToolCall(name=name, arguments=_arguments(self._tools[name], words))


def _arguments(spec: ToolSpec, words: list[str]) -> dict[str, str]:
    """Words as arguments: `name=value` by name, the others by position. The schema converts their types later."""
    parameters = list(spec.parameters.get("properties", {}))
    required = spec.parameters.get("required", [])
    if required and not words:
        shown = " ".join(name if name in required else f"[{name}]" for name in parameters)
        raise UsageError(f":{spec.name} {shown}\n{spec.description}")
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in parameters:
            given[name] = value
            continue
        free = [parameter for parameter in parameters if parameter not in given]
        if not free:
            raise UsageError(f"too many arguments: {spec.name} takes {', '.join(parameters)}")
        given[free[0]] = word
    return given
