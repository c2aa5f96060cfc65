"""`RecordTrajectory`: a file of all episodes."""

from __future__ import annotations

import copy
import os
import time

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from ..envs import ToolEnv
from ..errors import UsageError
from ..spaces import Info, ResetResult, StepResult
from ..trajectories import MAX_PATCH, MAX_TEXT, MAX_TURNS, SHORT_TEXT, Trajectory, Turn, shortened, why_ended


class RecordTrajectory(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Records each episode and appends it to a file when it ends, or at `reset` or `close` before its end.

    In the vector version all environments write to one file.

    Args:
        env: A `SweEnv`, wrapped or not.
        path: JSONL file. With None, only `trajectory` holds the last episode.

    Raises:
        UsageError: The environment is not a `SweEnv`.

    Change logs:
        * v0: Initial version.
    """

    def __init__(self, env: gymnasium.Env[str, str], path: str | None = None) -> None:
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"RecordTrajectory needs a SweEnv, not {type(env.unwrapped).__name__}")
        path = None if path is None else os.fspath(path)
        RecordConstructorArgs.__init__(self, path=path)
        gymnasium.Wrapper.__init__(self, env)
        self._tool_env: ToolEnv = env.unwrapped
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._start: tuple[int | None, str] | None = None
        self._info: Info = {}
        self._reward = 0.0
        self._turns: list[Turn] = []
        self._bytes = 0  # size of the turns' texts
        self._written = True

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[str]:
        """Reset the environment and start a record."""
        self._write()
        self._forget()
        observation, info = self.env.reset(seed=seed, options=options)
        self._start, self._info = (seed, observation), copy.deepcopy(info)
        self._written = False
        return observation, info

    def step(self, action: str) -> StepResult[str]:
        """Step the environment and record the turn."""
        started = time.monotonic()
        observation, reward, terminated, truncated, info = self.env.step(action)
        seconds = time.monotonic() - started
        self._info = copy.deepcopy(info)
        self._reward += float(reward)
        understood = self._tool_env.last_action
        turn = Turn(
            action=action,
            thought=understood.thought if understood else "",
            tool=understood.call.name if understood else "",
            arguments=understood.call.arguments if understood else {},
            observation=observation,
            reward=float(reward),
            terminated=terminated,
            truncated=truncated,
            info=self._info,
            seconds=seconds,
        ).within(MAX_TEXT)
        size = turn.text_bytes()
        if self._bytes + size > MAX_TURNS:
            turn = turn.within(SHORT_TEXT)
        self._bytes += size
        self._turns.append(turn)
        if terminated or truncated:
            self._write()
        return observation, float(reward), terminated, truncated, info

    def end(self, limit: str) -> StepResult[str]:
        """End the episode as `SweEnv.end` does. The last turn, if any, gets the result."""
        observation, reward, terminated, truncated, info = self.env.get_wrapper_attr("end")(limit)
        self._info = copy.deepcopy(info)
        self._reward += reward
        for turn in self._turns[-1:]:
            ended = {"terminated": terminated, "truncated": truncated, "info": self._info}
            self._turns[-1] = turn.model_copy(update={**ended, "reward": turn.reward + reward})
        self._write()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write an unfinished episode, then close the environment."""
        self._write()
        super().close()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the current or last episode."""
        return tuple(self._turns)

    @property
    def trajectory(self) -> Trajectory:
        """The record of the current or last episode.

        Raises:
            UsageError: There is no episode yet.
        """
        if self._start is None:
            raise UsageError("no episode was recorded yet: call reset() first")
        (seed, observation), info = self._start, self._info
        env, spec = self._tool_env, self._tool_env.spec
        stats = env.stats
        whole = env.judged_diff
        patch = shortened(whole, MAX_PATCH)
        return Trajectory(
            task_id=info["task_id"],
            repo=stats["repo"],
            env_id=spec.id if spec else "",
            env=env.config,
            sandbox=stats["sandbox"],
            tools=tuple(env.tools),
            seed=seed,
            parent=stats.get("parent", ""),
            branch_turn=stats.get("branch_turn", 0),
            observation=observation,
            turns=tuple(self._turns),
            outcome=info["outcome"],
            reason=why_ended(info),
            reward_valid=info["reward_valid"],
            resolved=info["resolved"],
            reward=self._reward,
            info=info,
            patch=patch,
            patch_bytes=0 if patch is whole else len(whole.encode("utf-8", "surrogatepass")),
            seconds=stats["seconds"],
        )

    def _write(self) -> None:
        if self._written:
            return
        self._written = True
        if self._path is not None:
            self.trajectory.append(self._path)
