"""The adapter for verl: an agent loop, `swe_gym`, that plays whole episodes.

Name this file as `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: swe_gym
      _target_: swe_gym.adapters.verl.SweGymAgentLoop

and write the rows with `swe-gym tasks export train.parquet --to verl`. The settings are those of `RowAgent`, in the
configuration: `env_args.backend=docker`, `env_id=SWE/Toy-v0`, and the others as `agent_args.max_tokens=2048`.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from ..errors import MissingDependency, UsageError
from ..rollout.tokens import Completion
from ..trajectories import Trajectory
from ..types import JsonObject
from .aio import RowAgent, completion_of
from .episodes import METRICS, Episode, Row, known_numbers

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise MissingDependency(f"this adapter needs verl: pip install 'swe-gym[verl]' ({error})") from error


@register("swe_gym")
class SweGymAgentLoop(AgentLoopBase):
    """Plays the task of a row. Needs verl's trainer V1 (`trainer.use_v1`, its default).

    The conversation has at most `prompt_length + response_length` tokens; a full one ends the episode, which is graded.
    An episode stays in one output (`append_only`) unless `algorithm.adv_estimator` is "grpo": verl computes the other
    advantages per output, not per episode.

    Raises:
        UsageError: A setting is invalid.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not OmegaConf.select(self.config, "trainer.use_v1", default=True):
            raise UsageError("the agent loop swe_gym needs verl's trainer V1: set trainer.use_v1=True")
        self._agent = RowAgent.make(
            {
                **_section(self.config, "agent_args"),
                "env_id": OmegaConf.select(self.config, "env_id"),
                "env_args": _section(self.config, "env_args"),
            }
        )
        self._append_only = OmegaConf.select(self.config, "algorithm.adv_estimator") != "grpo"

    async def run(self, sampling_params: JsonObject, **row: Any) -> list[AgentLoopOutput]:
        """Play an episode.

        Returns:
            An output for each segment. None if the infrastructure failed: verl then leaves the episode out of the batch
            and of its group's baseline.
        """
        request_id = uuid4().hex  # one for all answers: they go to one server, whose prefix cache has the conversation

        async def sample(
            prompt: Sequence[int],
            *,
            max_tokens: int,
            temperature: float,
            seed: int | None,  # noqa: ARG001  verl's servers have their own
        ) -> Completion:
            output = await self.server_manager.generate(
                request_id=request_id,
                prompt_ids=list(prompt),
                sampling_params={**sampling_params, "temperature": temperature, "max_tokens": max_tokens},
            )
            version = output.extra_fields.get("global_steps") or 0
            return completion_of(output, max_tokens, self.tokenizer.eos_token_id, version)

        episode = await self._agent.play(
            row.get("extra_info") or {},
            sample,
            self.tokenizer,
            max_context=self.rollout_config.prompt_length + self.rollout_config.response_length,
            temperature=sampling_params["temperature"],
            append_only=self._append_only,
        )
        return [] if episode.reward is None else [self._output(episode, one) for one in episode.rows]

    def _output(self, episode: Episode, row: Row) -> AgentLoopOutput:
        record = episode.trajectory
        seconds = {name: record.seconds.get(name, 0.0) for name in ("policy", "tools", "grading")}
        versions = [version for version in row.versions if version >= 0]
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs if self.rollout_config.calculate_log_probs else None,
            reward_score=episode.reward,
            num_turns=2 * len(record.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=seconds["policy"], tool_calls=seconds["tools"], compute_score=seconds["grading"]
            ),
            extra_fields={
                "reward_extra_info": _extra_info(record),
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
                "turn_scores": [],
                "tool_rewards": [],
            },
        )


def _extra_info(record: Trajectory) -> dict[str, float | str]:
    """Return what verl averages in validation, and the texts that it writes to the dump of the generations."""
    info = record.info
    known = known_numbers(info, METRICS)  # none is called "acc": verl would add a 0 to it for each lost episode
    ended = {"outcome": record.outcome, "limit": str(info["limit"])}
    return {**known, **ended, "agent_limit": float(record.outcome == "agent_limit"), "lost_tries": record.tries - 1.0}


def _section(config: Any, name: str) -> JsonObject:
    section = OmegaConf.select(config, name)
    return {} if section is None else dict(OmegaConf.to_container(section, resolve=True))
