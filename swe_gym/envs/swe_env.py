"""`SweEnv`: a software-engineering task as a Gymnasium environment."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from ..actions import parse_action
from ..errors import ActionError, AgentError, FileError, UsageError, unknown_name
from ..grading import GRADERS, REWARDS, CounterOptions, grade
from ..grading.patch import Patch
from ..grading.rewards import binary
from ..grading.signs import signs_in_call, signs_in_work
from ..sandboxes import Sandbox, SandboxSpec
from ..sandboxes.pool import WarmPool
from ..spaces import Unicode
from ..tasks import TaskSource, check_source
from ..tasks.record import TaskRecord, doubt, read_records
from ..tools import Tool, make_tools
from ..tools.base import ToolContext
from ..tools.text import bound, harmless
from ..types import Action, Reward, Task, ToolResult, ToolSpec, Verdict
from .checks import check_format, check_kinds, check_limits, check_record, check_sandbox, json_native
from .episode import WORLD_ERRORS, Episode, ShownTurn
from .group import SandboxGroup, task_spec
from .rendering import draw_turns, format_turn, format_turns
from .samples import sample_actions
from .sources import shared_source

MAX_ACTION = 1_000_000
"""Characters an action may have. A longer one is answered with an error and does nothing."""

SANDBOX_FAILED = "The episode ended: its sandbox failed."
"""The observation when the sandbox fails: always the same, so that nothing of the failure reaches a policy."""


class SweEnv(gymnasium.Env[str, str]):
    """A repository with a problem, tools to solve it with, and a reward from tests that the policy never sees.

    ## Description

    Each episode is one task: repair this repository so that its hidden tests pass. `reset` opens an isolated
    sandbox that holds the repository and returns the issue text. Each `step` takes the policy's text, runs the
    one tool call in it and returns what the tool says. `submit` ends the episode: the work is taken out as a
    patch, put into a fresh sandbox and judged there by the task's hidden tests.

    The environment itself is deterministic: the same task, seed and actions give the same observations and
    info, byte for byte. A command that asks for the time or for randomness gets it, and its output differs.

    ## Action Space

    `Unicode(1000000)`: any text. One tool call is parsed out of it by `action_format`; the text around the call is
    the thought and does nothing. Text without a valid call does nothing either: the observation says what is
    wrong with it. `action_space.sample()` gives harmless, valid calls.

    ## Observation Space

    `Unicode(max_observation)`: what the tool says, its middle cut out where it is longer. The observation of
    `reset` is the problem statement.

    ## Rewards

    0.0 at every step but the last. At the last step, by the argument `reward`: "binary" is 1.0 where all required
    hidden tests pass and 0.0 elsewhere; "fraction" and "shaped" give parts of it. `info["reward_components"]` holds
    its named parts; their sum is the reward.

    An infrastructure failure is never a reward: the episode is truncated with reward 0.0 and
    `info["reward_valid"]` False, which tells a trainer to leave the episode out. A policy that destroys its own
    sandbox ends up here too, because from outside that cannot be told from the machine's doing. Left out of
    training, such an episode neither rewards nor punishes.

    ## Starting State

    The task's repository at its base commit, in a new sandbox. The task is `options["task_id"]`, else the argument
    `task_id`, else drawn from the source with the environment's seeded generator.

    ## Episode End

    1. Termination: the policy calls `submit`, and the work was graded.
    2. Truncation: `max_turns` steps were taken, `time_limit` seconds have passed, or `max_invalid` actions in a row
       did nothing. The work is graded as it is, and the reward counts.
    3. Truncation: the infrastructure failed; see Rewards.

    `max_episode_steps` of `gymnasium.make` cuts an episode without grading it; use `max_turns`.

    The sandbox is gone as soon as an episode ends. `step` before `reset` or after the end raises `ResetNeeded`.

    ## Info

    The same keys at every step, each of one type for ever: `task_id` str, `turn` int, `outcome` str ("running",
    "submitted", "agent_limit", "infra_failed"), `reward_valid` bool (True once the work was judged), `resolved`
    bool, `tool` str, `tool_ok` bool, `exit_code` int (-1 where no command ended by itself), `invalid_actions` int,
    `cheat_signs` int (what looks like an attempt to be rewarded without solving), `set_back` list of str (files that
    the policy wrote and that did not count, at most 50; empty before the end), `limit` str ("", "turns", "time",
    "invalid", or what `end` was given), `failure` str, `reward_components` dict of float, and the counts of hidden
    tests `fail_to_pass_passed`, `fail_to_pass_total`, `pass_to_pass_passed`, `pass_to_pass_total` int (0 before the
    end; -1 passed where the reward did not need to know), `counter_tests` int (tests that must start passing and have
    a counter-test; 0 before the end).

    ## Arguments

    | Parameter | Type | Default | Description |
    |---|---|---|---|
    | `source` | str | required | Where tasks come from: a name of `swe_gym.tasks.SOURCES` or "module:Class" |
    | `source_options` | dict | `None` | Arguments of the source |
    | `task_id` | str | `None` | Always this task |
    | `backend` | str | `"local"` | Kind of sandbox |
    | `sandbox_options` | dict | `None` | Fields of `SandboxSpec`, such as `memory_mb` or `min_isolation` |
    | `tools` | str or list | `"default"` | A preset, or names of tools |
    | `action_format` | str | `"auto"` | How tool calls are written; "auto" understands all formats |
    | `reward` | str | `"binary"` | A name of `swe_gym.grading.REWARDS` |
    | `counter` | str | `"few"` | Tests that must keep passing and are countered: "few", or "all" |
    | `judge_runs` | int | `2` | Runs of the tests on resolved work, an even number |
    | `max_turns` | int | `50` | Steps until truncation |
    | `time_limit` | float | `1800.0` | Seconds from `reset` until truncation; grading is not counted |
    | `max_observation` | int | `16000` | Characters of an observation |
    | `max_invalid` | int | `10` | Actions in a row that may do nothing until truncation; `None` is no limit |
    | `record` | str | `None` | File of `swe-gym validate`; a task that it does not call valid brings a warning |
    | `render_mode` | str | `None` | "ansi", "human" or "rgb_array" |

    All of them are plain JSON and checked at once; nothing is started before `reset`.

    ## Version History

    * v0: Initial version.
    """

    metadata = {"render_modes": ["ansi", "human", "rgb_array"], "render_fps": 2}

    def __init__(
        self,
        source: str,
        source_options: dict[str, Any] | None = None,
        *,
        task_id: str | None = None,
        backend: str = "local",
        sandbox_options: dict[str, Any] | None = None,
        tools: str | list[str] = "default",
        action_format: str = "auto",
        reward: str = "binary",
        counter: str = "few",
        judge_runs: int = 2,
        max_turns: int = 50,
        time_limit: float = 1800.0,
        max_observation: int = 16_000,
        max_invalid: int | None = 10,
        record: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._config = json_native(
            source=source,
            source_options=source_options or {},
            task_id=task_id,
            backend=backend,
            sandbox_options=sandbox_options or {},
            tools=tools,
            action_format=action_format,
            reward=reward,
            counter=counter,
            judge_runs=judge_runs,
            max_turns=max_turns,
            time_limit=time_limit,
            max_observation=max_observation,
            max_invalid=max_invalid,
            record=record,
            render_mode=render_mode,
        )
        check_kinds(self._config)
        check_record(record)
        CounterOptions(counter, judge_runs)  # type: ignore[arg-type]  # it checks its arguments
        check_limits(max_turns=max_turns, time_limit=time_limit, max_observation=max_observation)
        if max_invalid is not None:
            check_limits(max_invalid=max_invalid)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise unknown_name("render mode", render_mode, self.metadata["render_modes"])
        check_source(source, source_options or {})
        check_sandbox(backend, sandbox_options or {})
        self._reward = REWARDS.load(reward)
        self._tools: list[Tool] = make_tools(tools)
        check_format(action_format, [tool.spec for tool in self._tools])
        self.render_mode = render_mode
        self.action_space = Unicode(MAX_ACTION, examples=sample_actions(self._tools, action_format))
        self.observation_space = Unicode(max_observation)
        self._drawn: str | None = None  # the task of the next episode, where it was drawn ahead
        self._set_up()

    def _set_up(self) -> None:
        """What an unopened environment starts from; also a copy that came out of a pickle."""
        self._specs = [tool.spec for tool in self._tools]
        self._by_name = {tool.name: tool for tool in self._tools}
        self._source: TaskSource | None = None
        self._records: dict[str, TaskRecord] | None = None
        self._doubted: set[str] = set()
        self._group: SandboxGroup | None = None
        self._episode: Episode | None = None
        self._pool: WarmPool | None = None
        self._wanted: SandboxSpec | None = None  # what the pool was asked for
        self._group_lock = threading.Lock()  # guards _group, which close() may take from any thread
        self._turn_lock = threading.RLock()  # held while tools run; re-entrant, as a signal handler may close

    # --- the Gymnasium verbs ----------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode in a new sandbox.

        Args:
            seed: Of the generator that draws the task.
            options: `{"task_id": ...}` chooses the task.

        Returns:
            The problem statement, and info.

        Raises:
            UsageError: No such task or option, or the machine cannot do what was asked.
            SandboxError: The sandbox did not come up, nor at a second try where one made sense.
            TaskError: The task is broken.
        """
        super().reset(seed=seed)
        for name in options or {}:
            if name != "task_id":
                raise unknown_name("reset option", name, ["task_id"])
        if seed is not None:
            self._forget_next()
        self.close()
        with self._turn_lock:
            episode = self._open(self._choose_task((options or {}).get("task_id")))
            self._episode = episode
            observation = self._fit(_opening(episode))
            self._show(episode, "", observation)
            return observation, episode.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the tool call in `action`.

        Never raises on any text. A call that makes no sense is answered in the observation; trouble with the
        sandbox or the grader ends the episode without a reward.

        Raises:
            ResetNeeded: There is no running episode.
            UsageError: The action is no text.
        """
        if not isinstance(action, str):
            raise UsageError(
                f"an action is text, not {type(action).__name__}; a message is given as its JSON, json.dumps(message)"
            )
        with self._turn_lock:
            episode = self._running()
            episode.turn += 1
            try:
                observation = self._act(episode, action)
            except WORLD_ERRORS as error:
                observation = SANDBOX_FAILED
                episode.failed(error)
                self._free(episode)
            else:
                self._end_if_due(episode)
            observation = self._fit(observation)
            self._show(episode, action, observation)
            terminated = episode.outcome == "submitted"
            truncated = episode.outcome in ("agent_limit", "infra_failed")
            return observation, episode.reward_value(), terminated, truncated, episode.info()

    def render(self) -> str | np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The last turns: text for "ansi", a picture of shape (640, 960, 3) for "rgb_array", nothing for "human"."""
        turns = list(self._current().shown)
        if self.render_mode == "ansi":
            return format_turns(turns)
        if self.render_mode == "rgb_array":
            return draw_turns(turns)
        return None

    def close(self) -> None:
        """End the episode and free everything. Idempotent, from any thread; a running call ends within a second."""
        with self._group_lock:
            group, self._group = self._group, None
        if group is not None:
            group.close()
        # A step that runs in another thread ends now, because its sandbox is gone, and drops the tools' state.
        if self._turn_lock.acquire(timeout=5.0):
            try:
                self._drop_tool_state()
            finally:
                self._turn_lock.release()

    # --- beyond Gymnasium -------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The arguments it was made with, as plain JSON: `SweEnv(**env.config)` is the same environment."""
        config: dict[str, Any] = json.loads(json.dumps(self._config))
        return config

    @property
    def source(self) -> TaskSource:
        """Where the tasks come from; loaded at first use and shared with environments that ask for the same."""
        if self._source is None:
            self._source = shared_source(self._config["source"], self._config["source_options"])
        return self._source

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What a policy may do, in the form that LLM APIs take."""
        return tuple(self._specs)

    @property
    def task(self) -> Task:
        """The task of the current or last episode. Its oracle is for graders."""
        return self._current().task

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the current episode; closed once the episode has ended."""
        return self._current().sandbox

    @property
    def last_action(self) -> Action | None:
        """The last action as it was understood; None where it held no valid call."""
        return self._current().action

    @property
    def verdict(self) -> Verdict | None:
        """What the grader found at the end of the episode; None before and where it could not judge."""
        return self._current().verdict

    @property
    def stats(self) -> dict[str, Any]:
        """What is not in `info`, or not in full: seconds, sandbox, failure, kinds of signs of cheating, `set_back`."""
        episode = self._current()
        return {
            "seconds": dict(episode.seconds),
            "sandbox": episode.sandbox.capabilities.model_dump(mode="json"),
            "failure": episode.failure_detail,
            "cheat_signs": list(episode.signs),
            "set_back": episode.set_back(),
        }

    @property
    def judged_diff(self) -> str:
        """The work that was judged at the end of the episode as a git diff; empty before."""
        patch = self._current().patch
        return patch.diff() if patch else ""

    def patch(self) -> Patch:
        """The work so far, or the work that was judged, as a patch against the task's original state.

        Raises:
            ResetNeeded: There was no episode yet.
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

    def end(self, limit: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode here, as at a limit of its own: the work is graded as it is and the reward counts.

        For limits that only the caller can see, such as tokens and cost.

        Args:
            limit: What `info["limit"]` shall say.

        Returns:
            As `step` does, with an empty observation.

        Raises:
            ResetNeeded: There is no running episode.
            UsageError: The limit has no name.
        """
        if not limit:
            raise UsageError("end() needs the name of the limit that was reached")
        with self._turn_lock:
            episode = self._running()
            self._judge(episode, limit)
            return "", episode.reward_value(), False, True, episode.info()

    def grade(self) -> Verdict:
        """Judge the work as it is now, in a fresh sandbox. The episode goes on; after its end this is its verdict.

        Raises:
            ResetNeeded: There is no episode, or it ended without a verdict.
            SandboxError: A sandbox failed.
            GradingError: No verdict is possible.
        """
        with self._turn_lock:
            verdict = self._current().verdict
            if verdict is not None:
                return verdict
            episode = self._running()
            patch, fresh = episode.group.take_work(episode.sandbox)
            try:
                return self._grade(episode.task, patch, fresh, episode.group, complete=True)
            finally:
                episode.group.drop(fresh)

    def prepare_next(self, pool: WarmPool, task_id: str | None = None) -> None:
        """Choose the next episode's task now, and have `pool` start its sandbox, which `reset` will take from there.

        Which tasks are played does not change by it: a seed, or a task asked for by name, counts as ever. Where the
        pool has no room nothing is started; calling again tries again.

        Args:
            pool: Of the environment's backend.
            task_id: The task that `reset` will be asked for; None draws it as `reset` would.

        Raises:
            UsageError: The source holds no tasks, or not this one.
            TaskError: The task is broken.
            SandboxClosed: The pool is closed.
        """
        if self._wanted is not None:
            return
        task_id = task_id or self._config["task_id"] or self._draw_task()
        spec = task_spec(self.source.get(task_id), self._config["sandbox_options"])
        if pool.want(spec):
            self._pool, self._wanted = pool, spec

    # --- how it is done -----------------------------------------------------------------------------------

    def _choose_task(self, asked: str | None) -> Task:
        if asked is not None:
            if not isinstance(asked, str):
                raise UsageError(f"the reset option 'task_id' must be text, the id of a task, not {asked!r}")
            return self.source.get(asked)
        task_id = self._config["task_id"] or self._draw_task()
        self._drawn = None
        return self.source.get(task_id)

    def _draw_task(self) -> str:
        """The next task of the seeded sequence, which stays the next one until it is played."""
        if self._drawn is None:
            ids = self.source.ids()
            if not ids:
                raise UsageError(f"task source {self._config['source']!r} holds no tasks")
            self._drawn = ids[int(self.np_random.integers(len(ids)))]
        return self._drawn

    def _forget_next(self) -> None:
        """A new seed begins a new sequence: what was drawn ahead of the old one is not played."""
        self._drawn = None
        if self._pool is not None and self._wanted is not None:
            self._pool.unwant(self._wanted)
        self._wanted = None

    def _warn_of(self, task: Task) -> None:
        """Say once of a task that the record file does not vouch for it."""
        if self._config["record"] is None or task.task_id in self._doubted:
            return
        if self._records is None:
            self._records = {old.task_id: old for old in read_records(self._config["record"])}
        if why := doubt(task, self._records):
            self._doubted.add(task.task_id)
            gymnasium.logger.warn(f"rewards of task {task.task_id} are not to be trusted: {why}")

    def _counter_options(self, task: Task) -> CounterOptions:
        """How far counter-tests go; a record says which changes prove nothing."""
        record = (self._records or {}).get(task.task_id)
        return CounterOptions(
            counter=self._config["counter"],
            runs=self._config["judge_runs"],
            unfit=record.unfit if record is not None else {},
        )

    def _grade(self, task: Task, patch: Patch, fresh: Sandbox, group: SandboxGroup, *, complete: bool) -> Verdict:
        record = (self._records or {}).get(task.task_id)
        complete = complete or (record is not None and record.disturbing)
        return grade(task, patch, fresh, group.fresh, complete=complete, counter=self._counter_options(task))

    def _open(self, task: Task) -> Episode:
        started = time.monotonic()
        self._warn_of(task)
        GRADERS.load(task.oracle.grader)  # an unknown one is found now and not when the work is done
        group = SandboxGroup(task, self._config["backend"], self._config["sandbox_options"], self._pool)
        if group.spec == self._wanted:
            self._wanted = None
        with self._group_lock:
            self._group = group
        try:
            sandbox = group.open_sealed()
        except BaseException:
            group.close()
            raise
        now = time.monotonic()
        context = ToolContext(
            sandbox=sandbox,
            eval_cmd=task.eval_cmd,
            eval_timeout=task.eval_timeout,
            max_output=self._config["max_observation"],
            deadline=now + self._config["time_limit"],
        )
        episode = Episode(task, group, sandbox, context, self._config["max_turns"], self._config["max_invalid"])
        episode.seconds["start"] = now - started
        return episode

    def _act(self, episode: Episode, action: str) -> str:
        """Parse and run one action; the observation, not yet bounded."""
        episode.action, episode.result = None, None
        started = time.monotonic()
        try:
            episode.action = self._parse(action)
            call = episode.action.call
            episode.signs += sorted(signs_in_call(call))[:1]
            episode.result = _of_tool(call.name, self._by_name[call.name].run(episode.context, **call.arguments))
        except (AgentError, FileError) as error:  # a tool need not catch what the file system says to the policy
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

    def _end_if_due(self, episode: Episode) -> None:
        """Grade where the policy submitted or a limit is reached."""
        submitted = episode.result is not None and episode.result.submitted
        limit = "" if submitted else episode.limit_reached()
        if submitted or limit:
            self._judge(episode, limit)

    def _judge(self, episode: Episode, limit: str) -> None:
        """Grade and end it: at a limit, or where `limit` is empty because the policy submitted."""
        started = time.monotonic()
        try:
            episode.patch, fresh = episode.group.take_work(episode.sandbox)
            with episode.group.dropping(episode.sandbox):  # nothing of it is needed any more
                complete = self._reward is not binary
                episode.verdict = self._grade(episode.task, episode.patch, fresh, episode.group, complete=complete)
            episode.signs += sorted(signs_in_work(episode.patch, episode.verdict, episode.task.oracle))
            episode.group.drop(fresh)
            episode.reward = _finite(self._reward(episode.verdict))
        except WORLD_ERRORS as error:
            episode.failed(error)
        except Exception as error:
            episode.failed(error)
            raise  # a mistake in a reward or a grader of the user's: they want to see it
        else:
            episode.outcome = "agent_limit" if limit else "submitted"
            episode.limit = limit
        finally:
            episode.seconds["grading"] += time.monotonic() - started
            self._free(episode)

    def _free(self, episode: Episode) -> None:
        episode.group.close()
        self._drop_tool_state()

    def _drop_tool_state(self) -> None:
        for tool in self._tools:
            tool.reset()

    def _current(self) -> Episode:
        if self._episode is None:
            raise ResetNeeded("there is no episode yet: call reset() first")
        return self._episode

    def _running(self) -> Episode:
        episode = self._current()
        if episode.outcome != "running" or self._group is not episode.group:
            raise ResetNeeded("the episode is over: call reset() to start the next one")
        return episode

    def _fit(self, text: str) -> str:
        """Text that is short enough, and that every encoder and terminal takes."""
        return bound(harmless(text), self._config["max_observation"])

    def _show(self, episode: Episode, action: str, observation: str) -> None:
        turn = ShownTurn(episode.turn, action, observation)
        episode.shown.append(turn)
        if self.render_mode == "human":
            sys.stdout.write(format_turn(turn) + "\n")

    # --- copies -------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the live episode, and what cannot be shared between processes."""
        made_anew = {"_tools", "_specs", "_by_name", "_reward", "_source"}
        live = {"_group", "_episode", "_pool", "_wanted", "_group_lock", "_turn_lock"}
        return {name: value for name, value in self.__dict__.items() if name not in made_anew | live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reward = REWARDS.load(self._config["reward"])
        self._tools = make_tools(self._config["tools"])
        self._set_up()


def _note_on_ignored(action: Action | None) -> str:
    """What a policy must know that wrote several calls: all but one of them did nothing."""
    if action is None or not action.ignored_calls:
        return ""
    return f"\n[Only the first call was run. Calls after it that were ignored: {action.ignored_calls}]"


def _opening(episode: Episode) -> str:
    """The first observation. It names the folder only where it is the same on every machine."""
    sandbox = episode.sandbox
    where = f"in {sandbox.workdir}" if sandbox.workdir == sandbox.spec.workdir else "in the current folder"
    return f"{episode.task.problem_statement.rstrip()}\n\nThe repository is {where}, where commands start.\n"


def _of_tool(name: str, result: ToolResult) -> ToolResult:
    """What a tool of the user's returned.

    Raises:
        UsageError: It is something else, such as its text alone.
    """
    if not isinstance(result, ToolResult):
        raise UsageError(f"the tool {name!r} must return a ToolResult, not {type(result).__name__}")
    return result


def _finite(reward: Reward) -> Reward:
    """A reward that a trainer can use.

    Raises:
        UsageError: It is none, or not a finite number.
    """
    if not isinstance(reward, Reward):
        raise UsageError(f"the function given as reward= must return a Reward, not {type(reward).__name__}")
    if not math.isfinite(reward.value):
        raise UsageError(f"a reward must be a finite number, not {reward.value}: look at the function given as reward=")
    return reward
