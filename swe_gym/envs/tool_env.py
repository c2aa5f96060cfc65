"""What wrappers and policies use of an environment, wherever its sandboxes are."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium

from ..spaces import StepResult
from ..types import Action, JsonObject, ToolSpec


class ToolEnv(gymnasium.Env[str, str]):
    """An environment whose actions are tool calls: `SweEnv`, or one on a server.

    `close` may be called from any thread and ends a running call.
    """

    @property
    def config(self) -> JsonObject:
        """The arguments of the environment as plain JSON, among them `action_format`."""
        raise NotImplementedError

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the policy, in the form that LLM APIs take."""
        raise NotImplementedError

    @property
    def last_action(self) -> Action | None:
        """The last action as parsed; None if it held no valid call."""
        raise NotImplementedError

    @property
    def stats(self) -> JsonObject:
        """Details beyond `info`: repository, seconds, sandbox and its id, failure, cheat signs, all of `set_back`."""
        raise NotImplementedError

    @property
    def judged_diff(self) -> str:
        """The graded work as a git diff; empty before the end of the episode."""
        raise NotImplementedError

    def end(self, limit: str) -> StepResult[str]:
        """End the episode at a limit that the caller measures, and grade the work as it is."""
        raise NotImplementedError
