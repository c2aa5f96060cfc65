"""`Plan`: the episodes of a rollout, their environment and their policy."""

import hashlib
import inspect
import json
import re

from pydantic import Field

from ..envs import EpisodeCheckpoint, SweEnv
from ..errors import UsageError, unknown_name
from ..trajectories.run_folder import EpisodeKey
from ..types import Frozen, Json, JsonObject
from .policies import POLICIES, check_resumes
from .progress import RolloutBudget

_PRIVATE = re.compile(r"(.*[_-])?(key|keys|url|token|secret|password|headers|authorization)")
_OF_A_PLAN = {"source", "source_options", "task_id", "render_mode"}  # arguments of SweEnv that the plan sets
_HOW = {"timeout", "deadline", "retries", "cache", "prices"}  # options that do not change the answers


class Plan(Frozen):
    """The episodes of a rollout, their environment and their policy. Every field is plain JSON.

    Attributes:
        source: Task source, as in `SweEnv`.
        source_options: Arguments of the source.
        tasks: Task ids in the order in which they start. None: all tasks of the source.
        attempts: Episodes per task.
        env: Further arguments of `SweEnv`, for example backend, tools or max_turns.
        policy: Policy name, or "module:Class".
        policy_options: Arguments of the policy. Keys and URLs are never written to disk.
        agent: Agent that plays in the sandbox, by name or "module:Class", and asks the model of the policy "llm".
            Empty: the policy acts through the tools of the environment.
        agent_options: Options of the agent.
        budget: Budget of one episode, beyond `max_turns` and `time_limit` of the environment.
        seed: Seed from which the seed of each attempt derives.
        checkpoint: Point at which every episode starts. Only its task is played.
    """

    source: str
    source_options: JsonObject = {}
    tasks: tuple[str, ...] | None = None
    attempts: int = Field(default=1, ge=1)
    env: JsonObject = {}
    policy: str = "baseline"
    policy_options: JsonObject = Field(default={}, repr=False)
    agent: str = ""
    agent_options: JsonObject = {}
    budget: RolloutBudget = RolloutBudget()
    seed: int = 0
    checkpoint: EpisodeCheckpoint | None = None

    def make_env(self) -> SweEnv:
        """Make an environment; nothing starts.

        Raises:
            UsageError: An argument is unknown or invalid.
        """
        known = inspect.signature(SweEnv).parameters.keys() - _OF_A_PLAN - {"unknown"}
        for name in self.env:
            if name in _OF_A_PLAN:
                raise UsageError(f"a plan's env cannot set {name!r}: use the plan's own fields for tasks")
            if name not in known:
                raise unknown_name("argument of SweEnv", name, known)
        return SweEnv(self.source, self.source_options, **self.env)

    def config(self) -> JsonObject:
        """Return everything that determines the episodes, defaults included, without keys and URLs.

        Raises:
            UsageError: An argument of the environment is invalid, a cache of answers would change the episodes, or they
                cannot start at the checkpoint.
        """
        self._check_cache()
        env = self.make_env().config
        self._check_branch(env)
        agent = {"agent": self.agent, "agent_options": without_secrets(self.agent_options)} if self.agent else {}
        return {
            "env": env,
            "policy": self.policy,
            "policy_options": without_secrets({k: v for k, v in self.policy_options.items() if k not in _HOW}),
            "budget": self.budget.model_dump(),
            "seed": self.seed,
            **agent,
            **({"checkpoint": self._name_point(self.checkpoint)} if self.checkpoint else {}),
        }

    @staticmethod
    def _name_point(point: EpisodeCheckpoint) -> JsonObject:
        return {"id": point.id, "origin": point.origin, "task_id": point.task_id, "turn": point.turn}

    def _check_branch(self, env: JsonObject) -> None:
        """Check that every episode can start at the checkpoint.

        Raises:
            UsageError: An agent or a policy would have to continue it that cannot, there are other tasks, or it is at a
                limit of the environment.
        """
        if self.checkpoint is None:
            return
        if self.agent:
            raise UsageError(
                f"the agent {self.agent!r} cannot continue an episode: leave out the agent or the checkpoint"
            )
        if self.tasks != (self.checkpoint.task_id,):
            raise UsageError(f"the checkpoint is of task {self.checkpoint.task_id}: the plan's tasks must be this one")
        kind = POLICIES.load(self.policy)
        if isinstance(kind, type):
            check_resumes(kind, f"the policy {self.policy!r}")
        self.checkpoint.check_limits(env["max_turns"], env["time_limit"])

    def _check_cache(self) -> None:
        """Refuse a cache of answers where they would not be those of the same episode.

        Raises:
            UsageError: An agent asks the model, or the budget counts what answers from the cache do not use.
        """
        if not self.policy_options.get("cache"):
            return
        if self.agent:
            raise UsageError(f"the agent {self.agent!r} asks for itself, and its answers are not kept: omit the cache")
        for name in ("tokens", "cost"):
            if getattr(self.budget, name) is not None:
                raise UsageError(
                    f"answers from the cache use no tokens, so budget.{name} would end the same episode later: omit "
                    f"the cache or budget.{name}. A budget of the whole run is run.budget.{name}"
                )

    def episode_seed(self, key: EpisodeKey) -> int:
        """Return the seed of one attempt, the same in every run of this plan.

        It is another one at a checkpoint: the same attempt of the plan without it would be sampled again.
        """
        text = f"{self.seed}/{key.task_id}/{key.attempt}" + (f"/{self.checkpoint.id}" if self.checkpoint else "")
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def without_secrets(value: Json) -> Json:
    """Return a value without the entries, at any depth, that are named like a key or a URL."""
    if isinstance(value, dict):
        return {
            name: without_secrets(part) for name, part in value.items() if not _PRIVATE.fullmatch(str(name).lower())
        }
    return [without_secrets(part) for part in value] if isinstance(value, list) else value


def hash_config(config: JsonObject) -> str:
    """Return a hash of 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
