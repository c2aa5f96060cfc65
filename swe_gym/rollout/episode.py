"""The episode loop, and the replay of a trajectory, which finds the first byte that differs."""

import abc
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence

import gymnasium

from ..envs import Difference, EpisodeCheckpoint, SweEnv, ToolEnv, check_replayable, find_differences
from ..errors import PolicyError, UsageError
from ..logs import log_as
from ..spaces import Info
from ..trajectories import Trajectory, Turn, Usage, shortened_like
from ..types import JsonObject
from ..wrappers import RecordTrajectory
from .policies import (
    EpisodeSettings,
    Player,
    Policy,
    PolicyReport,
    ReportingPolicy,
    check_resumes,
)
from .policies.base import Phase, RunningEpisode
from .progress import RolloutBudget


def make_episode(env: gymnasium.Env[str, str], policy: Policy | Player, settings: EpisodeSettings) -> RunningEpisode:
    """Return the episode of a policy or a player."""
    return policy.episode(env, settings) if isinstance(policy, Player) else LiveEpisode(env, policy, settings)


def play(
    env: gymnasium.Env[str, str],
    policy: Policy | Player,
    *,
    seed: int | None = None,
    options: Info | None = None,
    budget: RolloutBudget | None = None,
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
        UsageError: The options name a checkpoint, and the policy cannot continue an episode; see `ResumingPolicy`.
        ReplayError: The replay of a checkpoint's actions gave another observation.
    """
    return make_episode(env, policy, EpisodeSettings(budget or RolloutBudget())).play(seed=seed, options=options)


class RecordedEpisode(abc.ABC):
    """What the episodes of policies and players share: the recorder, the settings, the clock, start and end.

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
        self._point: EpisodeCheckpoint | None = None

    def play(self, *, seed: int | None = None, options: Info | None = None) -> Trajectory:
        """Run the episode to its end. Raises the same errors as `swe_gym.rollout.play`."""
        self._point = EpisodeCheckpoint.among(options)
        if self._point is not None:
            self._check_branch()
        observation, info = self._recorder.reset(seed=seed, options=options)
        if self._settings.on_start is not None:
            self._settings.on_start(self.trajectory)
        with log_as(sandbox=self._tool_env.stats["sandbox_id"]):
            self._play_turns(observation, info)
        self.phase = "over"
        return self.trajectory

    def _check_branch(self) -> None:
        """Raise `UsageError` if an episode cannot start from a checkpoint."""
        raise UsageError("an agent cannot continue an episode: leave the option 'checkpoint' out")

    @abc.abstractmethod
    def _play_turns(self, observation: str, info: Info) -> None:
        """Play from the first observation to the end of the episode."""

    @property
    @abc.abstractmethod
    def trajectory(self) -> Trajectory:
        """The record so far.

        Raises:
            UsageError: The environment has not been reset.
        """

    def _seconds(self, record: Trajectory, **spent: float) -> dict[str, float]:
        """Return the seconds of a record, with those of further activities and of the whole episode."""
        return {**record.seconds, **spent, "total": time.monotonic() - self._started}


class LiveEpisode(RecordedEpisode):
    """A running episode of a policy, and its record so far. See `RecordedEpisode`."""

    def __init__(self, env: gymnasium.Env[str, str], policy: Policy, settings: EpisodeSettings) -> None:
        super().__init__(env, settings)
        self._policy = policy
        self._used: list[JsonObject] = []  # by the policy, for each turn
        self._report = PolicyReport()
        self._usage = Usage()
        self._policy_seconds = 0.0
        self._last_seconds = 0.0

    def _check_branch(self) -> None:
        check_resumes(self._policy)

    def _play_turns(self, observation: str, info: Info) -> None:
        self.phase = "policy"
        self._policy.reset(info)
        if self._point is not None:
            longest = self._tool_env.config["max_observation"]
            check_resumes(self._policy).resume(self._point.answered(longest), self._point.tokens)
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
        self._recorder.end(limit)

    def _add_turn(self) -> None:
        self._used.append({"policy_seconds": self._last_seconds, "usage": self._report.usage})
        if self._settings.on_turn is not None:
            self._settings.on_turn(self._recorder.turns[-1].model_copy(update=self._used[-1]))

    @property
    def trajectory(self) -> Trajectory:
        """See `RecordedEpisode.trajectory`."""
        record = self._recorder.trajectory
        turns = zip(record.turns, self._used, strict=False)  # another thread may be adding one
        return record.model_copy(
            update={
                "policy": self._report.policy,
                "turns": tuple(turn.model_copy(update=used) for turn, used in turns),
                "segments": self._report.segments,
                "messages": self._report.messages,
                "usage": self._usage,
                "seconds": self._seconds(record, policy=self._policy_seconds),
            }
        )


def replay_trajectory(
    trajectory: Trajectory,
    *,
    backend: str | None = None,
    sandbox_options: JsonObject | None = None,
    ignore: Sequence[str] = (),
) -> Difference | None:
    r"""Take the recorded actions in a new sandbox and compare observations, rewards and info.

    The environment is made as the record says, with the code, mounts and network that it names: read files of others
    with `swe-gym replay`, which refuses these.

    Args:
        trajectory: A trajectory of this package. Imported trajectories have no environment to replay in.
        backend: Sandbox backend; None uses the recorded one.
        sandbox_options: Replaces the recorded options if a backend is given.
        ignore: Regular expressions of text that may differ, for example r"in \d+\.\d+s".

    Returns:
        The first difference; None if there is none.

    Raises:
        UsageError: The trajectory cannot be replayed: it has no environment, was played by an agent or
            started from a checkpoint, its task is unknown, an action was shortened, or a pattern is invalid.
        SandboxError: The sandbox did not start.
        TaskError: The task is broken.
    """
    check_replayable(trajectory, len(trajectory.turns), ignore)
    config = {**trajectory.env, "render_mode": None}
    if backend is not None:
        config |= {"backend": backend, "sandbox_options": sandbox_options or {}}
    with contextlib.closing(SweEnv(**config)) as env:
        pairs = itertools.chain.from_iterable(
            find_differences(turn, old, new, ignore) for turn, old, new in _compare_turns(env, trajectory)
        )
        return next(pairs, None)


def _compare_turns(env: SweEnv, trajectory: Trajectory) -> Iterator[tuple[int, JsonObject, JsonObject]]:
    """Yield the number of each turn, its recorded facts and its replayed facts."""
    observation, info = env.reset(seed=trajectory.seed, options={"task_id": trajectory.task_id})
    yield 0, {"observation": trajectory.observation}, {"observation": observation}
    for number, turn in enumerate(trajectory.turns, 1):
        observation, reward, terminated, truncated, info = env.step(turn.action)
        over = terminated or truncated
        if turn.truncated and not over and turn.info.get("limit"):  # a limit of the episode loop: tokens, cost
            _, reward, terminated, truncated, info = env.end(turn.info["limit"])
        observation = shortened_like(observation, turn.observation)
        now = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        yield number, _facts(turn), now | _flatten_info(info)
        if over:
            return


def _facts(turn: Turn) -> JsonObject:
    facts = {name: getattr(turn, name) for name in ("observation", "reward", "terminated", "truncated")}
    return facts | _flatten_info(turn.info)


def _flatten_info(info: JsonObject) -> JsonObject:
    return {f"info.{name}": value for name, value in info.items()}
