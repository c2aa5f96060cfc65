"""Policies without a model: one that explores the repository by rules, fixed actions, and random ones."""

import copy
import re
import shlex
from collections.abc import Generator, Iterable, Sequence

import gymnasium

from ...actions import properties_of
from ...errors import UsageError
from ...spaces import Info
from ...types import JsonObject, ToolCall
from .base import render, shell_call, submit_call, swe_env, tool_env

Plan = Generator[ToolCall, str, None]
"""Yields calls and receives their observations."""

MAX_NAMES = 8
MAX_FILES = 5
WINDOW = 30
"""Lines shown before and after a place."""

_TEST_COMMAND = (
    "if python -c 'import pytest' 2>/dev/null; then python -m pytest -q -x --no-header 2>&1 | tail -n 60; "
    "else python -m unittest 2>&1 | tail -n 60; fi"
)
_FRAMES = (
    re.compile(r'File "(?P<path>[^"\n]+\.py)", line (?P<line>\d+)'),  # Python's tracebacks
    re.compile(r"^(?P<path>[^\s:]+\.py):(?P<line>\d+):", re.MULTILINE),  # pytest's, and grep's matches
)
_EXAMPLE = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
_NAME = re.compile(r"\b(?:[a-z]+_[a-z_]+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)\b")


class BaselinePolicy:
    """A policy that lists files, runs the tests and the issue's examples, searches, opens files and submits.

    It repairs nothing. It measures everything except the model: it makes the same calls each time, about as many and
    of the same kinds as a short episode of a model.

    Args:
        env: The environment. Its tools `eval`, `grep` and `view` are used if there are any, else the shell.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = swe_env(env)
        self._tools = {spec.name: spec for spec in self._env.tools}
        self._plan: Plan | None = None
        self._issue = ""
        submit_call(self._env)  # raises now if no tool submits

    def reset(self, info: Info) -> None:  # noqa: ARG002  the issue says all
        """Start a new plan with the next observation."""
        self._plan, self._issue = None, ""

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Start a new plan with the task."""
        self._issue = turns[0][0] if turns else ""

    def act(self, observation: str) -> str:
        """Return the next call of the plan."""
        if self._plan is None:
            self._plan = self._engineer(self._issue or observation)
            call = next(self._plan)
        else:
            try:
                call = self._plan.send(observation)
            except StopIteration:
                call = submit_call(self._env)
        return render(self._env, call)

    # --- the plan -----------------------------------------------------------------------------------------

    def _engineer(self, issue: str) -> Plan:
        seen = [(yield self._tool("listdir", {"path": "."}) or shell_call(self._env, "ls"))]
        seen.append((yield self._run_tests()))
        if examples := _EXAMPLE.findall(issue):
            seen.append((yield self._run_python("".join(examples))))  # later examples may need the imports of the first
        if names := _names_in(issue):
            seen.append((yield self._find(rf"(def|class) +({'|'.join(names)})\b")))
        if not any(map(_places_in, seen)):
            seen.append((yield self._find(r"^(def|class) ")))  # nothing is named: any definition
        places = [place for text in reversed(seen) for place in _places_in(text)]
        for path, line in _first_of_each_file(places)[:MAX_FILES]:
            yield self._open(path, line)

    def _run_tests(self) -> ToolCall:
        own = self._tool("eval", {}) if self._env.task.eval_cmd else None
        return own or shell_call(self._env, _TEST_COMMAND)

    def _run_python(self, code: str) -> ToolCall:
        return shell_call(self._env, f"timeout 20 python -c {shlex.quote(code)} 2>&1 | tail -n 40")

    def _find(self, pattern: str) -> ToolCall:
        command = f"grep -rnE --include='*.py' {shlex.quote(pattern)} . | head -n 20"
        return self._tool("grep", {"pattern": pattern}) or shell_call(self._env, command)

    def _open(self, path: str, line: int) -> ToolCall:
        first, last = max(1, line - WINDOW), line + WINDOW
        command = f"sed -n {first},{last}p {shlex.quote(path)}"
        return self._tool("view", {"path": path, "start": first, "end": last}) or shell_call(self._env, command)

    def _tool(self, name: str, arguments: JsonObject) -> ToolCall | None:
        """Return the call of a tool; None if no tool has that name and these arguments."""
        spec = self._tools.get(name)
        if spec is None or not arguments.keys() <= properties_of(spec.parameters).keys():
            return None
        return ToolCall(name=name, arguments=arguments)


def _places_in(text: str) -> list[tuple[str, int]]:
    """Return the places that tracebacks and searches name, the deepest frame first."""
    found = [(one.start(), one["path"], int(one["line"])) for frame in _FRAMES for one in frame.finditer(text)]
    outside = ("site-packages", "/lib/python", "<")
    return [(path, line) for _, path, line in sorted(found, reverse=True) if not any(part in path for part in outside)]


def _first_of_each_file(places: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the first place in each file, source before tests."""
    first: dict[str, int] = {}
    for path, line in places:
        first.setdefault(path.removeprefix("./"), line)
    return sorted(first.items(), key=lambda place: "test" in place[0])


def _names_in(issue: str) -> list[str]:
    """Return the names in the issue, those in backticks first."""
    names = [name.rpartition(".")[2] for name in _QUOTED.findall(issue)] + _NAME.findall(issue)
    return list(dict.fromkeys(name for name in names if len(name) > 2))[:MAX_NAMES]


class ScriptedPolicy:
    """A policy that plays a list of actions, and repeats the last one after the end.

    Args:
        actions: The actions, at least one.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        if isinstance(actions, str):  # else its letters would be the actions
            raise UsageError("actions must be a list of strings, not one string")
        self._actions = tuple(actions)
        if not self._actions:
            raise UsageError("actions must not be empty")
        self._next = 0

    def reset(self, info: Info) -> None:  # noqa: ARG002  a script is the same for every task
        """Start from the first action."""
        self._next = 0

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: the first action follows the earlier turns."""

    def act(self, observation: str) -> str:  # noqa: ARG002  a script does not look
        """Return the next action."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return action


class EmptyPolicy:
    """A policy that submits at once.

    Args:
        env: The environment whose tools it calls.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        own = tool_env(env)
        self._action = render(own, submit_call(own))

    def reset(self, info: Info) -> None:
        """Do nothing: there is no state."""

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: it submits what others did."""

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Submit."""
        return self._action


class RandomPolicy:
    """A policy that makes harmless, valid calls at random (`env.action_space.sample()`) and submits.

    The same seed gives the same actions in every episode.

    Args:
        env: The environment whose tools it calls.
        turns: Number of calls before it submits.
        seed: Seed of the draws; None differs from run to run.
    """

    def __init__(self, env: gymnasium.Env[str, str], turns: int = 10, seed: int | None = None) -> None:
        own = tool_env(env)
        self._space = copy.deepcopy(own.action_space)
        self._submit = render(own, submit_call(own))
        self._turns = turns
        self._seed = seed
        self._left = turns

    def reset(self, info: Info) -> None:  # noqa: ARG002  every task gets the same
        """Start over."""
        self._space.seed(self._seed)
        self._left = self._turns

    def resume(self, turns: Sequence[tuple[str, str]], tokens: Sequence[int] = ()) -> None:
        """Do nothing: its calls follow the earlier turns."""

    def act(self, observation: str) -> str:  # noqa: ARG002  it does not look
        """Return a random call, and at the end `submit`."""
        if not self._left:
            return self._submit
        self._left -= 1
        return self._space.sample()
