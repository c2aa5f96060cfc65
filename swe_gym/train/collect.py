"""Plays episodes, many at once: those of one update, of an evaluation on held-out tasks, or of groups while it trains.

Episodes that the infrastructure loses are reported and left out. `AsyncCollector` plays groups while the model trains:
an episode lives across weight updates until it ends. Groups are trained as they become complete, not in the order in
which they were drawn. A slow group stays in flight over several updates; none is discarded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import gymnasium

from .. import envs
from ..envs import EpisodeCheckpoint, SweEnv
from ..errors import PolicyError, ReplayError, SandboxError, TaskError, UsageError
from ..gateway import Renderer
from ..gateway.agents import Agent, make_agent
from ..rollout import CLOSE_TIMEOUT, DriverLink, EpisodeJob, EpisodePool, Failure
from ..rollout.executors import open_executor
from ..rollout.policies import HostedPolicy, Player, Policy
from ..rollout.tokens import ChatTemplate, Generator, TokenPolicy
from ..trajectories import Trajectory, mean_interval, pass_curve
from ..types import JsonMapping, JsonObject
from ..wrappers import StateSignature
from .config import EnvConfig, EvaluationConfig, GenerationConfig, TrainConfig

GRACE = 1.0
"""Seconds that cancelled episodes have to end."""

MakePolicy = Callable[[gymnasium.Env[str, str]], Policy | Player]

_LOST = (PolicyError, ReplayError, SandboxError, TaskError)
"""Errors that lose an episode."""

_PARTS = ("start", "tools", "grading", "policy")
ACTIVITIES = (*_PARTS, "rest", "lost")
"""What the threads of episodes do; names in `PlayedBatch.seconds`."""

_NOT_PLAYED = Failure("Cancelled", "reset", "cancelled before it started", retry=False, counts=False)


class TrainSlot(NamedTuple):
    """One episode to play.

    Attributes:
        task_id: Task id.
        group: Number of the task in its batch. Attempts at one task form a group.
        seed: Sampling seed.
        point: Point of another episode at which it starts; None for the start of the task.
        tree: Number of its tree in its batch: an episode and those that continue it.
        grown: Whether it continues another episode of its tree, be it from the start of the task.
    """

    task_id: str
    group: int
    seed: int
    point: EpisodeCheckpoint | None = None
    tree: int = 0
    grown: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedBatch:
    """The played episodes of one update.

    Attributes:
        trajectories: Episodes that count, in the order of their slots.
        groups: Group of each episode.
        lost: Failure of each lost episode from the start of its task, for example "SandboxLost: ...". If the same
            actions lose the sandbox twice, the episode is not lost: it counts, with reward 0.
        seconds: Wall-clock time ("all"), and thread time by activity: "start", "tools", "grading", "policy" and "rest"
            of the episodes that count, "lost" tries, and "idle". The activities add up to "all" times the threads.
        all_groups: The groups that were played, also those whose episodes were all lost.
        lost_branches: Failure of each lost episode from a point of another one.
        trees: Tree of each episode, and whether it continues another one of it.
    """

    trajectories: tuple[Trajectory, ...]
    groups: tuple[int, ...]
    lost: tuple[str, ...]
    seconds: dict[str, float]
    all_groups: frozenset[int]
    lost_branches: tuple[str, ...] = ()
    trees: tuple[tuple[int, bool], ...] = ()

    @classmethod
    def of(cls, ends: Iterable[tuple[TrainSlot, Trajectory | Failure]], seconds: dict[str, float]) -> PlayedBatch:
        """Return how the episodes of slots ended."""
        found = list(ends)
        good = [(slot, end) for slot, end in found if isinstance(end, Trajectory)]
        return cls(
            trajectories=tuple(trajectory for _, trajectory in good),
            groups=tuple(slot.group for slot, _ in good),
            lost=tuple(_describe_failure(end) for slot, end in found if isinstance(end, Failure) and not slot.point),
            seconds=seconds,
            all_groups=frozenset(slot.group for slot, _ in found),
            lost_branches=tuple(
                _describe_failure(end) for slot, end in found if isinstance(end, Failure) and slot.point
            ),
            trees=tuple((slot.tree, slot.grown) for slot, _ in good),
        )

    def join(self, other: PlayedBatch) -> PlayedBatch:
        """Return the episodes of both."""
        return PlayedBatch(
            trajectories=self.trajectories + other.trajectories,
            groups=self.groups + other.groups,
            lost=self.lost + other.lost,
            seconds={
                name: self.seconds.get(name, 0.0) + other.seconds.get(name, 0.0)
                for name in self.seconds | other.seconds
            },
            all_groups=self.all_groups | other.all_groups,
            lost_branches=self.lost_branches + other.lost_branches,
            trees=self.trees + other.trees,
        )

    def keep(self, where: Sequence[bool]) -> PlayedBatch:
        """Return the episodes for which `where` is true."""
        chosen = [index for index, kept in enumerate(where) if kept]
        return dataclasses.replace(
            self,
            trajectories=tuple(self.trajectories[index] for index in chosen),
            groups=tuple(self.groups[index] for index in chosen),
            trees=tuple(self.trees[index] for index in chosen if self.trees),
        )


class TrainEpisodeJob(EpisodeJob[int]):
    """One try at the episode of a slot; the key is the slot's index."""

    data: _EpisodeWork | None = None

    @property
    def name(self) -> str:
        """Task, slot and try."""
        return f"{self._task_id}/{self.key}/{self.number}"

    def understand(self, error: Exception) -> Failure | None:
        """Return the failure that an error means. Other errors of the sampler are raised and end the training.

        A prefix that differs from its record would differ again.
        """
        failure = super().understand(error) if isinstance(error, _LOST) else None
        return failure._replace(retry=False) if failure and isinstance(error, ReplayError) else failure

    def work(self) -> _EpisodeWork | None:
        """Return the episode as data."""
        return self.data


class _EpisodeWork(NamedTuple):
    """An episode as data. Its policy is at the trainer."""

    config: EnvConfig
    options: JsonObject
    place: int
    number: int
    slot: TrainSlot
    losses: tuple[Trajectory, ...]
    signed: bool
    ignore: tuple[str, ...]

    def make(self, link: DriverLink) -> TrainEpisodeJob:
        """Make the episode on a node."""
        return self.episode(lambda _env: HostedPolicy(link), list(self.losses))

    def episode(self, policy: MakePolicy, losses: list[Trajectory]) -> TrainEpisodeJob:
        """Make the episode with a policy."""
        env = make_env(self.config, self.options)
        task_id, _, seed, point, *_ = self.slot
        played = StateSignature(env, self.ignore) if self.signed else env
        episode = TrainEpisodeJob(
            self.place, self.number, played, policy, losses=losses, task_id=task_id, seed=seed, point=point
        )
        episode.data = self
        return episode


class Collector:
    """Plays episodes of one environment with one generator.

    Args:
        config: The environment.
        generation: Sampling settings.
        generator: Samples tokens.
        template: Chat template of the generator's model.
        options: Further arguments of the environment, for training or evaluation.
        signed: Whether the records need state signatures.
        ignore: Regular expressions of text of observations that signatures leave out.

    Raises:
        UsageError: An argument of the environment or the agent is invalid, or the agent's tool calls cannot be rendered
            and read with the chat template.
    """

    def __init__(
        self,
        config: EnvConfig,
        generation: GenerationConfig,
        generator: Generator,
        template: ChatTemplate,
        options: JsonObject,
        *,
        signed: bool = False,
        ignore: tuple[str, ...] = (),
    ) -> None:
        self._config, self._generation = config, generation
        self._generator, self._template = generator, template
        self._options, self._signed, self._ignore = options, signed, ignore
        self._agent = make_agent(config.agent, config.agent_options) if config.agent else None
        self._renderer = Renderer(template, generation.tool_call_style) if config.agent else None
        self._first = make_env(config, options)  # holds the source, so that it is read once
        if signed:
            StateSignature(self._first, ignore)  # refuses an environment whose states it cannot name
        self._open = contextlib.ExitStack()
        self._executor = self._open.enter_context(
            open_executor(config.executor, config.executor_options, options, workers=config.workers)
        )
        self.task_ids: Sequence[str] = _swe_env(self._first).source.ids()
        self.workers = config.workers
        self._pool: EpisodePool[int, TrainEpisodeJob] | None = None
        self._closed = False

    def play(self, slots: Sequence[TrainSlot], *, temperature: float) -> PlayedBatch:
        """Play an episode for each slot, `env.workers` at once. Lost episodes are retried once.

        After an error or Ctrl-C, running episodes have `GRACE` seconds to end.

        Raises:
            UsageError: The configuration is invalid.
        """
        started = time.monotonic()
        losses: list[list[Trajectory]] = [[] for _ in slots]
        ends: list[Trajectory | Failure] = [_NOT_PLAYED for _ in slots]
        seconds = dict.fromkeys(ACTIVITIES, 0.0)

        def make(index: int, number: int) -> TrainEpisodeJob:
            return self.episode(index, number, slots[index], losses[index], temperature)

        with self.pool(make) as self._pool:
            if self._closed:
                self._pool.cancel("closed")
            for episode in self._pool.run(range(len(slots))):
                record, failure = episode.outcome()
                ends[episode.key] = failure or record.without_oracle()
                for part, spent in activities(episode, record if failure is None else None).items():
                    seconds[part] += spent
                if failure is not None and failure.retry:
                    self._pool.retry(episode)
        wall = time.monotonic() - started
        seconds["idle"] = max(0.0, min(self.workers, len(slots)) * wall - sum(seconds.values()))
        return PlayedBatch.of(zip(slots, ends, strict=True), {"all": wall, **seconds})

    def check_point(self, point: EpisodeCheckpoint) -> None:
        """Check that an episode can start at a point.

        Raises:
            UsageError: It is at a limit of the environment, or belongs to another version of its task.
            TaskError: The task is broken.
        """
        _swe_env(self._first).choose_point({"checkpoint": point})

    def pool(self, make: Callable[[int, int], TrainEpisodeJob]) -> EpisodePool[int, TrainEpisodeJob]:
        """Return a pool of `config.workers` threads that retries a lost episode once."""
        return EpisodePool(make, workers=self.workers, retries=1, grace=GRACE, executor=self._executor)

    def episode(
        self, key: int, number: int, slot: TrainSlot, losses: list[Trajectory], temperature: float
    ) -> TrainEpisodeJob:
        """Return a try at the episode of a slot. Earlier tries have left their losses in `losses`."""
        policy = functools.partial(self._policy, seed=slot.seed, temperature=temperature)
        work = _EpisodeWork(self._config, self._options, key, number, slot, tuple(losses), self._signed, self._ignore)
        return work.episode(policy, losses)

    def _policy(self, env: gymnasium.Env[str, str], seed: int, temperature: float) -> TokenPolicy | Player:
        if self._agent is not None:
            return self._player(self._agent, seed, temperature)
        return TokenPolicy(
            env,
            self._generator,
            self._template,
            system=self._config.system,
            temperature=temperature,
            max_tokens=self._generation.max_tokens,
            max_context=self._generation.max_context,
            seed=seed,
        )

    def _player(self, agent: Agent, seed: int, temperature: float) -> Player:
        from ..gateway import (
            AgentPlayer,  # the extra "agents"
            TokenSampler,
        )

        sampler = TokenSampler(
            self._generator,
            self._renderer or self._template,
            temperature=temperature,
            max_tokens=self._generation.max_tokens,
            max_context=self._generation.max_context,
        )
        return AgentPlayer(self._config.agent, agent, sampler, seed=seed)

    def close(self) -> None:
        """End every episode. Idempotent, from any thread."""
        self._closed = True
        if self._pool is not None:
            self._pool.cancel("closed")
            self._pool.join(CLOSE_TIMEOUT)
        self._open.close()
        self._first.close()


def activities(episode: TrainEpisodeJob, record: Trajectory | None) -> dict[str, float]:
    """Return the seconds of an ended try's thread by activity. `record` is None if the try does not count."""
    if record is None:
        return {"lost": episode.seconds}
    parts = {name: record.seconds.get(name, 0.0) for name in _PARTS}
    return {**parts, "rest": max(0.0, episode.seconds - sum(parts.values()))}


def _describe_failure(failure: Failure) -> str:
    """Return a failure as "PolicyError: no route to host"."""
    kind = failure.name.partition(" ")[0]
    return failure.message if failure.message.startswith(kind) else f"{kind}: {failure.message}"


def make_env(config: EnvConfig, options: JsonMapping) -> gymnasium.Env[str, str]:
    """Make an environment of a run; nothing starts.

    Args:
        config: The environment.
        options: Further arguments, for training or evaluation.

    Raises:
        UsageError: An argument is invalid.
    """
    env = envs.make_env(config.id, **{**config.options, **options})
    _swe_env(env)
    return env


def task_ids(config: EnvConfig, options: JsonMapping) -> Sequence[str]:
    """Return the task ids of an environment.

    Raises:
        UsageError: An argument is invalid, or the tasks cannot be found.
    """
    with contextlib.closing(make_env(config, options)) as env:
        return _swe_env(env).source.ids()


def _swe_env(env: gymnasium.Env[str, str]) -> SweEnv:
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"training needs an environment of swe_gym, not {env.spec}")
    return env.unwrapped


def number_attempts(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return episodes with their numbers among those of the same task, without tokens."""
    counts: Counter[str] = Counter()
    found = []
    for one in trajectories:
        found.append(one.model_copy(update={"attempt": counts[one.task_id], "segments": ()}))
        counts[one.task_id] += 1
    return found


def episode_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, object]]:
    """Return a row of the log for each episode. Of one that started at a prefix, it has the number of given actions."""
    return [
        {
            "task": one.task_id,
            "attempt": one.attempt,
            "reward": one.reward,
            "reason": one.reason,
            "turns": len(one.turns),
            "tokens": one.usage.completion_tokens,
            **({"prefix": one.branch_turn} if one.parent else {}),
        }
        for one in number_attempts(trajectories)
    ]


def check_tasks(config: TrainConfig) -> None:
    """Check that training and evaluation have tasks and share none.

    Raises:
        UsageError: They share a task, or tasks cannot be found.
    """
    trained = task_ids(config.env, config.env.train)
    if config.run.evaluate_every:
        evaluated = draw_held_out_tasks(task_ids(config.env, config.env.held_out), config.evaluation.tasks)
        if common := [task_id for task_id in evaluated if task_id in trained]:
            raise UsageError(
                f"env.train and env.held_out share tasks, for example {common[0]!r}: choose ranges that do not "
                "overlap, or set run.evaluate_every = 0"
            )


def draw_held_out_tasks(ids: Sequence[str], count: int) -> list[str]:
    """Draw tasks without replacement, the same ones in each evaluation of each run; all of them if there are fewer."""
    return random.Random("held out").sample(ids, min(count, len(ids)))


def evaluation_slots(ids: Sequence[str], evaluation: EvaluationConfig) -> list[TrainSlot]:
    """Return the episodes of an evaluation, with the same seeds in each evaluation of each run."""
    draw = random.Random("seeds")
    return [
        TrainSlot(task_id, group, draw.getrandbits(31))
        for group, task_id in enumerate(draw_held_out_tasks(ids, evaluation.tasks))
        for _ in range(evaluation.attempts)
    ]


def summarize(played: PlayedBatch, ks: Sequence[int] = (1,)) -> dict[str, object]:
    """Return the metrics of an evaluation: mean reward and pass@k with 95 % intervals, and the outcome of each task."""
    by_task: dict[str, list[bool]] = {}
    earned: dict[str, list[float]] = {}
    for trajectory in played.trajectories:
        by_task.setdefault(trajectory.task_id, []).append(trajectory.resolved)
        earned.setdefault(trajectory.task_id, []).append(trajectory.reward)
    rewards = [trajectory.reward for trajectory in played.trajectories]
    resolved = sum(trajectory.resolved for trajectory in played.trajectories)
    low, high = mean_interval(list(by_task.values()))
    reward_low, reward_high = mean_interval(list(earned.values()))
    metrics: dict[str, object] = {
        "episodes": len(rewards),
        "lost": len(played.lost),
        "reward": sum(rewards) / len(rewards) if rewards else math.nan,
        "reward_low": reward_low,
        "reward_high": reward_high,
        "resolved": resolved / len(rewards) if rewards else math.nan,
        "resolved_low": low,
        "resolved_high": high,
        "tasks": {task_id: [sum(found), len(found)] for task_id, found in sorted(by_task.items())},
        "played": episode_rows(played.trajectories),
    }
    curve = {point.k: point.value for point in pass_curve(by_task)}
    return metrics | {f"pass@{k}": curve.get(k, math.nan) for k in ks}


End = Trajectory | Failure | None
"""How an episode ended; None while it is in flight."""


@dataclasses.dataclass(slots=True)
class _DrawnEpisode:
    """An episode that was drawn and not trained on yet."""

    slot: TrainSlot
    end: End = None
    losses: list[Trajectory] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


class AsyncCollector:
    """Plays the episodes of one collector in a thread of its own.

    Args:
        collector: Makes the episodes.
        temperature: Sampling temperature.
    """

    def __init__(self, collector: Collector, temperature: float) -> None:
        self._collector, self._temperature = collector, temperature
        self._changed = threading.Condition()
        self._entries: dict[int, _DrawnEpisode] = {}  # in the order of the draw
        self._numbers = itertools.count()
        self._closed = False
        self._error: BaseException | None = None
        self._pool = collector.pool(self._make)
        self._thread = threading.Thread(target=self._run, name="episodes-in-flight", daemon=True)
        self._thread.start()

    @property
    def groups(self) -> int:
        """Number of groups that were added and not taken."""
        with self._changed:
            return len({entry.slot.group for entry in self._entries.values()})

    def add(self, slots: Sequence[TrainSlot], ends: Sequence[End] = ()) -> None:
        """Queue the episodes of slots, whole groups at a time.

        Args:
            slots: The slots.
            ends: How the episodes ended in an earlier process. Those without an end start from their seed.
        """
        entries = [_DrawnEpisode(slot, end) for slot, end in itertools.zip_longest(slots, ends)]
        with self._changed:
            keyed = {next(self._numbers): entry for entry in entries}
            self._entries |= keyed
            self._changed.notify_all()
            if not self._closed:
                self._pool.add(key for key, entry in keyed.items() if entry.end is None)

    def take(self, count: int, chosen: Collection[int] = ()) -> PlayedBatch:
        """Wait until groups are complete, and remove them.

        Args:
            count: Number of groups; the first drawn of those that are complete.
            chosen: Wait for these groups instead.

        Raises:
            Exception: A mistake in the configuration, a policy or a reward, which ended an episode.
        """
        with self._changed:
            while not (wanted := self._choose_groups(count, chosen)):
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            taken = [self._entries.pop(key) for key, one in list(self._entries.items()) if one.slot.group in wanted]
        return self._make_batch(taken)

    def _choose_groups(self, count: int, chosen: Collection[int]) -> list[int]:
        """Return the groups to take now; empty if they are not complete."""
        complete: dict[int, bool] = {}
        for entry in self._entries.values():
            group = entry.slot.group
            complete[group] = complete.get(group, True) and entry.end is not None
        found = [group for group, whole in complete.items() if whole and (not chosen or group in chosen)]
        return found[:count] if len(found) >= (len(chosen) or count) else []

    def _make_batch(self, taken: Sequence[_DrawnEpisode]) -> PlayedBatch:
        seconds = {name: sum(entry.seconds.get(name, 0.0) for entry in taken) for name in ACTIVITIES}
        return PlayedBatch.of(
            [(entry.slot, entry.end) for entry in taken if entry.end is not None],
            {"all": sum(seconds.values()) / self._collector.workers, **seconds, "idle": 0.0},
        )

    def in_flight(self) -> list[tuple[TrainSlot, End]]:
        """Return the episodes that were added and not taken, for a checkpoint."""
        with self._changed:
            return [(entry.slot, entry.end) for entry in self._entries.values()]

    def close(self) -> None:
        """End every episode. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.cancel("closed")
        self._pool.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            with self._pool:
                while self._has_work():
                    for episode in self._pool.run(()):
                        self._finish(episode)
        except BaseException as error:  # noqa: BLE001  `take` raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _has_work(self) -> bool:
        """Wait for slots. Returns False once the collector is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(one.end is None for one in self._entries.values()))
            return not self._closed

    def _make(self, key: int, number: int) -> TrainEpisodeJob:
        entry = self._entries[key]
        return self._collector.episode(key, number, entry.slot, entry.losses, self._temperature)

    def _finish(self, episode: TrainEpisodeJob) -> None:
        record, failure = episode.outcome()
        entry = self._entries[episode.key]
        for name, spent in activities(episode, record if failure is None else None).items():
            entry.seconds[name] = entry.seconds.get(name, 0.0) + spent
        if failure is not None and failure.retry and self._pool.retry(episode):
            return
        with self._changed:
            entry.end = failure or record.without_oracle()
            self._changed.notify_all()
