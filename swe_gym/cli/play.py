"""`swe-gym play`: a person in the policy's place."""

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from ..actions import render_call
from ..actions.arguments import shell_tool
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..rollout.episode import play as play_episode
from ..rollout.trajectory import Trajectory
from ..types import ToolCall, ToolSpec
from ..wrappers.record_trajectory import RecordTrajectory
from .common import Backend, SandboxOptions, Source, open_console, open_env
from .common import sandbox_options as parse_sandbox_options

HELP = """\
A line is a shell command. A line that begins with a colon is a tool:

    :view src/app.py 10 40        arguments in the order of the schema
    :grep pattern='def main'      or by name
    :edit                         alone: what the tool takes
    :submit                       ends the episode and grades your work
    :help                         this text

An open quote goes on in the next line. Ctrl-D drops it; at the prompt, it gives up the task.
"""


def play(
    task_id: Annotated[str | None, typer.Argument(help="The task; by default one is drawn.")] = None,
    source: Source = "toy",
    backend: Backend = "local",
    sandbox_option: SandboxOptions = None,
    tools: Annotated[str, typer.Option(help="Preset of tools.")] = "default",
    seed: Annotated[int | None, typer.Option(help="Of the draw.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Append the trajectory to this file.")] = None,
) -> None:
    """Play one task yourself, with the tools that a policy has."""
    console = open_console()
    env = open_env(
        source,
        task_id=task_id,
        backend=backend,
        sandbox_options=parse_sandbox_options(backend, sandbox_option),
        tools=tools,
        max_turns=10_000,
        max_invalid=None,
        time_limit=86_400.0,
    )
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it gives `input` a history and cursor keys
    with RecordTrajectory(env, str(output) if output else None) as recorder:
        try:
            trajectory = play_episode(recorder, Person(env, console), seed=seed)
        except (EOFError, KeyboardInterrupt) as end:
            console.print("\nGiven up; nothing was graded.")
            raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 0) from end
    _report(console, trajectory)
    if output:
        console.print(f"Trajectory: {output}")
    if not trajectory.reward_valid:
        raise typer.Exit(1)


def _report(console: Console, trajectory: Trajectory) -> None:
    info = trajectory.info
    if not trajectory.reward_valid:
        console.print(Text.assemble("\n", ("No reward: ", "bold yellow"), info["failure"]))
        return
    style = "bold green" if trajectory.resolved else "bold red"
    result = "resolved" if trajectory.resolved else "not resolved"
    console.print(Text(f"\nReward {trajectory.reward:g}: {result} in {len(trajectory.turns)} turns.", style=style))
    if info["fail_to_pass_total"]:
        console.print(
            f"{info['fail_to_pass_passed']} of {info['fail_to_pass_total']} tests that had to start passing do, "
            f"{info['pass_to_pass_passed']} of {info['pass_to_pass_total']} still pass."
        )


class Person:
    """A policy that asks whoever sits at the terminal.

    Args:
        env: Whose tools the person uses.
        console: Where observations are shown.
        ask: Shows a prompt and gives the next line; raises EOFError at the end.
    """

    def __init__(self, env: SweEnv, console: Console, ask: Callable[[str], str] = input) -> None:
        self._tools = {spec.name: spec for spec in env.tools}
        self._shell = shell_tool(env.tools)
        self._console = console
        self._ask = ask
        self._first = True

    def reset(self, info: dict[str, Any]) -> None:
        """Show which task it is."""
        self._first = True
        self._console.print(Text(f"Task {info['task_id']}\n", style="bold"))

    def act(self, observation: str) -> str:
        """Show the observation and ask until the person typed something that is a call."""
        if self._first:
            self._welcome(observation)
            self._first = False
        else:
            self._console.out(observation.removesuffix("\n"))
        while True:
            try:
                if line := self._ask_line():
                    return render_call(self._parse(line))
            except UsageError as error:
                self._console.print(str(error), style="yellow")

    def _welcome(self, observation: str) -> None:
        if self._console.is_terminal:
            self._console.print(Markdown(observation), "")
        else:
            self._console.out(observation)
        self._console.print(HELP, style="dim")
        self._console.print("tools: " + ", ".join(self._tools), style="dim")

    def _ask_line(self) -> str:
        """A line, and the lines after it as long as a quote is open."""
        line = self._ask("swe-gym> ").strip()
        while _has_open_quote(line):
            try:
                line += "\n" + self._ask("... ")
            except EOFError as error:
                raise UsageError("\na quote was not closed; nothing was run") from error
        return line

    def _parse(self, line: str) -> ToolCall:
        if not line.startswith(":"):
            if self._shell is None:
                raise UsageError(f"there is no shell among the tools: use :{', :'.join(self._tools)}")
            spec, parameter = self._shell
            return ToolCall(name=spec.name, arguments={parameter: line})
        name, *words = shlex.split(line[1:]) or ["help"]
        if name == "help":
            raise UsageError(HELP)
        if name not in self._tools:
            raise UsageError(f"there is no tool {name!r}; there are {', '.join(self._tools)}")
        return ToolCall(name=name, arguments=_arguments(self._tools[name], words))


def _has_open_quote(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError as error:
        return "quotation" in str(error)  # the other complaint, a backslash at the end, is the shell's affair
    return False


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
            raise UsageError(f"too many arguments: {spec.name} takes {', '.join(parameters) or 'none'}")
        given[free[0]] = word
    return given
