"""`SweEnv`: a software-engineering task as a Gymnasium environment."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Never

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from ..actions import parse_action, render_possible
from ..errors import (
    ActionError,
    AgentError,
    FileError,
    GradingError,
    ReplayError,
    SandboxError,
    SandboxStartError,
    TaskError,
    Unsupported,
    UsageError,
    unknown_name,
)
from ..grading import GRADERS, REWARDS, CounterOptions, Patch, grade, signs_in_call, signs_in_work
from ..grading.in_place import NoReward, blame, for_policy, is_last, join_steps, steps_of
from ..sandboxes import Sandbox, SandboxSpec, Snapshot, WarmPool
from ..spaces import Info, ResetResult, StepResult, Unicode
from ..tasks import LocalSource, TaskRecord, TaskSource, check_source, doubt, read_records
from ..tools import Tool, ToolContext, bound, harmless, make_tools
from ..types import Action, JsonObject, Reward, Task, ToolCall, ToolResult, ToolSpec, Verdict
from .arguments import (
    check_arguments,
    check_format,
    check_known,
    json_native,
    open_early,
    shared_source,
    warn_of_time_limit,
)
from .checkpoint import EpisodeCheckpoint, start_in, start_of_task
from .episode import (
    SHOWN_TURNS,
    WORLD_ERRORS,
    EpisodeState,
    ShownTurn,
    ToolEnv,
    draw_turns,
    format_end,
    format_turn,
    format_turns,
)
from .group import SandboxGroup, task_spec

logger = logging.getLogger(__name__)

MAX_ACTION = 1_000_000
"""Maximum length of an action in characters. A longer one is invalid."""

SANDBOX_FAILED = "The episode ended: its sandbox failed."
"""Observation after a sandbox failure: constant, so that policies learn nothing about the failure."""

ALREADY_PASSES = (
    "task {task}: the command already succeeds on the unchanged folder, so an immediate submit earns the reward. "
    "Choose a test_cmd that fails until the work is done."
)
"""Warning about a task of the user's own that is none."""

RESET_OPTIONS = ("task_id", "checkpoint", "late", "restore")

RESTORES = ("files", "replay")
"""Ways to bring a new sandbox to the state of a checkpoint."""

CONTINUES = (
    "[The episode continues after turn {turn} in a new sandbox. The files are as they were; running programs, open "
    "ports and sessions of a debugger have ended.]"
)
"""Line of the first observation after a checkpoint."""

DROP_SECONDS = 5.0
"""Maximum seconds to wait until the sandboxes of a dropped environment are closed."""


class SweEnv(ToolEnv):
    """A repository with a problem, tools to solve it, and a reward from tests that the policy never sees.

    ## Description

    Each episode is one task: repair this repository so that its hidden tests pass. `reset` opens an isolated sandbox
    with the repository and returns the issue text. Each `step` takes the policy's text, runs the tool call in it and
    returns the tool's output. `submit` ends the episode: the work is taken out as a patch, applied in a fresh sandbox
    and graded there by the task's hidden tests. Tasks of Harbor are the exception: their own script judges the policy's
    sandbox and gives the reward.

    The environment is deterministic: the same task, seed and actions give the same observations and info, byte for
    byte. The output of commands that read the clock or random numbers still varies.

    ## Action Space

    `Unicode(1000000)`: any text. `action_format` says how one tool call is parsed from it; the text around the call is
    the thought and has no effect. Text without a valid call has no effect either: the observation says what is wrong.
    `action_space.sample()` returns harmless, valid calls.

    ## Observation Space

    `Unicode(max_observation)`: the tool's output, its middle cut out if it is longer. The observation of `reset` is the
    problem statement. If a task has several steps, the instruction of the next one follows the output of the call that
    ended the one before.

    ## Rewards

    The reward is 0.0 at every step but the last. At the last step it depends on the argument `reward`: "binary" is 1.0
    if all required hidden tests pass and 0.0 otherwise; "fraction" and "shaped" give partial rewards.
    `info["reward_components"]` holds its named parts; their sum is the reward. If the task's own script gives a reward
    in [0, 1], that is the reward, and 1.0 is resolved.

    An infrastructure failure is never a reward: the episode is truncated with reward 0.0 and `info["reward_valid"]`
    False, and trainers should leave it out. A policy that destroys its own sandbox ends up here too, because that looks
    like a machine failure from outside. Left out of training, such an episode neither rewards nor punishes.

    ## Starting State

    The task's repository at its base commit, in a new sandbox. The task is `options["task_id"]`, else the argument
    `task_id`, else drawn from the source with the environment's seeded generator.

    ## Episode End

    1. Termination: the policy calls `submit`, and the work was graded. If the task has several steps, that ends the
       running step, as its own time limit does. The episode ends with the last step that is played.
    2. Truncation: `max_turns` steps were taken, `time_limit` seconds (or the task's, if fewer) have passed, or
       `max_invalid` consecutive actions were invalid. The work is graded as it is, and the reward counts.
    3. Truncation: the infrastructure failed; see Rewards.

    `max_episode_steps` of `gymnasium.make` truncates an episode without grading it, with a warning; use `max_turns`.

    The sandbox is closed as soon as an episode ends. `step` before `reset` or after the end raises `ResetNeeded`.

    ## Info

    Every step has the same keys, each of a fixed type: `task_id` str, `turn` int, `outcome` str ("running",
    "submitted", "agent_limit", "infra_failed"), `reward_valid` bool (True once the work was graded), `resolved` bool,
    `tool` str, `tool_ok` bool, `exit_code` int (-1 if no command ended by itself), `invalid_actions` int, `cheat_signs`
    int (number of signs of reward hacking), `set_back` list of str (files that the policy wrote and that grading reset,
    at most 50; empty before the end), `limit` str ("", "turns", "time", "invalid", or the argument of `end`), `failure`
    str, `reward_components` dict of float, the counts of hidden tests `fail_to_pass_passed`, `fail_to_pass_total`,
    `pass_to_pass_passed`, `pass_to_pass_total` int, `counter_tests` int (number of fail-to-pass tests with a
    counter-test), `alarms` int (number of tests whose counter-test passed: code of the work changed the results of
    tests), `unproven` str (why no counter-test proves that the work is resolved; empty if one does), and
    `already_passes` bool (whether the unchanged folder of `SWE/Local-v0` earns the reward). The counts are 0 before the
    end.

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `source` | str | required | Task source: a name of `swe_gym.tasks.SOURCES` or "module:Class" |
    | `source_options` | dict | `None` | Arguments of the source |
    | `task_id` | str | `None` | Task of every episode |
    | `backend` | str | `"local"` | Kind of sandbox |
    | `sandbox_options` | dict | `None` | Fields of `SandboxSpec`, such as `memory_mb` or `min_isolation` |
    | `tools` | str or list | `"default"` | A preset, or names of tools |
    | `action_format` | str | `"auto"` | Format of tool calls; "auto" reads all formats |
    | `reward` | str | `"binary"` | A name of `swe_gym.grading.REWARDS` |
    | `alarm_reward` | float | `0.0` | Reward of work that raises an alarm, at most 0 |
    | `counter` | str | `"few"` | Pass-to-pass tests that get a counter-test: "few" or "all" |
    | `judge_runs` | int | `2` | Runs of resolved work, if twins cannot play all tests |
    | `max_turns` | int | `50` | Steps until truncation |
    | `time_limit` | float | `1800.0` | Seconds from `reset` until truncation, for all steps, without grading |
    | `max_observation` | int | `16000` | Maximum length of an observation in characters |
    | `max_invalid` | int | `10` | Consecutive invalid actions until truncation; `None` for no limit |
    | `record` | str | `None` | File of `swe-gym validate`; tasks that are not valid there raise a warning |
    | `render_mode` | str | `None` | "ansi", "human" (prints each turn, and how the episode ended) or "rgb_array" |

    Arguments are plain JSON and checked in the constructor, which reads local task files. Nothing is downloaded or
    started before `reset`.

    ## Version History

    * v0: Initial version.
    """

    metadata = {"render_modes": ["ansi", "human", "rgb_array"], "render_fps": 2}

    def __init__(
        self,
        source: str,
        source_options: JsonObject | None = None,
        *,
        task_id: str | None = None,
        backend: str = "local",
        sandbox_options: JsonObject | None = None,
        tools: str | list[str] = "default",
        action_format: str = "auto",
        reward: str = "binary",
        alarm_reward: float = 0.0,
        counter: str = "few",
        judge_runs: int = 2,
        max_turns: int = 50,
        time_limit: float = 1800.0,
        max_observation: int = 16_000,
        max_invalid: int | None = 10,
        record: str | None = None,
        render_mode: str | None = None,
        **unknown: Never,
    ) -> None:
        arguments = {**locals(), "source_options": source_options or {}, "sandbox_options": sandbox_options or {}}
        del arguments["self"], arguments["unknown"]
        check_known(type(self), SweEnv, unknown)
        self._config = json_native(**arguments)
        check_arguments(self._config, render_modes=self.metadata["render_modes"])
        check_source(source, arguments["source_options"])
        warn_of_time_limit()
        opened = open_early(source, self._config["source_options"], task_id)
        self._reward = REWARDS.load(reward)
        self._tools: list[Tool] = make_tools(tools)
        check_format(action_format, [tool.spec for tool in self._tools])
        self.render_mode = render_mode
        self.action_space = Unicode(MAX_ACTION, examples=_sample_actions(self._tools, action_format))
        self.observation_space = Unicode(max_observation)
        self._drawn: str | None = None  # task of the next episode, if it was drawn ahead of time
        self._set_up(opened)

    def _set_up(self, source: TaskSource | None = None) -> None:
        """Set the attributes that a new environment and an unpickled one start with."""
        self._specs = [tool.spec for tool in self._tools]
        self._by_name = {tool.name: tool for tool in self._tools}
        self._source = source
        self._records: dict[str, TaskRecord] | None = None
        self._record: TaskRecord | None = None  # of the episode's task
        self._doubted: set[str] = set()
        self._hurried: set[str] = set()
        self._group: SandboxGroup | None = None
        self._episode: EpisodeState | None = None
        self._finalizer: weakref.finalize[..., object] | None = None
        self._pool: WarmPool | None = None
        self._wanted: SandboxSpec | None = None  # the sandbox that the pool is starting
        self._mounts: dict[str, str] = {}
        self._group_lock = threading.RLock()  # guards _group, which any thread or signal handler may take to close it
        self._turn_lock = threading.RLock()  # held while tools run; re-entrant, as a signal handler may call close

    # --- the Gymnasium verbs ----------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[str]:
        """Start an episode in a new sandbox.

        Args:
            seed: Seed of the generator that draws the task.
            options: `{"task_id": ...}` chooses the task. `{"checkpoint": point}` continues from what `checkpoint`
                returned, or from its JSON: with the same files, turns and limits, in a new sandbox. `{"late": True}`
                allows one at its time limit: the first step ends the episode. `{"restore": "replay"}` plays its actions
                again, which also brings back running programs; a checkpoint without files is always restored so.

        Returns:
            The problem statement, and info. From a checkpoint, the last observation before it, with a line that says
            what was lost; nothing is lost by a replay.

        Raises:
            UsageError: The task or an option is unknown, this machine does not support the configuration, or the
                checkpoint does not fit or was changed.
            ReplayError: The replay of a checkpoint's actions gave another observation.
            SandboxError: The sandbox did not start, not even at a second try if the error was retryable.
            TaskError: The task is broken.
        """
        super().reset(seed=seed)
        for name in options or {}:
            if name not in RESET_OPTIONS:
                raise unknown_name("reset option", name, RESET_OPTIONS)
        if seed is not None:
            self._forget_next()
        self.close()
        with self._turn_lock:
            point = self.choose_point(options or {})
            files = point.snapshot() if point and not _replays(point, options or {}) else None
            task = self._choose_task(point.task_id if point else (options or {}).get("task_id"))
            episode = self._open(task, point, files)
            self._episode = episode
            episode.seed = seed if point is None else point.seed
            if point is not None:
                try:
                    restored = self._replay(episode, point) if files is None else self._continue(episode, point)
                    return restored, episode.info()
                except BaseException:
                    self.close()
                    raise
            observation = self._fit(_opening(episode))
            self._show(episode, "", observation)
            return observation, episode.info()

    def step(self, action: str) -> StepResult[str]:
        """Run the tool call in `action`.

        No text raises: the observation explains an invalid call. If the sandbox or the grader fails, the episode ends
        without a reward.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: The action is not text.
        """
        if not isinstance(action, str):
            raise UsageError(
                f"an action must be text, not {type(action).__name__}: pass a message as json.dumps(message)"
            )
        with self._turn_lock:
            episode = self._running()
            episode.turn += 1
            try:
                observation = self._act(episode, action)
            except WORLD_ERRORS as error:
                observation = SANDBOX_FAILED
                episode.failed(error)
                self._release(episode)
            else:
                if instruction := self._end_if_due(episode):
                    observation = self._join(observation, instruction)
            observation = self._fit(observation)
            self._show(episode, action, observation)
            terminated = episode.outcome == "submitted"
            truncated = episode.outcome in ("agent_limit", "infra_failed")
            self._show_end(episode)
            return observation, episode.reward_value(), terminated, truncated, episode.info()

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """Return the last turns: text for "ansi", an image of shape (640, 960, 3) for "rgb_array", None for "human"."""
        turns = self._current().turns[-SHOWN_TURNS:]
        if self.render_mode == "ansi":
            return format_turns(turns)
        if self.render_mode == "rgb_array":
            return draw_turns(turns)
        return None

    def close(self) -> None:
        """End the episode and free all resources. Idempotent, from any thread; a running call ends within a second."""
        with self._group_lock:
            group, self._group = self._group, None
        if group is not None:
            group.close()
        # A step in another thread ends now, because its sandbox is gone, and resets the tools.
        if self._turn_lock.acquire(timeout=5.0):
            try:
                self._reset_tools()
            finally:
                self._turn_lock.release()

    # --- beyond Gymnasium -------------------------------------------------------------------------------

    @property
    def config(self) -> JsonObject:
        """The constructor's arguments as plain JSON: `SweEnv(**env.config)` is the same environment."""
        return json_native(**self._config)

    @property
    def source(self) -> TaskSource:
        """The task source, loaded at first use and shared by environments with the same source."""
        if self._source is None:
            self._source = shared_source(self._config["source"], self._config["source_options"])
        return self._source

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the policy, in the form that LLM APIs take."""
        return tuple(self._specs)

    @property
    def task(self) -> Task:
        """The task of the current or last episode. Only graders may see its oracle."""
        return self._current().task

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the current episode, with the rights of the policy; closed once the episode has ended."""
        return self._current().context.sandbox

    @property
    def deadline(self) -> float:
        """The `time.monotonic()` at which the time of the policy is over: that of the episode or of a step."""
        return self._current().context.deadline

    @property
    def last_action(self) -> Action | None:
        """The last action as parsed; None if it held no valid call."""
        return self._current().action

    @property
    def verdict(self) -> Verdict | None:
        """The grader's verdict; None before the end of the episode and after a failure."""
        return self._current().verdict

    @property
    def stats(self) -> JsonObject:
        """Details beyond `info`: repository, seconds, sandbox, its id, checkpoint, failure, cheat signs, `set_back`."""
        episode = self._current()
        return {
            "repo": episode.task.repo,
            "seconds": dict(episode.seconds),
            "sandbox_id": episode.sandbox.id,
            "sandbox": episode.sandbox.capabilities.model_dump(mode="json"),
            "parent": episode.parent,
            "branch_turn": episode.branch_turn,
            "failure": episode.failure_detail,
            "cheat_signs": list(episode.signs),
            "set_back": episode.set_back(),
        }

    @property
    def judged_diff(self) -> str:
        """The graded work as a git diff; empty before the end of the episode."""
        patch = self._current().patch
        return patch.diff() if patch else ""

    def patch(self) -> Patch:
        """Return the graded work, or the work so far, as a patch against the task's starting state.

        Raises:
            ResetNeeded: There is no episode yet.
            SandboxError: The sandbox failed.
        """
        with self._turn_lock:
            episode = self._current()
            if episode.patch is not None:
                return episode.patch
            episode = self._running()
            patch, fresh = episode.group.take_work(episode.sandbox)
            episode.group.drop(fresh)
            return patch

    def checkpoint(self) -> EpisodeCheckpoint:
        """Return the running episode's state as data, from which `reset` starts other episodes. The episode continues.

        Files, turns, limits, the undo history of editors and breakpoints are kept; running programs, open ports and
        sessions of a debugger are not. Take it between two steps. Its time does not count towards limits.

        Raises:
            ResetNeeded: No episode is running.
            Unsupported: A step of the task was judged already.
            FileError: What was written is too large, or cannot be read.
            SandboxError: The sandbox failed.
        """
        with self._turn_lock:
            episode = self._running()
            task, group = episode.task, episode.group
            if episode.steps:
                raise Unsupported(
                    f"task {task.task_id}: a step of it was judged, and a checkpoint would keep what it told"
                )
            started = time.monotonic()
            try:
                files = episode.sandbox.snapshot().pack()
            finally:
                episode.pause(time.monotonic() - started)
            first, *turns = episode.turns
            states = {tool.name: tool.save(episode.sandbox) for tool in self._tools}
            return EpisodeCheckpoint(
                parent=episode.parent,
                task_id=task.task_id,
                start=start_of_task(task, self._config["backend"], group.spec.image) | start_in(episode.sandbox),
                seed=episode.seed,
                turn=episode.turn,
                observation=first.observation,
                actions=tuple(turn.action for turn in turns),
                observations=tuple(turn.observation for turn in turns),
                invalid_actions=episode.invalid_actions,
                invalid_row=episode.invalid_row,
                signs=tuple(episode.signs),
                seconds=time.monotonic() - episode.began,
                tools={name: state for name, state in states.items() if state},
                lost=tuple(name for name, state in states.items() if state is None),
                files=files,
            ).named()

    def end(self, limit: str) -> StepResult[str]:
        """End the episode at a limit that the caller measures, such as tokens or cost.

        The work is graded as it is, and the reward counts.

        Args:
            limit: Value of `info["limit"]`.

        Returns:
            The result of a step, with an empty observation.

        Raises:
            ResetNeeded: No episode is running.
            UsageError: The limit is empty.
        """
        if not limit:
            raise UsageError("end() needs the name of the limit that was reached")
        return self._finish(limit)

    def count_turn(self, calls: Iterable[ToolCall]) -> None:
        """Count a turn of a policy that works in `sandbox` itself, and the signs of cheating in its tool calls.

        Raises:
            ResetNeeded: No episode is running.
        """
        episode = self._running()
        episode.turn += 1
        for call in calls:
            episode.signs += sorted(signs_in_call(call))[:1]
        episode.group.open_ahead()

    def submit(self) -> StepResult[str]:
        """End the episode and grade the work, for a policy that works in `sandbox` itself instead of calling tools.

        Returns:
            The result of a step, with an empty observation; if the task has a further step, with its instruction: the
            episode continues.

        Raises:
            ResetNeeded: No episode is running.
        """
        return self._finish("")

    def fail(self, error: SandboxError) -> StepResult[str]:
        """End the episode without a reward, for a policy that works in `sandbox` itself and met this error.

        Returns:
            The result of a step, with an empty observation.

        Raises:
            ResetNeeded: No episode is running.
        """
        with self._turn_lock:
            episode = self._running()
            episode.failed(error)
            self._release(episode)
            return self._result(episode)

    def _finish(self, limit: str) -> StepResult[str]:
        with self._turn_lock:
            episode = self._running()
            if instruction := self._judge(episode, limit, go_on=not limit):
                return self._fit(instruction), 0.0, False, False, episode.info()
            return self._result(episode)

    def _result(self, episode: EpisodeState) -> StepResult[str]:
        self._show_end(episode)
        submitted = episode.outcome == "submitted"
        return "", episode.reward_value(), submitted, not submitted, episode.info()

    def grade(self) -> Verdict:
        """Grade the work as it is now, in a fresh sandbox. The episode continues; after its end, return its verdict.

        Processes that the policy left in its sandbox continue too, and can slow the tests down: end them with
        `sandbox.end_processes()` first.

        Raises:
            ResetNeeded: There is no episode, or it ended without a verdict.
            Unsupported: The task is judged in the policy's sandbox, which cannot continue after that.
            SandboxError: A sandbox failed.
            GradingError: The grader failed.
        """
        with self._turn_lock:
            verdict = self._current().verdict
            if verdict is not None:
                return verdict
            episode = self._running()
            if episode.task.oracle.in_place:
                raise Unsupported(
                    f"task {episode.task.task_id} is judged in the policy's sandbox, which would show it the hidden "
                    "tests: submit instead"
                )
            patch, fresh = episode.group.take_work(episode.sandbox)
            try:
                return self._grade(episode.task, patch, fresh, episode.group, complete=True)
            finally:
                episode.group.drop(fresh)

    def prepare_next(self, pool: WarmPool, task_id: str | None = None) -> None:
        """Choose the next episode's task and let `pool` start the sandbox that `reset` will use.

        The sequence of tasks does not change: a seed or a task id given to `reset` still counts. If the pool is full
        nothing is started; call again later.

        Args:
            pool: A pool of the environment's backend.
            task_id: Task that `reset` will get; None draws it as `reset` would.

        Raises:
            UsageError: The source is empty or does not hold the task.
            TaskError: The task is broken.
            SandboxClosed: The pool is closed.
        """
        if self._wanted is not None:
            return
        task_id = task_id or self._config["task_id"] or self._draw_task()
        spec = self.spec_of(task_id)
        if pool.want(spec):
            self._pool, self._wanted = pool, spec

    def use_pool(self, pool: WarmPool) -> None:
        """Take sandboxes from a pool of the environment's backend if it has one that fits."""
        self._pool = pool

    def use_mounts(self, mounts: Mapping[str, str]) -> None:
        """Mount read-only folders in the policy's sandboxes from the next `reset` on, not in those that grade.

        Args:
            mounts: As in `SandboxSpec`.
        """
        self._mounts = dict(mounts)

    def spec_of(self, task_id: str) -> SandboxSpec:
        """Return the description of the policy's sandbox for a task.

        Raises:
            UsageError: The source does not hold the task.
            TaskError: The task is broken.
        """
        return task_spec(self.source.get(task_id), self._config["sandbox_options"], self._mounts)

    # --- internals -----------------------------------------------------------------------------------

    def choose_point(self, options: Info) -> EpisodeCheckpoint | None:
        """Return the checkpoint among options of `reset`, as `reset` does before anything starts.

        Raises:
            UsageError: It does not fit to the environment, to the task or to another option.
            TaskError: The task is broken.
        """
        point = EpisodeCheckpoint.among(options)
        if point is None:
            return None
        task_id = options.get("task_id", point.task_id)
        if task_id != point.task_id:
            raise UsageError(f"the checkpoint is of task {point.task_id}, not {task_id}: leave the option task_id out")
        task, backend = self.source.get(task_id), self._config["backend"]
        start = start_of_task(task, backend, self.spec_of(task_id).image)
        if not _replays(point, options):
            point.check_start(start)
        elif point.start:  # on any backend
            point.check_start({"task": start["task"]})
        point.check_limits(self._config["max_turns"], math.inf if options.get("late") else self._time_limit(task))
        return point

    def _continue(self, episode: EpisodeState, point: EpisodeCheckpoint) -> str:
        """Take over everything of a checkpoint but the files. Return the first observation."""
        episode.turn, episode.invalid_actions, episode.invalid_row = (
            point.turn,
            point.invalid_actions,
            point.invalid_row,
        )
        episode.signs, episode.parent, episode.branch_turn = list(point.signs), point.id, point.turn
        pairs = zip(("", *point.actions), (point.observation, *point.observations), strict=True)
        episode.turns = [ShownTurn(number, *pair) for number, pair in enumerate(pairs)]
        for name, state in point.tools.items():
            if name in self._by_name:
                try:
                    self._by_name[name].load(episode.sandbox, state)
                except (KeyError, ValueError, TypeError, AttributeError) as error:
                    text = f"the checkpoint of task {point.task_id} has an invalid state of the tool {name!r}: {error}"
                    raise UsageError(text) from error
        lost = "".join(f" The state of the tool {name!r} is lost." for name in point.lost)
        note = CONTINUES.format(turn=point.turn) + lost if point.turn else ""
        last = episode.turns[-1].observation
        observation = self._join(last, note) if note else self._fit(last)
        if self.render_mode == "human":
            sys.stdout.write(format_turn(ShownTurn(0, "", observation)) + "\n")
        return observation

    def _replay(self, episode: EpisodeState, point: EpisodeCheckpoint) -> str:
        """Play the actions of a checkpoint again. Return the last observation."""
        observation = self._fit(_opening(episode))
        self._show(episode, "", observation)
        point.compare(0, observation)
        for number, action in enumerate(point.actions, 1):
            observation = self.step(action)[0]
            if episode.outcome == "infra_failed":
                raise SandboxError(
                    f"the sandbox failed when turn {number} was played again: {episode.failure_detail}", retryable=True
                )
            point.compare(number, observation)
            if episode.outcome != "running":
                raise ReplayError(f"turn {number} ended the episode ({episode.limit or 'submitted'}), unlike before")
            if episode.steps:
                raise ReplayError(f"turn {number} ended a step of task {point.task_id}, which was judged")
        now = time.monotonic()
        episode.seconds["start"] += now - episode.began
        episode.seconds["tools"] = 0.0
        episode.pause(now - episode.began - point.seconds)
        episode.parent, episode.branch_turn = point.origin or point.id, point.turn
        return observation

    def _choose_task(self, asked: str | None) -> Task:
        if asked is not None:
            if not isinstance(asked, str):
                raise UsageError(f"the reset option 'task_id' must be text, not {asked!r}")
            return self.source.get(asked)
        task_id = self._config["task_id"] or self._draw_task()
        self._drawn = None
        return self.source.get(task_id)

    def _draw_task(self) -> str:
        """Return the next task of the seeded sequence. It stays the next one until it is played."""
        if self._drawn is None:
            ids = self.source.ids()
            if not ids:
                raise UsageError(f"task source {self._config['source']!r} is empty")
            self._drawn = ids[int(self.np_random.integers(len(ids)))]
        return self._drawn

    def _forget_next(self) -> None:
        """Drop the task that was drawn ahead of time: a new seed starts a new sequence."""
        self._drawn = None
        if self._pool is not None and self._wanted is not None:
            self._pool.unwant(self._wanted)
        self._wanted = None

    def _warn_of(self, task: Task) -> None:
        """Warn once about a task whose own time the episode cuts."""
        limits = [step.time_limit for step in steps_of(task) if step.time_limit]
        if sum(limits) > self._config["time_limit"] and task.task_id not in self._hurried:
            self._hurried.add(task.task_id)
            gymnasium.logger.warn(
                f"task {task.task_id} gives a policy {sum(limits):g} s, and the environment's time_limit ends the "
                f"episode after {self._config['time_limit']:g} s: pass time_limit={sum(limits):g}"
            )

    def _find_record(self, task: Task) -> TaskRecord | None:
        """Return the record of a task in the record file. If it does not hold for the task, return None and warn."""
        if self._config["record"] is None:
            return None
        if self._records is None:
            self._records = {old.task_id: old for old in read_records(self._config["record"])}
        if why := doubt(task, self._records):
            self._warn_of_doubt(task, why)
            return None
        return self._records[task.task_id]

    def _warn_of_doubt(self, task: Task, why: str) -> None:
        """Warn that rewards of a task may be wrong, once."""
        if why and task.task_id not in self._doubted:
            self._doubted.add(task.task_id)
            gymnasium.logger.warn(f"rewards of task {task.task_id} are not to be trusted: {why}")

    def _grade(self, task: Task, patch: Patch, fresh: Sandbox, group: SandboxGroup, *, complete: bool) -> Verdict:
        counter = CounterOptions(self._config["counter"], self._config["judge_runs"])
        if self._record is not None:
            counter = counter.of_record(self._record)
        return grade(task, patch, fresh, group.fresh, complete=complete, counter=counter)

    def _open(self, task: Task, point: EpisodeCheckpoint | None, files: Snapshot | None) -> EpisodeState:
        started = time.monotonic()
        self._warn_of(task)
        self._record = self._find_record(task)
        GRADERS.load(task.oracle.grader)  # an unknown grader must fail before the episode, not after it
        group = SandboxGroup(task, self._config["backend"], self._config["sandbox_options"], self._pool, self._mounts)
        if group.spec == self._wanted:
            self._wanted = None
        with self._group_lock:
            self._group = group
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _close_group, group, os.getpid())  # if nobody calls `close`
        try:
            sandbox = group.open_sealed()
            if self._record is not None:
                backend = self._config["backend"]
                self._warn_of_doubt(task, self._record.doubt_image(task, backend, sandbox.image_digest))
            step = group.begin_step(sandbox, 0) if task.oracle.in_place else task
            passes = self._already_passes(task, group, sandbox)
            _mark_start(sandbox)
            if point is not None and files is not None:
                _restore(sandbox, point, files)
        except BaseException:
            group.close()
            raise
        now = time.monotonic()
        context = ToolContext(
            sandbox=sandbox,
            eval_cmd=task.eval_cmd,
            eval_timeout=task.eval_timeout,
            max_output=self._config["max_observation"],
        )
        episode = EpisodeState(task, group, sandbox, context, self._config["max_turns"], self._config["max_invalid"])
        episode.began = now - (point.seconds if point and files else 0.0)
        episode.ends = episode.began + self._time_limit(task)
        self._begin_work(episode, step, episode.began)
        episode.already_passes = passes
        episode.seconds["start"] = now - started
        return episode

    def _time_limit(self, task: Task) -> float:
        return float(min(self._config["time_limit"], task.time_limit or math.inf))

    def _already_passes(self, task: Task, group: SandboxGroup, sandbox: Sandbox) -> bool:
        """Return whether a folder of the user's passes unchanged, and warn once: nobody has validated it."""
        if not isinstance(self.source, LocalSource):
            return False

        def judge_unchanged() -> bool:
            patch, fresh = group.take_work(sandbox)
            try:
                resolved = self._grade(task, patch, fresh, group, complete=False).resolved
            except GradingError:
                return False
            finally:
                group.drop(fresh)
            if resolved:
                gymnasium.logger.warn(ALREADY_PASSES.format(task=task.task_id))
            return resolved

        return self.source.already_passes(judge_unchanged, lambda: group.closed)

    def _act(self, episode: EpisodeState, action: str) -> str:
        """Parse and run one action. Return the observation, not yet bounded."""
        episode.action, episode.result = None, None
        started = time.monotonic()
        try:
            episode.action = self._parse(action)
            call = episode.action.call
            episode.signs += sorted(signs_in_call(call))[:1]
            episode.result = _of_tool(call.name, self._by_name[call.name].run(episode.context, **call.arguments))
        except (AgentError, FileError) as error:  # tools need not catch file errors
            episode.invalid_actions += 1
            episode.invalid_row += 1
            text = str(error).replace(episode.sandbox.workdir, episode.sandbox.spec.workdir)
            episode.result = ToolResult(text=text, ok=False)
        else:
            episode.invalid_row = 0
        finally:
            episode.seconds["tools"] += time.monotonic() - started
        return episode.result.text + _note_on_ignored(episode.action)

    def _parse(self, action: str) -> Action:
        if len(action) > MAX_ACTION:
            raise ActionError(f"The action has {len(action)} characters; at most {MAX_ACTION} are allowed.")
        return parse_action(action, self._specs, format=self._config["action_format"])

    def _end_if_due(self, episode: EpisodeState) -> str:
        """Grade if the policy submitted or a limit is reached; else make ready for it while the policy thinks.

        Returns:
            The instruction of the next step of the task, if one has begun.
        """
        submitted = episode.result is not None and episode.result.submitted
        limit = "" if submitted else episode.limit_reached()
        over = not submitted and not limit and episode.step_is_over()
        if submitted or limit or over:
            return self._judge(episode, "time" if over else limit, go_on=submitted or over)
        episode.group.open_ahead()
        return ""

    def _judge(self, episode: EpisodeState, limit: str, *, go_on: bool) -> str:
        """Grade, and end the episode unless it may go on with a further step of the task.

        Args:
            episode: The episode.
            limit: Limit that was reached; empty if the policy submitted.
            go_on: Whether only the running step has ended.

        Returns:
            The instruction of the next step of the task, if there is one: the episode continues. Else an empty text.
        """
        started, instruction = time.monotonic(), ""
        episode.limit = limit
        try:
            if episode.task.oracle.in_place:
                episode.verdict, instruction = self._judge_step(episode, go_on=go_on)
            else:
                episode.verdict = self._judge_patch(episode)
            if episode.verdict is not None:
                episode.reward = self._reward_of(episode.verdict)
        except WORLD_ERRORS as error:
            episode.failed(error)
        except Exception as error:
            episode.failed(error)
            raise  # an error in a custom reward or grader: raise it to the user
        else:
            if episode.verdict is not None:
                episode.outcome = "agent_limit" if episode.limit else "submitted"
        finally:
            episode.seconds["grading"] += time.monotonic() - started
            if not instruction:
                self._release(episode)
        return instruction

    def _judge_step(self, episode: EpisodeState, *, go_on: bool) -> tuple[Verdict | None, str]:
        """Grade a step of the task, and begin the next one. A task without steps is its only one.

        Returns:
            The verdict on the task if it has ended, and the instruction of the next step if it has not.
        """
        task, verdicts, started, reached = episode.task, episode.steps, time.monotonic(), episode.limit_reached()
        verdicts.append(self._judge_in_place(episode))
        if is_last(task, verdicts):
            return join_steps(task, verdicts), ""
        left = len(steps_of(task)) - len(verdicts)
        if reached or not go_on or episode.sandbox.closed:
            episode.limit = episode.limit or reached
            return join_steps(task, verdicts, missed=left), ""
        try:
            step = episode.group.begin_step(episode.sandbox, len(verdicts))
        except SandboxStartError as failure:
            with self._solved(episode, len(verdicts), failure):  # the work is to blame
                verdict = join_steps(task, verdicts, missed=left)
            return verdict.model_copy(update={"notes": (*verdict.notes, str(failure))}), ""
        self._reset_tools()
        episode.limit = ""
        episode.ends += time.monotonic() - started
        self._begin_work(episode, step, time.monotonic())
        return None, step.problem_statement

    def _begin_work(self, episode: EpisodeState, step: Task, began: float) -> None:
        """Give the policy of a step its rights and its time."""
        episode.context.sandbox = for_policy(step, episode.sandbox)
        episode.context.deadline = min(episode.ends, began + (step.time_limit or math.inf))

    def _judge_in_place(self, episode: EpisodeState) -> Verdict:
        """Grade the policy's sandbox. If the task's script gives it no reward, see whether it does for the solution."""
        try:
            return episode.group.judge_in_place(episode.sandbox)
        except NoReward as failure:
            number = len(episode.steps)
            with self._solved(episode, number, failure) as fresh:
                return blame(steps_of(episode.task)[number], failure, fresh, episode.group.judge_in_place)

    @contextlib.contextmanager
    def _solved(self, episode: EpisodeState, number: int, failure: Exception) -> Iterator[Sandbox]:
        """Close the policy's sandbox after a failure, and open another for the block, at the beginning of a step.

        Raises:
            GradingError: With the task's own solutions, that step does not begin either.
            SandboxError: The sandbox was lost.
        """
        episode.group.drop(episode.sandbox).result()  # nothing of the work may slow the other one down
        with episode.group.another() as fresh:
            try:
                episode.group.solve_steps(fresh, number)
            except (GradingError, TaskError, SandboxStartError) as error:
                text = f"{failure}\nWith its own solutions, the task does not get as far: {error}"
                raise GradingError(text) from error
            yield fresh

    def _judge_patch(self, episode: EpisodeState) -> Verdict:
        """Take the work out of the policy's sandbox, close it, and grade the work in fresh ones."""
        episode.patch, fresh = episode.group.take_work(episode.sandbox)
        closing = episode.group.drop(episode.sandbox)  # it is not needed any more
        complete = self._reward is not REWARDS.load("binary")
        verdict = self._grade(episode.task, episode.patch, fresh, episode.group, complete=complete)
        episode.signs += sorted(signs_in_work(episode.patch, verdict, episode.task.oracle))
        closing.result()  # processes of the policy that are still alive could have disturbed the tests
        return verdict

    def _reward_of(self, verdict: Verdict) -> Reward:
        """Return the reward of a verdict. Work that changed the results of tests earns `alarm_reward`."""
        lost = self._config["alarm_reward"]
        if lost and verdict.counter_tests.alarms:
            return Reward(value=lost, components={"alarm": lost})
        return _check_reward(self._reward(verdict))

    def _release(self, episode: EpisodeState) -> None:
        episode.group.release()  # the reward does not wait for it; the next `reset` does
        self._reset_tools()

    def _reset_tools(self) -> None:
        for tool in self._tools:
            tool.reset()

    def _current(self) -> EpisodeState:
        if self._episode is None:
            raise ResetNeeded("there is no episode yet: call reset() first")
        return self._episode

    def _running(self) -> EpisodeState:
        episode = self._current()
        if episode.outcome != "running" or self._group is not episode.group:
            raise ResetNeeded("the episode is over: call reset() to start the next one")
        return episode

    def _fit(self, text: str) -> str:
        """Return the text bounded, and safe for every encoder and terminal."""
        return bound(harmless(text), self._config["max_observation"])

    def _join(self, observation: str, instruction: str) -> str:
        """Return an observation with the instruction of the next step, which is kept whole if it fits."""
        after = harmless(f"{instruction}\n")
        room = self._config["max_observation"] - len(after) - 2
        before = bound(harmless(observation.rstrip()), max(0, room))
        return f"{before}\n\n{after}" if before else after

    def _show(self, episode: EpisodeState, action: str, observation: str) -> None:
        turn = ShownTurn(episode.turn, action, observation)
        episode.turns.append(turn)
        if self.render_mode == "human":
            sys.stdout.write(format_turn(turn) + "\n")

    def _show_end(self, episode: EpisodeState) -> None:
        if self.render_mode == "human" and episode.outcome != "running":
            sys.stdout.write(format_end(episode.info(), episode.reward_value()) + "\n")

    # --- copies -------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        """Return everything but the live episode and what processes cannot share."""
        made_anew = {"_tools", "_specs", "_by_name", "_reward", "_source"}
        live = {"_group", "_episode", "_finalizer", "_pool", "_wanted", "_group_lock", "_turn_lock"}
        return {name: value for name, value in self.__dict__.items() if name not in made_anew | live}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._reward = REWARDS.load(self._config["reward"])
        self._tools = make_tools(self._config["tools"])
        self._set_up()


def _replays(point: EpisodeCheckpoint, options: Info) -> bool:
    """Return whether the actions of a checkpoint are played again.

    Raises:
        UsageError: The way to restore it is unknown, or it has no files.
    """
    asked = options.get("restore")
    if asked is not None and asked not in RESTORES:
        raise unknown_name("way to restore a checkpoint:", str(asked), RESTORES)
    if asked == "files" and not point.files:
        raise UsageError(f"the checkpoint of task {point.task_id} has no files: leave the option restore out")
    return asked == "replay" or not point.files


def _mark_start(sandbox: Sandbox) -> None:
    """Mark the start, if its files can be read: an episode without checkpoints needs none. `checkpoint` refuses it."""
    try:
        sandbox.mark_start()
    except FileError as error:
        logger.warning("the start of sandbox %s was not marked, so it gives no checkpoint: %s", sandbox.id, error)


def _restore(sandbox: Sandbox, point: EpisodeCheckpoint, files: Snapshot) -> None:
    """Bring a new sandbox to the state of a checkpoint.

    Raises:
        UsageError: The sandbox did not begin as that of the checkpoint, or refuses its entries.
        SandboxError: The files could not be written.
    """
    point.check_start(start_in(sandbox))
    try:
        sandbox.restore(files)
    except FileError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UsageError(f"the checkpoint of task {point.task_id} cannot be restored: {error}") from error


def _close_group(group: SandboxGroup, owner: int) -> None:
    """Close the sandboxes of an environment that was dropped. A fork of the process leaves them alone.

    A thread closes them: the garbage collector may run while its own thread holds a lock that closing needs.
    """
    if group.gone or owner != os.getpid():
        return
    closer = threading.Thread(target=group.close, name="dropped environment", daemon=True)
    try:
        closer.start()
    except RuntimeError:  # new Python versions start no thread while the interpreter exits
        with contextlib.suppress(RuntimeError):
            group.close()
    else:
        closer.join(DROP_SECONDS)


def _sample_actions(tools: Iterable[Tool], action_format: str) -> tuple[str, ...]:
    """Return the tools' own harmless examples, for `action_space.sample()`."""
    calls = (ToolCall(name=tool.name, arguments=dict(one)) for tool in tools for one in tool.examples)
    return render_possible(calls, action_format) or ("",)  # without examples, an action without effect


def _note_on_ignored(action: Action | None) -> str:
    """Return a note for policies that wrote several calls: only one of them ran."""
    if action is None or not action.ignored_calls:
        return ""
    return f"\n[Only the first call was run. Calls after it that were ignored: {action.ignored_calls}]"


def _opening(episode: EpisodeState) -> str:
    """Return the first observation. It names the folder only if that is the same on every machine."""
    sandbox = episode.sandbox
    where = f"in {sandbox.workdir}" if sandbox.workdir == sandbox.spec.workdir else "in the current folder"
    return f"{episode.task.problem_statement.rstrip()}\n\nThe repository is {where}, where commands start.\n"


def _of_tool(name: str, result: ToolResult) -> ToolResult:
    """Return the result of a tool.

    Raises:
        UsageError: It is not a `ToolResult`.
    """
    if not isinstance(result, ToolResult):
        raise UsageError(f"the tool {name!r} must return a ToolResult, not {type(result).__name__}")
    return result


def _check_reward(reward: Reward) -> Reward:
    """Return the reward.

    Raises:
        UsageError: It is not a `Reward`, or not a finite number.
    """
    if not isinstance(reward, Reward):
        raise UsageError(f"the reward function must return a Reward, not {type(reward).__name__}")
    if not math.isfinite(reward.value):
        raise UsageError(f"a reward must be a finite number, not {reward.value}: fix the reward function")
    return reward
