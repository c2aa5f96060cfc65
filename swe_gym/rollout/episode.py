"""The episode loop."""

import time
from typing import Any

import gymnasium

from ..envs.tool_env import ToolEnv
from ..errors import PolicyError, UsageError
from ..logs import log_as
from ..spaces import Info
from ..trajectories.trajectory import Trajectory, Turn, Usage, why_ended
from ..wrappers.record_trajectory import RecordTrajectory
from .budget import Budget
from .policy import Episode, EpisodeSettings, Phase, Player, Policy, PolicyReport, ReportingPolicy


def make_episode(env: gymnasium.Env[str, str], policy: Policy | Player, settings: EpisodeSettings) -> Episode:
    """Return the episode of a policy or a player."""
    return policy.episode(env, settings) if isinstance(policy, Player) else LiveEpisode(env, policy, settings)


def play(
    env: gymnasium.Env[str, str],
    policy: Policy | Player,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    budget: Budget | None = None,
) -> Trajectory:
    """Run one episode. The caller closes `env`.

    Args:
        env: A `SweEnv`, wrapped or not.
        policy: The policy.
        seed: Seed for `reset`.
        options: Options for `reset`, for example `{"task_id": ...}`.
        budget: Budget of the policy, beyond the limits of the environment.

    Returns:
        The trajectory. It may record an infrastructure failure: check `reward_valid`.

    Raises:
        SandboxError: The sandbox did not start.
        TaskError: The task is broken.
        PolicyError: The policy's model did not answer. Other exceptions of a policy are raised too.
    """
    return make_episode(env, policy, EpisodeSettings(budget or Budget())).play(seed=seed, options=options)


class RecordedEpisode:
    """What the episodes of policies and players share: the recorder, and the parts of the record that `info` tells.

    Args:
        env: A `SweEnv`, wrapped or not.
        settings: What the caller sets.

    Attributes:
        phase: What the episode waits for. May be read from any thread.
    """

    def __init__(self, env: gymnasium.Env[str, str], settings: EpisodeSettings) -> None:
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"the environment must be a SweEnv, not a {type(env.unwrapped).__name__}")
        self.phase: Phase = "reset"
        self._tool_env: ToolEnv = env.unwrapped
        self._recorder = RecordTrajectory(env)
        self._settings = settings
        self._started = time.monotonic()

    def _record(self, end: Info | None, reward: float, seconds: dict[str, float], **parts: object) -> Trajectory:
        """Return the recorder's trajectory with further parts.

        Args:
            end: Info of the end; None if the episode has none beyond the recorded steps.
            reward: Reward of the end.
            seconds: Seconds by activity.
            parts: Further fields.
        """
        record = self._recorder.trajectory
        info = record.info if end is None else end
        told = {
            "outcome": info["outcome"],
            "reason": why_ended(info),
            "reward_valid": info["reward_valid"],
            "resolved": info["resolved"],
            "reward": record.reward + reward,
            "info": info,
            "seconds": {**record.seconds, **seconds, "total": time.monotonic() - self._started},
        }
        return record.model_copy(update={**told, **parts})


class LiveEpisode(RecordedEpisode):
    """A running episode of a policy, and its record so far. See `RecordedEpisode`."""

    def __init__(self, env: gymnasium.Env[str, str], policy: Policy, settings: EpisodeSettings) -> None:
        super().__init__(env, settings)
        self._policy = policy
        self._turns: list[Turn] = []
        self._report = PolicyReport()
        self._usage = Usage()
        self._policy_seconds = 0.0
        self._last_seconds = 0.0
        self._result: dict[str, Any] = {}  # set if this loop ended the episode
        self._end_reward = 0.0

    def play(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Trajectory:
        """Run the episode to its end. Raises the same errors as `play`."""
        observation, info = self._recorder.reset(seed=seed, options=options)
        if self._settings.on_start is not None:
            self._settings.on_start(self.trajectory)
        with log_as(sandbox=self._tool_env.stats["sandbox_id"]):
            self._play_turns(observation, info)
        self.phase = "over"
        return self.trajectory

    def _play_turns(self, observation: str, info: dict[str, Any]) -> None:
        self.phase = "policy"
        self._policy.reset(info)
        over = False
        while not over:
            action = self._ask(observation)
            if action is None:
                self._end("context")
                return
            self.phase = "step"
            observation, _, terminated, truncated, _ = self._recorder.step(action)
            over = terminated or truncated or self._end_if_used_up()
            self._add_turn()

    def _ask(self, observation: str) -> str | None:
        """Return the next action; None if the policy's context is full."""
        self.phase = "policy"
        started = time.monotonic()
        try:
            return self._policy.act(observation)
        except PolicyError as error:
            if error.reason != "context":
                raise
            return None
        finally:
            self._last_seconds = time.monotonic() - started
            self._policy_seconds += self._last_seconds
            if isinstance(self._policy, ReportingPolicy):
                self._report = self._policy.report()
                self._usage += self._report.usage

    def _end_if_used_up(self) -> bool:
        limit = self._settings.budget.used_up(self._usage, time.monotonic() - self._started)
        if limit:
            self._end(limit)
        return bool(limit)

    def _end(self, limit: str) -> None:
        """End the episode and grade the work. The last turn, if any, gets the reward."""
        self.phase = "step"
        _, self._end_reward, terminated, truncated, info = self._tool_env.end(limit)
        self._result = {"terminated": terminated, "truncated": truncated, "info": info}
        if self._turns and len(self._turns) == len(self._recorder.turns):
            self._turns[-1] = self._ended(self._turns[-1])

    def _ended(self, turn: Turn) -> Turn:
        """Return the turn with the result of the end. Wrappers may have rewarded the turn already."""
        return turn.model_copy(update={**self._result, "reward": turn.reward + self._end_reward})

    def _add_turn(self) -> None:
        used = {"policy_seconds": self._last_seconds, "usage": self._report.usage}
        turn = self._ended(self._recorder.turns[-1].model_copy(update=used))
        self._turns.append(turn)
        if self._settings.on_turn is not None:
            self._settings.on_turn(turn)

    @property
    def trajectory(self) -> Trajectory:
        """The record so far.

        Raises:
            UsageError: The environment has not been reset.
        """
        return self._record(
            self._result.get("info"),
            self._end_reward,
            {"policy": self._policy_seconds},
            policy=self._report.policy,
            turns=tuple(self._turns),
            segments=self._report.segments,
            messages=self._report.messages,
            usage=self._usage,
        )
