"""Who plays: the protocol, and the policies that need no model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import gymnasium

from ..actions import render_call
from ..actions.arguments import shell_tool
from ..envs.swe_env import SweEnv
from ..errors import UsageError
from ..types import ToolCall

CHUNK = 60_000
"""Characters of a patch in one command line; Linux takes 131,072 bytes."""


class Policy(Protocol):
    """Something that turns observations into actions.

    `play` calls `reset` once and then `act` with every observation, the one of `reset` first. A policy that needs
    more than the text (the tools, say) takes it in its constructor.
    """

    def reset(self, info: dict[str, Any]) -> None:
        """An episode begins: forget the last one. `info` is that of the environment's `reset`."""
        ...

    def act(self, observation: str) -> str:
        """The next action."""
        ...


class ScriptedPolicy:
    """Says what it was told to, whatever it sees, and repeats its last action when the script is at its end.

    Args:
        actions: The actions, in order; at least one.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        self._actions = tuple(actions)
        if not self._actions:
            raise UsageError("a script needs at least one action")
        self._next = 0

    def reset(self, info: dict[str, Any]) -> None:  # noqa: ARG002  a script is the same for every task
        """Start from the first action."""
        self._next = 0

    def act(self, observation: str) -> str:  # noqa: ARG002  a script does not look
        """The next action of the script."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return action


class EmptyPolicy:
    """Submits at once: what it gets, doing nothing gets.

    Args:
        env: Whose tools it calls.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._action = _submit(_swe_env(env))

    def reset(self, info: dict[str, Any]) -> None:
        """There is nothing to forget."""

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Submit."""
        return self._action


class GoldPolicy:
    """Applies the task's gold patch by ordinary tool calls, then submits. For tests and demonstrations.

    It is no policy that could be trained or compared: it reads the oracle.

    Args:
        env: Whose tasks it solves. Its tools must hold a shell.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = _swe_env(env)
        self._script = ScriptedPolicy([_submit(self._env)])

    def reset(self, info: dict[str, Any]) -> None:
        """Work out the calls for the task of this episode.

        Raises:
            UsageError: There is no shell among the tools.
        """
        calls = [*_gold_calls(self._env), _submit_call(self._env)]
        self._script = ScriptedPolicy(_render(self._env, call) for call in calls)
        self._script.reset(info)

    def act(self, observation: str) -> str:
        """The next call."""
        return self._script.act(observation)


def _swe_env(env: gymnasium.Env[str, str]) -> SweEnv:
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"this policy plays SweEnv, not {type(env.unwrapped).__name__}")
    return env.unwrapped


def _render(env: SweEnv, call: ToolCall) -> str:
    return render_call(call, env.config["action_format"])


def _submit(env: SweEnv) -> str:
    return _render(env, _submit_call(env))


def _submit_call(env: SweEnv) -> ToolCall:
    for spec in env.tools:
        if spec.name in ("submit", "finish"):
            return ToolCall(name=spec.name)
    raise UsageError("the environment has no tool that submits")


def _gold_calls(env: SweEnv) -> Iterator[ToolCall]:
    """Write the patch to a file, in as many commands as its size asks for, and have git apply it."""
    shell = shell_tool(env.tools)
    if shell is None:
        raise UsageError("the gold patch is applied by a shell tool, and there is none among the tools")
    spec, parameter = shell
    diff = env.task.oracle.gold_patch
    for chunk in _chunks(diff if diff.endswith("\n") else diff + "\n"):
        command = f"cat >> .gold.patch <<'END_OF_GOLD_PATCH'\n{chunk}END_OF_GOLD_PATCH"
        yield ToolCall(name=spec.name, arguments={parameter: command})
    command = "GIT_DIR=/nonexistent git apply --whitespace=nowarn .gold.patch && rm .gold.patch"
    yield ToolCall(name=spec.name, arguments={parameter: command})


def _chunks(text: str) -> Iterator[str]:
    """Whole lines, about `CHUNK` characters at a time."""
    chunk: list[str] = []
    size = 0
    for line in io.StringIO(text, newline="\n"):  # `splitlines` would also cut at form feeds
        if chunk and size + len(line) > CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
        chunk.append(line)
        size += len(line)
    yield "".join(chunk)
