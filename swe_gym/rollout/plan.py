"""What a rollout is asked for: which episodes, in which environment, played by whom."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from typing import Any

from pydantic import Field

from ..envs.swe_env import SweEnv
from ..errors import UsageError, unknown_name
from ..trajectories.run_folder import EpisodeKey
from ..types import Frozen
from .budget import Budget

_PRIVATE = re.compile(r"(.*[_-])?(key|keys|url|token|secret|password|headers|authorization)")
_OF_A_PLAN = {"source", "source_options", "task_id", "render_mode"}  # arguments of SweEnv that a plan sets itself
_HOW = {"timeout", "deadline", "retries", "prices"}  # options that change when an answer comes, not which


class Plan(Frozen):
    """What to play. Everything in it is plain JSON.

    Attributes:
        source: Where the tasks come from, as in `SweEnv`.
        source_options: Arguments of the source.
        tasks: The tasks, in the order in which they begin; None is all of the source.
        attempts: Episodes of each task.
        env: Further arguments of `SweEnv`: backend, tools, action_format, max_turns and so on.
        policy: A name of `POLICIES`, or "module:Class".
        policy_options: Arguments of the policy. Keys and addresses among them are written nowhere.
        budget: What one episode may use, beside `max_turns` and `time_limit` of the environment.
        seed: Every attempt has a seed of its own that is made from this one.
    """

    source: str
    source_options: dict[str, Any] = {}
    tasks: tuple[str, ...] | None = None
    attempts: int = Field(default=1, ge=1)
    env: dict[str, Any] = {}
    policy: str = "baseline"
    policy_options: dict[str, Any] = Field(default={}, repr=False)
    budget: Budget = Budget()
    seed: int = 0

    def make_env(self) -> SweEnv:
        """A new environment; nothing is started.

        Raises:
            UsageError: It cannot be made like that.
        """
        known = inspect.signature(SweEnv).parameters.keys() - _OF_A_PLAN
        for name in self.env:
            if name in _OF_A_PLAN:
                raise UsageError(f"a plan's env must not say {name!r}: tasks have fields of their own in it")
            if name not in known:
                raise unknown_name("argument of SweEnv", name, known)
        return SweEnv(self.source, self.source_options, **self.env)

    def config(self) -> dict[str, Any]:
        """Everything that decides how an episode goes, defaults included; nothing private.

        Raises:
            UsageError: The environment cannot be made like that.
        """
        return {
            "env": self.make_env().config,
            "policy": self.policy,
            "policy_options": _public({k: v for k, v in self.policy_options.items() if k not in _HOW}),
            "budget": self.budget.model_dump(),
            "seed": self.seed,
        }

    def episode_seed(self, key: EpisodeKey) -> int:
        """The seed of one attempt: the same in every run of this plan."""
        text = f"{self.seed}/{key.task_id}/{key.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _public(value: Any) -> Any:
    """Without what is named like a key or an address, however deep it stands."""
    if isinstance(value, dict):
        return {name: _public(part) for name, part in value.items() if not _PRIVATE.fullmatch(str(name).lower())}
    return [_public(part) for part in value] if isinstance(value, list) else value


def hash_config(config: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits that two configs share only if they are equal."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
