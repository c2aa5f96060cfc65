"""Plays the rows that `swe-gym tasks export --to NAME` writes, for frameworks that sample by token ids and await."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from pydantic import Field, ValidationError

from ..envs import SweEnv, make_env
from ..errors import PolicyError, UsageError, wrong_fields
from ..rollout.policies import Policy
from ..rollout.tokens import ChatTemplate, Completion, TokenPolicy
from ..types import Frozen, JsonMapping, JsonObject
from .aio import AwaitedGenerator, Sample, play
from .episodes import Episode, Slot


class RowAgent(Frozen):
    """How the episode of a row is played.

    Attributes:
        env_args: Arguments of `SweEnv`, such as `backend`, `tools` and `max_turns`.
        env_id: Registered environment id to make instead of the row's task source.
        system: System prompt. Empty: a short list of the tools.
        max_tokens: Maximum tokens of one answer.
        append_only: Keep each episode in one segment, even if the chat template would rewrite history. None: the
            adapter decides.
        wall_clock: Seconds after which an episode is cancelled and left out.
        answer_timeout: Seconds that one answer may take.
    """

    env_args: JsonObject = {}
    env_id: str | None = None
    system: str = ""
    max_tokens: int = Field(default=4096, ge=1)
    append_only: bool | None = None
    wall_clock: float = Field(default=math.inf, gt=0)
    answer_timeout: float = Field(default=1800.0, gt=0)

    @classmethod
    def make(cls, settings: JsonMapping) -> Self:
        """Return an agent with these settings. Raises UsageError if one is unknown or invalid."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise UsageError(f"settings of the agent: {wrong_fields(error)}") from error

    def make_env(self, row: JsonMapping) -> Any:
        """Make the environment of a row; nothing is started before its `reset`.

        Raises:
            UsageError: An argument is invalid, or the row names no task source.
        """
        if self.env_id:
            return make_env(self.env_id, **self.env_args)
        if "source" not in row:
            raise UsageError("the row names no task source: write it with `swe-gym tasks export`, or set env_id")
        return SweEnv(row["source"], json.loads(row.get("source_options") or "{}"), **self.env_args)

    async def play(
        self,
        row: JsonMapping,
        sample: Sample,
        tokenizer: Any,
        *,
        max_context: int,
        temperature: float = 1.0,
        append_only: bool = False,
    ) -> Episode:
        """Play the episode of a row. Arguments and errors are those of `TokenPolicy` and `play`."""
        generator = AwaitedGenerator(sample, timeout=self.answer_timeout)
        template = ChatTemplate(tokenizer)

        def make_policy(env: Any, _seed: int | None) -> Policy:
            return TokenPolicy(
                env,
                generator,
                template,
                system=self.system,
                temperature=temperature,
                max_tokens=self.max_tokens,
                max_context=max_context,
                append_only=append_only if self.append_only is None else self.append_only,
            )

        slot = Slot(find_task_id(row))
        return await play(slot, partial(self.make_env, row), make_policy, wall_clock=self.wall_clock)


def find_task_id(row: JsonMapping) -> str:
    """Return the task of a row: its column `task_id`, or that of `extra_info`.

    Raises:
        UsageError: It names none.
    """
    task_id = row.get("task_id") or (row.get("extra_info") or {}).get("task_id")
    if not task_id:
        raise UsageError("the row names no task: it needs a column task_id, or extra_info with one")
    return str(task_id)


def completion_of(output: Any, max_tokens: int, end: int | None, version: int) -> Completion:
    """Return the answer of one of verl's servers.

    Args:
        output: verl's `TokenOutput`. It does not say whether the model or the limit ended the answer.
        max_tokens: The limit.
        end: Id of the token that ends an answer.
        version: Version of the weights.

    Raises:
        PolicyError: The server aborted the answer.
    """
    ids: Sequence[int] = list(output.token_ids)
    if not ids or output.stop_reason in ("abort", "aborted"):
        raise PolicyError("the server aborted the answer", reason="server")
    cut = len(ids) >= max_tokens and ids[-1] != end
    return Completion(ids, output.log_probs or [0.0] * len(ids), "length" if cut else "stop", version)
