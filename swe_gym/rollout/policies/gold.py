"""Policies that know the solution: one applies the gold patch, one solves generated tasks as an expert would."""

import base64
import io
import itertools
import shlex
from collections.abc import Iterator, Sequence

import gymnasium

from ...envs import SweEnv
from ...grading.in_place import put_solution, solve_command, steps_of
from ...spaces import Info
from ...tasks import expert_calls
from ...types import RewardScript, ToolCall
from .base import ending, render, shell_call, submit_call, swe_env, tool_env
from .baseline import ScriptedPolicy

CHUNK = 60_000
"""Characters of a patch in one command line; Linux takes 131,072 bytes."""


class GoldPolicy:
    """A policy that solves the task by ordinary tool calls and submits. It reads the oracle.

    It applies the gold patch; for a task that is judged in place, it runs the task's own solution.

    Args:
        env: The environment. Its tools must include a shell.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = swe_env(env)
        self._calls: Iterator[ToolCall] = iter(())

    def reset(self, info: Info) -> None:  # noqa: ARG002  it reads the task
        """Compute the first call for the task of this episode.

        Raises:
            UsageError: No tool is a shell.
        """
        calls = _gold_calls(self._env)
        self._calls = itertools.chain([next(calls, submit_call(self._env))], calls)

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Leave out the calls that were made before."""
        made, calls = {action for _, action in turns}, self._calls
        self._calls = (call for call in calls if render(self._env, call) not in made)

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Return the next call; one of a step of the task is made once that has begun."""
        return render(self._env, next(self._calls, None) or submit_call(self._env))


def _gold_calls(env: SweEnv) -> Iterator[ToolCall]:
    """Yield calls that write the patch to a file in chunks and apply it with git."""
    if env.task.oracle.in_place:
        for number, step in enumerate(steps_of(env.task)):
            if number:
                yield submit_call(env)
            if step.oracle.in_place:
                yield from _solution_calls(env, step.oracle.in_place)
        return
    diff = env.task.oracle.gold_patch
    for chunk in _chunks(diff if diff.endswith("\n") else diff + "\n"):
        yield shell_call(env, f"cat >> .gold.patch <<'END_OF_GOLD_PATCH'\n{chunk}END_OF_GOLD_PATCH")
    yield shell_call(env, "GIT_DIR=/nonexistent git apply --whitespace=nowarn .gold.patch && rm .gold.patch")


def _solution_calls(env: SweEnv, script: RewardScript) -> Iterator[ToolCall]:
    """Yield calls that write the files of the solution, in base64, and run it.

    As in Harbor, root writes the files. If the policy is another user, it is done here.
    """
    written = env.sandbox.privileged is not env.sandbox
    if written:
        put_solution(script, env.sandbox)
    for path, file in () if written else script.solution.items():
        place = shlex.quote(path)
        yield shell_call(env, f"mkdir -p $(dirname {place}) && : > {place} && chmod {file.mode:o} {place}")
        for chunk in _chunks(base64.encodebytes(file.data).decode()):
            yield shell_call(env, f"base64 -d >> {place} <<'END_OF_FILE'\n{chunk}END_OF_FILE")
    if script.solve:
        variables = shlex.join(f"{name}={value}" for name, value in script.solution_env.items())
        ready = "" if written else f"chmod +x {shlex.quote(script.solve)}; "
        yield shell_call(env, f"env {variables} sh -c {shlex.quote(ready + solve_command(script))}")


def _chunks(text: str) -> Iterator[str]:
    """Yield whole lines, about `CHUNK` characters at a time."""
    chunk: list[str] = []
    size = 0
    for line in io.StringIO(text, newline="\n"):  # `splitlines` would also cut at form feeds
        if chunk and size + len(line) > CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
        chunk.append(line)
        size += len(line)
    yield "".join(chunk)


class ExpertPolicy:
    """A policy that solves tasks of `SWE/Micro-v0`: it looks, repairs and submits.

    Args:
        env: The environment, with the default tools or those of them that the solutions use.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = tool_env(env)
        self._script: ScriptedPolicy | None = None
        self._actions: list[str] = []

    def reset(self, info: Info) -> None:
        """Compute the calls for the task of this episode.

        Raises:
            UsageError: The task is not a generated one.
        """
        calls = [*expert_calls(info["task_id"]), *ending(self._env)]
        self._actions = [render(self._env, call) for call in calls]
        self._script = ScriptedPolicy(self._actions)

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Leave out the calls that were made before."""
        made = [action for _, action in turns]
        self._script = ScriptedPolicy([one for one in self._actions[:-1] if one not in made] + self._actions[-1:])

    def act(self, observation: str) -> str:
        """Return the next call."""
        assert self._script is not None, "call `reset` first"
        return self._script.act(observation)
