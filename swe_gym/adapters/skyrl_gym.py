"""The adapter for SkyRL-gym: registered environments as its text environments.

    skyrl_gym.register(
        "swe_gym",
        entry_point="swe_gym.adapters.skyrl_gym:SweTextEnv",
        kwargs={"env_id": "SWE/Toy-v0", "options": {"max_turns": 30}},
    )
    env = skyrl_gym.make("swe_gym", extras={"task_id": "rota-month-end"})

A row of a dataset names its task: `task_id`, or `extra_info["task_id"]` as `swe-gym tasks export --to verl` writes it.
"""

import logging
from collections.abc import Sequence
from typing import Any

from ..envs import make_env
from ..errors import MissingDependency
from ..rollout.tokens import short_prompt
from ..spaces import Info
from ..types import JsonMapping
from .metrics import known_numbers, outcome_shares
from .row_agent import find_task_id

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as error:
    raise MissingDependency(f"this adapter needs SkyRL-gym: pip install 'swe-gym[skyrl]' ({error})") from error

logger = logging.getLogger(__name__)

TRIES = 2
"""Tries at a reset."""

ENV_ID = "SWE/Toy-v0"
"""Default environment."""

FAILED: Info = {"outcome": "infra_failed", "reward_valid": False, "resolved": False}
"""Info of an episode that the infrastructure lost."""

Message = dict[str, str]


class SweTextEnv(BaseTextEnv):
    """A registered environment as text. SkyRL passes `env_config` and `extras`; the other arguments are registered.

    The system messages of a row's prompt are kept; the problem statement replaces the others. An episode that loses its
    sandbox is replayed in a new one. If that fails too, it ends with `metadata["reward_valid"]` False and the metric
    `infra_failed`: SkyRL's own generator cannot leave it out and trains on reward 0. `SweGenerator` leaves it out.

    Args:
        env_config: Further arguments of `gymnasium.make`.
        extras: The row's columns, and `max_turns` of SkyRL's configuration.
        env_id: The environment.
        options: Arguments of `gymnasium.make`.

    Raises:
        UsageError: The row names no task, or an unknown one.
    """

    def __init__(
        self,
        env_config: JsonMapping | None = None,
        extras: JsonMapping | None = None,
        *,
        env_id: str = ENV_ID,
        options: JsonMapping | None = None,
    ) -> None:
        super().__init__()
        extras = extras or {}
        limits = {"max_turns": extras["max_turns"]} if "max_turns" in extras else {}
        self._env: Any = make_env(env_id, **{**limits, **(options or {}), **(env_config or {})})
        self._task_id = find_task_id(extras)
        source = self._env.get_wrapper_attr("source")
        if self._task_id not in source.ids():
            source.get(self._task_id)
        self._info: Info = FAILED
        self._actions: list[str] = []
        self._seen: list[str] = []

    def init(self, prompt: Sequence[Message]) -> tuple[list[Message], Info]:
        """Start the episode, and return its messages. Never raises."""
        any(self._replay() for _ in range(TRIES))
        system = [message for message in prompt if message["role"] == "system"]
        system = system or [{"role": "system", "content": short_prompt(self._env.unwrapped.tools)}]
        text = self._seen[0] if self._seen else "The task could not be started."
        return [*system, {"role": "user", "content": text}], {**self._info, "task_id": self._task_id}

    def step(self, action: str) -> Any:
        """Take an action. Never raises."""
        self.turns += 1
        step = self._step(action) if self._seen else None
        if step is None and self._seen and self._replay():
            step = self._step(action)
        if step is None:
            self._info = {**self._info, **FAILED}
        self._actions.append(action)
        text, reward, done = step or ("", 0.0, True)
        self._seen.append(text)
        messages = [] if done else [{"role": "user", "content": text}]
        return BaseTextEnvStepOutput(observations=messages, reward=reward, done=done, metadata=dict(self._info))

    def _step(self, action: str) -> tuple[str, float, bool] | None:
        """Take an action; None if the infrastructure failed."""
        try:
            text, reward, terminated, truncated, self._info = self._env.step(action)
        except Exception:
            logger.exception("a step of %s failed", self._task_id)
            return None
        lost = self._info["outcome"] == "infra_failed"
        return None if lost else (text, float(reward), terminated or truncated)

    def _replay(self) -> bool:
        """Start the task and repeat the actions so far. Returns whether all observations are the same as before."""
        try:
            text, self._info = self._env.reset(options={"task_id": self._task_id})
        except Exception:
            logger.exception("a reset of %s failed", self._task_id)
            return False
        steps = [self._step(action) for action in self._actions]
        seen = [text, *(step[0] if step else None for step in steps)]
        self._seen = self._seen or [text]
        return seen == self._seen

    def get_metrics(self) -> dict[str, float]:
        """Return what SkyRL averages over episodes."""
        return metrics(self._info)

    def close(self) -> None:
        """Close the sandbox."""
        self._env.close()


def metrics(info: Info) -> dict[str, float]:
    """Return what SkyRL averages over episodes: each value over those that have it."""
    return known_numbers(info, ["resolved", "turn"]) | outcome_shares(info)
