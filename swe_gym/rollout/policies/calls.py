"""Calls that every tool preset has, in the format of the environment."""

import gymnasium

from ...actions import render_call, shell_tool
from ...envs import SweEnv, ToolEnv
from ...errors import UsageError
from ...types import ToolCall

ENDING = ("submit", "finish")
"""Names of tools that end the episode."""


def swe_env(env: gymnasium.Env[str, str]) -> SweEnv:
    """Return the `SweEnv` below all wrappers, for policies that read its task.

    Raises:
        UsageError: It is another environment.
    """
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"this policy reads the task: it needs a SweEnv, not a {type(env.unwrapped).__name__}")
    return env.unwrapped


def tool_env(env: gymnasium.Env[str, str]) -> ToolEnv:
    """Return the environment below all wrappers, whose sandboxes may be on a server.

    Raises:
        UsageError: It is neither a `SweEnv` nor a `RemoteEnv`.
    """
    if not isinstance(env.unwrapped, ToolEnv):
        raise UsageError(f"the environment must be a SweEnv, not a {type(env.unwrapped).__name__}")
    return env.unwrapped


def render(env: ToolEnv, call: ToolCall) -> str:
    """Return the call as an action, in the format of the environment."""
    return render_call(call, env.config["action_format"])


def submit_call(env: ToolEnv) -> ToolCall:
    """Return the call that submits.

    Raises:
        UsageError: No tool submits.
    """
    for call in ending(env):
        return call
    raise UsageError("no tool ends the episode: add 'submit' to tools")


def ending(env: ToolEnv) -> list[ToolCall]:
    """Return the call that submits in a list, empty if no tool submits."""
    return [ToolCall(name=spec.name) for spec in env.tools if spec.name in ENDING][:1]


def shell_call(env: ToolEnv, command: str) -> ToolCall:
    """Return the call that runs a shell command.

    Raises:
        UsageError: No tool is a shell.
    """
    shell = shell_tool(env.tools)
    if shell is None:
        raise UsageError("this policy needs a shell tool, and the environment has none")
    spec, parameter = shell
    return ToolCall(name=spec.name, arguments={parameter: command})
