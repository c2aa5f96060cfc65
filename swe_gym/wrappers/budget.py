"""`Budget`: a limit of tokens, turns or seconds for each episode."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable

import gymnasium
from gymnasium.spaces import Text
from gymnasium.utils import RecordConstructorArgs

from ..envs import EpisodeCheckpoint, ToolEnv
from ..errors import UsageError
from ..spaces import Info, ResetResult, StepResult


class Budget(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Ends an episode when its budget is used up. The work is graded as it is, and the reward counts.

    Tokens are those of all observations and actions, as in a model's context. `info["tokens_left"]` and
    `info["turns_left"]` (int, present if there is such a budget) count down; at the end, `info["limit"]` is "tokens",
    "turns" or "seconds". The budget is checked after each step: the step that exceeds it is the last one. Seconds count
    from `reset`, including the policy's time.

    Apply it directly to the environment: wrappers of other libraries below it do not see the end.

    Args:
        env: A `SweEnv`, wrapped or not.
        tokens: Maximum number of tokens, at least 1.
        turns: Maximum number of steps.
        seconds: Maximum number of seconds.
        count_tokens: A function that counts the tokens of a text, or its location as "module:name". By default a token
            is four characters, a fair estimate for English and code.

    Raises:
        UsageError: There is no positive budget, or the environment is not a `SweEnv` of texts.

    Change logs:
        * v0: Initial version.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        tokens: int | None = None,
        turns: int | None = None,
        seconds: float | None = None,
        count_tokens: str | Callable[[str], int] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, tokens=tokens, turns=turns, seconds=seconds, count_tokens=count_tokens)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.unwrapped, ToolEnv):
            raise UsageError(f"Budget needs a SweEnv, not {type(env.unwrapped).__name__}")
        if not isinstance(env.observation_space, Text) or not isinstance(env.action_space, Text):
            raise UsageError("Budget needs texts: put it around the environment, below wrappers that return numbers")
        given = [amount for amount in (tokens, turns, seconds) if amount is not None]
        if not given or min(given) <= 0:
            raise UsageError(
                f"Budget needs a positive number of tokens, turns or seconds: {tokens=}, {turns=}, {seconds=}"
            )
        self._tokens, self._turns, self._seconds = tokens, turns, seconds
        self._count = pkgutil.resolve_name(count_tokens) if isinstance(count_tokens, str) else count_tokens or _guess
        self._used_tokens = self._used_turns = 0
        self._started = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult[str]:
        """Start an episode with a full budget, or with what was left of it at `options["checkpoint"]`."""
        observation, info = self.env.reset(seed=seed, options=options)
        point, space = EpisodeCheckpoint.among(options), self.env.observation_space
        turns = [("", observation)]
        if point is not None and isinstance(space, Text):
            turns = point.turns_with(observation, space.max_length)
        self._used_tokens, self._used_turns = 0, point.turn if point else 0
        self._started = time.monotonic() - (point.seconds if point else 0.0)
        for action, text in turns:
            self._use(action + text)
        return observation, self._add_to_info(info)

    def step(self, action: str) -> StepResult[str]:
        """Take a step. End the episode if the budget is used up."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._used_turns += 1
        self._use(action + observation)
        limit = self._over()
        if limit and not terminated and not truncated:
            _, judged, terminated, truncated, info = self.end(limit)
            reward = float(reward) + judged  # wrappers below may have rewarded the step
        return observation, float(reward), terminated, truncated, self._add_to_info(info)

    def end(self, limit: str) -> StepResult[str]:
        """End the episode as `SweEnv.end` does."""
        observation, reward, terminated, truncated, info = self.env.get_wrapper_attr("end")(limit)
        return observation, reward, terminated, truncated, self._add_to_info(info)

    def _use(self, text: str) -> None:
        if self._tokens is not None:
            self._used_tokens += self._count(text)

    def _over(self) -> str:
        if self._tokens is not None and self._used_tokens >= self._tokens:
            return "tokens"
        if self._turns is not None and self._used_turns >= self._turns:
            return "turns"
        if self._seconds is not None and time.monotonic() - self._started >= self._seconds:
            return "seconds"
        return ""

    def _add_to_info(self, info: Info) -> Info:
        left = {}
        if self._tokens is not None:
            left["tokens_left"] = max(0, self._tokens - self._used_tokens)
        if self._turns is not None:
            left["turns_left"] = max(0, self._turns - self._used_turns)
        return {**info, **left}


def _guess(text: str) -> int:
    return -(-len(text) // 4)
