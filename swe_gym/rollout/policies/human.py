"""A policy that asks a person at the terminal."""

import shlex
from collections.abc import Callable, Sequence

import gymnasium
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from ...actions import shell_tool
from ...errors import UsageError
from ...spaces import Info
from ...tools import ENDING
from ...types import ToolCall, ToolSpec
from .base import render, tool_env

HELP = """\
A line is a shell command. A line that begins with a colon is a tool:

    :view src/app.py 10 40        arguments in the order of the schema
    :grep pattern='def main'      or by name
    :edit                         alone: what the tool takes
    :submit                       ends the episode and grades your work
    :help                         this text

An open quote continues on the next line. Ctrl-D drops it; at the prompt, it gives up the task.
Ctrl-C drops a line, or ends a running command and all that commands left running.
"""


class HumanPolicy:
    """A policy that asks a person at the terminal.

    Args:
        env: The environment whose tools the person uses.
        console: Console that shows observations; None is standard output.
        ask: Shows a prompt and returns the next line; raises EOFError at the end.

    Attributes:
        ends: Whether the last call asks for the end of the episode.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], console: Console | None = None, ask: Callable[[str], str] = input
    ) -> None:
        self._env = tool_env(env)
        self._tools = {spec.name: spec for spec in self._env.tools}
        self._shell = shell_tool(self._env.tools)
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._ask = ask
        self._first = True
        self.ends = False

    def reset(self, info: Info) -> None:
        """Show the task id."""
        self._first = True
        self._console.print(Text(f"Task {info['task_id']}\n", style="bold"))

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Show the task and the turns before."""
        for observation, action in turns:
            self._show(observation)
            self._console.print(Text(f"> {action}", style="dim"))

    def act(self, observation: str) -> str:
        """Show the observation and ask until the person types a valid call."""
        self._show(observation)
        while True:
            try:
                if line := self._ask_line():
                    call = self._parse(line)
                    self.ends = call.name in ENDING
                    return render(self._env, call)
            except UsageError as error:
                self._console.print(str(error), style="yellow")

    def _show(self, observation: str) -> None:
        if self._first:
            self._welcome(observation)
            self._first = False
        else:
            self._console.out(observation.removesuffix("\n"))

    def _welcome(self, observation: str) -> None:
        if self._console.is_terminal:
            self._console.print(Markdown(observation), "")
        else:
            self._console.out(observation)
        self._console.print(HELP, style="dim")
        self._console.print("tools: " + ", ".join(self._tools), style="dim")

    def _ask_line(self) -> str:
        """Read a line, and further lines while a quote is open."""
        try:
            line = self._ask("swe-gym> ").strip()
            while _has_open_quote(line):
                try:
                    line += "\n" + self._ask("... ")
                except EOFError as error:
                    raise UsageError("\nopen quote; nothing was run") from error
        except KeyboardInterrupt as error:
            raise UsageError("\nnothing was run; Ctrl-D gives up the task") from error
        return line

    def _parse(self, line: str) -> ToolCall:
        if not line.startswith(":"):
            if self._shell is None:
                raise UsageError(f"the environment has no shell tool: use :{', :'.join(self._tools)}")
            spec, parameter = self._shell
            return ToolCall(name=spec.name, arguments={parameter: line})
        name, *words = shlex.split(line[1:]) or ["help"]
        if name == "help":
            raise UsageError(HELP)
        if name not in self._tools:
            raise UsageError(f"unknown tool {name!r}; known: {', '.join(self._tools)}")
        return ToolCall(name=name, arguments=_arguments(self._tools[name], words))


def _has_open_quote(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError as error:
        return "quotation" in str(error)  # a backslash at the end is left to the shell
    return False


def _arguments(spec: ToolSpec, words: list[str]) -> dict[str, str]:
    """Map words to arguments: `name=value` by name, others by position. The schema converts types later."""
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
