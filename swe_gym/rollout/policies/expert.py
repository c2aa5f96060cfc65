"""A policy that solves generated tasks, for demonstrations."""

import gymnasium

from ...spaces import Info
from ...tasks import expert_calls
from .calls import ending, render, tool_env
from .scripted import ScriptedPolicy


class ExpertPolicy:
    """A policy that solves tasks of `SWE/Micro-v0`: it looks, repairs and submits.

    Args:
        env: The environment, with the default tools or those of them that the solutions use.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self._env = tool_env(env)
        self._script: ScriptedPolicy | None = None

    def reset(self, info: Info) -> None:
        """Compute the calls for the task of this episode.

        Raises:
            UsageError: The task is not a generated one.
        """
        calls = [*expert_calls(info["task_id"]), *ending(self._env)]
        self._script = ScriptedPolicy(render(self._env, call) for call in calls)
        self._script.reset(info)

    def act(self, observation: str) -> str:
        """Return the next call."""
        assert self._script is not None, "call `reset` first"
        return self._script.act(observation)
