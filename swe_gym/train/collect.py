"""The episodes of one update: many at once, and what the infrastructure lost is named and left out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from ..envs.swe_env import SweEnv
from ..errors import PolicyError, SandboxError, TaskError, UsageError
from ..rollout.episode import play
from ..rollout.tokens import ChatTemplate, Generator, TokenPolicy
from ..trajectories.trajectory import Trajectory
from .config import EnvConfig, GenerationConfig


class Slot(NamedTuple):
    """One episode to play.

    Attributes:
        task_id: The task.
        group: The number of the task in its batch: attempts at one task are a group.
        seed: Of the draws.
    """

    task_id: str
    group: int
    seed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """What became of the episodes of one update.

    Attributes:
        trajectories: Those that count, in the order of their slots.
        groups: The group of each.
        lost: How each of the others was lost, as "SandboxLost: ...".
        seconds: Wall-clock time of it all ("all"), and what the threads that played did meanwhile, summed over them:
            "start", "tools", "grading" and "policy" of the episodes that count, the "rest" of those, tries that were
            "lost", and "idle", with no episode left to play. Together the sums are "all" times the threads.
    """

    trajectories: tuple[Trajectory, ...]
    groups: tuple[int, ...]
    lost: tuple[str, ...]
    seconds: dict[str, float]

    def keep(self, where: Sequence[bool]) -> Played:
        """Those episodes for which `where` is true."""
        chosen = [index for index, kept in enumerate(where) if kept]
        return dataclasses.replace(
            self,
            trajectories=tuple(self.trajectories[index] for index in chosen),
            groups=tuple(self.groups[index] for index in chosen),
        )


class _Finished(NamedTuple):
    """What came of a slot: the episode, or how it was lost; seconds of all its tries, and of those that were lost."""

    result: Trajectory | str
    seconds: float
    lost: float


class Collector:
    """Plays episodes of one environment with one generator, one thread and one environment for each at a time.

    Args:
        config: What is played.
        generation: How answers are sampled.
        generator: What samples.
        template: Of the generator's model.
        options: Arguments of the environment beside `config.options`: those of training or of evaluation.

    Raises:
        UsageError: The environment cannot be made like that.
    """

    def __init__(
        self,
        config: EnvConfig,
        generation: GenerationConfig,
        generator: Generator,
        template: ChatTemplate,
        options: dict[str, Any],
    ) -> None:
        self._config, self._generation = config, generation
        self._generator, self._template = generator, template
        self._options = options
        self._idle: queue.SimpleQueue[gymnasium.Env[str, str]] = queue.SimpleQueue()
        self._envs: list[gymnasium.Env[str, str]] = []
        self._lock = threading.Lock()
        self._closed = False
        first = self._make_env()
        self.task_ids: Sequence[str] = _swe_env(first).source.ids()
        self._idle.put(first)

    def _make_env(self) -> gymnasium.Env[str, str]:
        env = make_env(self._config, self._options)
        with self._lock:
            self._envs.append(env)
        return env

    def play(self, slots: Sequence[Slot], *, temperature: float) -> Played:
        """Play them all, `config.workers` at once. An episode that is lost is tried once more.

        After an error or Ctrl-C it waits for nobody: threads end as soon as the generator is closed too.

        Raises:
            UsageError: Something is used wrongly; no episode is to blame.
        """
        started = time.monotonic()
        threads = concurrent.futures.ThreadPoolExecutor(self._config.workers, thread_name_prefix="episode")
        try:
            futures = [threads.submit(self._play_one, slot, temperature) for slot in slots]
            results = [future.result() for future in futures]
        except BaseException:
            self.close()
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        wall = time.monotonic() - started
        good = [
            (slot, one.result) for slot, one in zip(slots, results, strict=True) if isinstance(one.result, Trajectory)
        ]
        return Played(
            trajectories=tuple(trajectory for _, trajectory in good),
            groups=tuple(slot.group for slot, _ in good),
            lost=tuple(one.result for one in results if isinstance(one.result, str)),
            seconds={"all": wall, **_parts(results, min(self._config.workers, len(slots)) * wall)},
        )

    def _play_one(self, slot: Slot, temperature: float) -> _Finished:
        started = time.monotonic()
        result = self._try(slot, temperature)
        lost = 0.0
        if isinstance(result, str) and not self._closed:
            lost = time.monotonic() - started
            result = self._try(slot, temperature)
        seconds = time.monotonic() - started
        return _Finished(result, seconds, lost if isinstance(result, Trajectory) else seconds)

    def _try(self, slot: Slot, temperature: float) -> Trajectory | str:
        """The episode, or why it does not count."""
        try:
            env = self._idle.get_nowait()
        except queue.Empty:
            env = self._make_env()
        policy = TokenPolicy(
            env,
            self._generator,
            self._template,
            system=self._config.system,
            temperature=temperature,
            max_tokens=self._generation.max_tokens,
            max_context=self._generation.max_context,
            seed=slot.seed,
        )
        try:
            trajectory = play(env, policy, seed=slot.seed, options={"task_id": slot.task_id})
        except (PolicyError, SandboxError, TaskError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            env.close()
            self._idle.put(env)
        if not trajectory.reward_valid:
            return trajectory.info["failure"] or "the infrastructure failed"
        return trajectory

    def close(self) -> None:
        """End every episode. Idempotent."""
        self._closed = True
        with self._lock:
            envs = list(self._envs)
        for env in envs:
            env.close()


def _parts(finished: Sequence[_Finished], threads: float) -> dict[str, float]:
    """What the threads did, in seconds, of the seconds that they were there."""
    parts = {
        name: sum(one.result.seconds.get(name, 0.0) for one in finished if isinstance(one.result, Trajectory))
        for name in ("start", "tools", "grading", "policy")
    }
    parts["lost"] = sum(one.lost for one in finished)
    busy = sum(one.seconds for one in finished)
    return {**parts, "rest": max(0.0, busy - sum(parts.values())), "idle": max(0.0, threads - busy)}


def make_env(config: EnvConfig, options: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """An environment of a run, in which nothing is started.

    Args:
        config: What is played.
        options: Arguments of the environment beside `config.options`: those of training or of evaluation.

    Raises:
        UsageError: It cannot be made like that.
    """
    try:
        env: gymnasium.Env[str, str] = gymnasium.make(
            config.id, disable_env_checker=True, **{**config.options, **options}
        )
    except (gymnasium.error.Error, TypeError) as error:
        raise UsageError(f"env: {config.id!r} cannot be made with these options: {error}") from error
    _swe_env(env)
    return env


def task_ids(config: EnvConfig, options: Mapping[str, Any]) -> Sequence[str]:
    """The tasks of such an environment.

    Raises:
        UsageError: It cannot be made like that, or its tasks cannot be found.
    """
    with contextlib.closing(make_env(config, options)) as env:
        return _swe_env(env).source.ids()


def _swe_env(env: gymnasium.Env[str, str]) -> SweEnv:
    if not isinstance(env.unwrapped, SweEnv):
        raise UsageError(f"training plays environments of swe_gym, and {env.spec} is none")
    return env.unwrapped
