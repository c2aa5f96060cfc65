"""One session of an environment in the words of OpenEnv's protocol, for every server that offers it.

`metadata` of an observation holds what the protocol has no field for: `terminated`, `truncated`, `reward_valid`,
`outcome` and the whole `info`. A step whose action has `metadata={"limit": "tokens"}` ends the episode at that limit.
"""

import logging
from typing import Any, NamedTuple, SupportsFloat

import gymnasium
from gymnasium.spaces import Text

from .. import envs
from ..envs import SANDBOX_FAILED, WORLD_ERRORS, ToolEnv
from ..errors import SandboxError, UsageError
from ..rollout import without_secrets
from ..spaces import Unicode
from ..trajectories import MAX_PATCH, shortened
from ..types import JsonObject

logger = logging.getLogger(__name__)

MAX_MESSAGE = 16 << 20
"""Maximum bytes of a message. The longest action is 12 MB of JSON."""

MAX_FAILURE = 300
"""Maximum characters of a failure to reset."""

Env = gymnasium.Env[str, str]


class EnvReply(NamedTuple):
    """What `reset` and `step` return.

    Attributes:
        text: The observation.
        reward: The reward; None at a reset, and at the end of an episode that has no valid reward.
        done: Whether the episode is over.
        metadata: Everything else.
    """

    text: str
    reward: float | None
    done: bool
    metadata: JsonObject

    def data(self) -> JsonObject:
        """Return the data of OpenEnv's observation message, which has the metadata twice."""
        observation = {"text": self.text, "metadata": self.metadata}
        return {"observation": observation, "reward": self.reward, "done": self.done, "metadata": self.metadata}


def make_env(env_id: str, **arguments: Any) -> Env:
    """Make a registered environment of texts; nothing is started.

    Raises:
        UsageError: The id or an argument is unknown, or actions or observations are not texts.
    """
    env = envs.make_env(env_id, **arguments)
    if not isinstance(env.observation_space, Text) or not isinstance(env.action_space, Text):
        env.close()
        raise UsageError(f"{env_id!r} cannot be served: its observations and actions must be texts")
    return env


class ClientSession:
    """The environment of one client. `close` may be called from any thread; other calls one at a time.

    Args:
        env: An environment of texts. The session closes it.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._steps = 0
        self._episode_id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        options: JsonObject | None = None,
    ) -> EnvReply:
        """Start an episode. If the infrastructure fails, it is over at once, with outcome "infra_failed".

        Args:
            seed: Seed of the environment.
            episode_id: Name of the episode, which `state` returns.
            task_id: The task; short for `options={"task_id": ...}`.
            options: Options of the environment's `reset`.

        Raises:
            UsageError: A task or an option is unknown.
        """
        options = {**(options or {}), **({} if task_id is None else {"task_id": task_id})}
        self._steps, self._episode_id = 0, episode_id
        try:
            text, info = self._env.reset(seed=seed, options=options or None)
        except WORLD_ERRORS as error:
            logger.warning("reset failed: %s", error)
            return _describe_failed_reset(error)
        return _reply(text, None, False, False, info)

    def step(self, text: str, limit: str = "") -> EnvReply:
        """Take a step, or end the episode at a limit and grade the work as it is.

        Raises:
            ResetNeeded: There is no running episode.
            UsageError: This environment cannot be ended.
        """
        self._steps += not limit
        if limit and not isinstance(self._env.unwrapped, ToolEnv):
            raise UsageError(f"{type(self._env.unwrapped).__name__} cannot end an episode at a limit of the caller")
        return _reply(*(self._env.get_wrapper_attr("end")(limit) if limit else self._env.step(text)))

    def state(self) -> JsonObject:
        """Return the episode so far, and what a client needs to stand for the environment."""
        env = self._env
        state: JsonObject = {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "env_id": env.spec.id if env.spec else "",
            "spaces": {"observation": _space(env.observation_space), "action": _space(env.action_space)},
        }
        if isinstance(env.unwrapped, ToolEnv):
            state |= _tool_state(env.unwrapped)
        return state

    def close(self) -> None:
        """End the episode and free all resources."""
        self._env.close()


def _reply(text: str, reward: SupportsFloat | None, terminated: bool, truncated: bool, info: JsonObject) -> EnvReply:
    """Return the reply to a step, or to a reset, which has no reward (None)."""
    done, valid = bool(terminated or truncated), bool(info.get("reward_valid", True))
    metadata = {
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "reward_valid": valid,
        "outcome": str(info.get("outcome", "")),
        "info": info,
    }
    return EnvReply(text, None if reward is None or (done and not valid) else float(reward), done, metadata)


def _describe_failed_reset(error: Exception) -> EnvReply:
    """Return the end of an episode without a sandbox. The text of a task error may quote hidden tests: it is logged."""
    text = str(error).partition("\n")[0][:MAX_FAILURE] if isinstance(error, SandboxError) else "see the server's log"
    info = {
        "outcome": "infra_failed",
        "reward_valid": False,
        "failure": f"{type(error).__name__}: {text}",
        "retryable": bool(getattr(error, "retryable", False)),
    }
    return _reply(SANDBOX_FAILED, None, False, True, info)


def _space(space: Any) -> JsonObject:
    return {"max_length": space.max_length, "examples": list(space.examples) if isinstance(space, Unicode) else [""]}


def _tool_state(env: ToolEnv) -> JsonObject:
    state = {"config": without_secrets(env.config), "tools": [spec.model_dump(mode="json") for spec in env.tools]}
    try:
        stats = {name: value for name, value in env.stats.items() if name != "failure"}  # it may quote hidden tests
        return {**state, "stats": stats, "judged_diff": shortened(env.judged_diff, MAX_PATCH)}
    except gymnasium.error.ResetNeeded:
        return {**state, "stats": {}, "judged_diff": ""}
