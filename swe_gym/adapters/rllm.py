"""The adapter for rLLM: a workflow that plays whole episodes.

    AgentTrainer(workflow_class=SweGymWorkflow, workflow_args={"agent": {"env_args": {"backend": "ags"}}}, ...)

The workflow needs an engine that takes and returns token ids, such as rLLM's engine of verl. Tasks are the rows of
`swe-gym tasks export ~/.rllm/datasets/NAME/SPLIT.parquet --to rllm`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..errors import MissingDependency, UsageError
from ..rollout.tokens import Completion
from ..types import JsonObject
from .aio import RowAgent, completion_of
from .episodes import Episode, Row

try:
    from rllm import types
    from rllm.engine.rollout.rollout_engine import ModelOutput
    from rllm.workflows.workflow import TerminationReason, Workflow
except ImportError as error:
    raise MissingDependency(
        f"this adapter needs rLLM, which is not on the package index: see docs/integrations/rllm.md ({error})"
    ) from error

REASONS = {
    "turns": TerminationReason.MAX_TURNS_EXCEEDED,
    "time": TerminationReason.TIMEOUT,
    "context": TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
}
"""Reason why an episode ended -> rLLM's name for it, which `rllm.compact_filtering` may leave out."""


class SweGymWorkflow(Workflow):
    """Plays the task of a row, by token ids.

    Args:
        agent: Settings of `RowAgent`, such as `{"max_tokens": 2048, "env_args": {"backend": "ags"}}`.
        **rllm: Arguments of rLLM's `Workflow`.

    Raises:
        UsageError: A setting is invalid, or the engine does not take token ids.
    """

    def __init__(self, *, agent: JsonObject | None = None, **rllm: Any) -> None:
        super().__init__(**rllm)
        if not self.rollout_engine.supports_token_in_token_out:
            raise UsageError("SweGymWorkflow needs an engine that takes token ids: use rLLM's backend verl")
        self._agent = RowAgent.make(agent or {})

    async def run(self, task: JsonObject, uid: str, **_kwargs: Any) -> types.Episode:
        """Play an episode.

        Returns:
            An episode with one trajectory. It has none if the infrastructure failed: rLLM then leaves it out of the
            batch and of its group.
        """
        engine = self.rollout_engine

        async def sample(
            prompt: Sequence[int],
            *,
            max_tokens: int,
            temperature: float,  # noqa: ARG001  the engine's
            seed: int | None,  # noqa: ARG001  the engine's
        ) -> Completion:
            output = await engine.get_token_output_from_token_input(
                list(prompt), application_id=uid, max_tokens=max_tokens, enforce_max_prompt_length=False
            )
            return completion_of(output, max_tokens, engine.tokenizer.eos_token_id, engine.weight_version)

        most = engine.max_prompt_length + engine.max_response_length
        return make_episode(await self._agent.play(task, sample, engine.tokenizer, max_context=most), task, uid)


def make_episode(episode: Episode, task: JsonObject, uid: str) -> types.Episode:
    """Return a played episode as rLLM's."""
    record = episode.trajectory
    steps = [step for row in episode.rows for step in _split_answers(row)]
    lost = episode.reward is None
    trajectory = types.Trajectory(name="swe_gym", task=task, steps=steps, reward=episode.reward)
    reason = TerminationReason.UNKNOWN if lost else REASONS.get(record.reason, TerminationReason.ENV_DONE)
    return types.Episode(
        id=uid,
        task=task,
        trajectories=[] if lost else [trajectory],
        is_correct=not lost and record.resolved,
        termination_reason=reason,  # not ERROR: rLLM would play it again, and then stop the training
        metrics={"infra_failed": float(lost)},
        metadata={"failure": episode.failure, "reason": record.reason},
    )


def _split_answers(row: Row) -> Iterator[types.Step]:
    """Yield a step for each answer of a row: its prompt, and its tokens. rLLM joins them to one row again."""
    ids = [*row.prompt_ids, *row.response_ids]
    edges = [index for index, (one, two) in enumerate(pairwise([0, *row.mask, 0])) if one != two]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        first = len(row.prompt_ids) + start
        output = ModelOutput(
            prompt_ids=ids[:first],
            completion_ids=row.response_ids[start:end],
            logprobs=row.logprobs[start:end],
            prompt_length=first,
            completion_length=end - start,
            weight_version=row.versions[start],
        )
        yield types.Step(model_output=output)
