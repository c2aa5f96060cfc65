"""The adapter for verl: an agent loop, `swe_gym`, that plays whole episodes.

Name this file as `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: swe_gym
      _target_: swe_gym.adapters.verl.SweGymAgentLoop

and write the rows with `swe-gym tasks export train.parquet --to verl`. The settings are two sections of the
configuration: `env_args` has the arguments of `SweEnv` (`env_args.backend=docker`), `agent_args` those of
`AgentSettings` (`agent_args.max_tokens=2048`). `env_id=SWE/Toy-v0` makes another environment than the row's.
"""

import math
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from pydantic import Field, ValidationError

from ..errors import MissingDependency, PolicyError, UsageError, wrong_fields
from ..rollout.policy import Policy
from ..rollout.tokens import ChatTemplate, Completion, TokenPolicy
from ..types import Frozen, JsonObject
from .aio import AwaitedGenerator, play
from .episodes import Episode, Slot
from .exported import make_env
from .rows import Row

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise MissingDependency(f"this adapter needs verl: pip install 'swe-gym[verl]' ({error})") from error


class AgentSettings(Frozen):
    """The section `agent_args` of the configuration.

    Attributes:
        system: System prompt. Empty: a short list of the tools.
        max_tokens: Maximum tokens of one answer.
        append_only: Keep each episode in one row, even if the chat template would rewrite history. None: unless
            `algorithm.adv_estimator` is "grpo", the only one that verl computes per episode, not per row.
        wall_clock: Seconds after which an episode is cancelled and left out.
        answer_timeout: Seconds that one answer may take.
    """

    system: str = ""
    max_tokens: int = Field(default=4096, ge=1)
    append_only: bool | None = None
    wall_clock: float = Field(default=math.inf, gt=0)
    answer_timeout: float = Field(default=1800.0, gt=0)


class Sampler:
    """Samples the answers of one episode from verl's servers.

    One request id keeps its answers on one server, whose prefix cache holds the conversation.

    Args:
        client: verl's `LLMServerClient`.
        sampling: verl's sampling parameters.
        end: Id of the token that ends an answer.
    """

    def __init__(self, client: Any, sampling: JsonObject, end: int) -> None:
        self._client, self._sampling, self._end = client, sampling, end
        self._request_id = uuid4().hex

    async def __call__(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int | None,  # noqa: ARG002  verl's
    ) -> Completion:
        """Sample an answer. Raises PolicyError if the server aborts it."""
        output = await self._client.generate(
            request_id=self._request_id,
            prompt_ids=list(prompt),
            sampling_params={**self._sampling, "temperature": temperature, "max_tokens": max_tokens},
        )
        ids = list(output.token_ids)
        if not ids or output.stop_reason in ("abort", "aborted"):
            raise PolicyError("verl's server aborted the answer", reason="server")
        cut = len(ids) >= max_tokens and ids[-1] != self._end  # verl reports "completed" for both
        version = output.extra_fields.get("global_steps") or 0
        return Completion(ids, output.log_probs or [0.0] * len(ids), "length" if cut else "stop", version)


@register("swe_gym")
class SweGymAgentLoop(AgentLoopBase):  # type: ignore[misc]  # untyped
    """Plays the task of a row. Needs verl's trainer V1 (`trainer.use_v1`, its default).

    The conversation has at most `prompt_length + response_length` tokens; a full one ends the episode, which is graded.

    Raises:
        UsageError: A setting is invalid.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not OmegaConf.select(self.config, "trainer.use_v1", default=True):
            raise UsageError("the agent loop swe_gym needs verl's trainer V1: set trainer.use_v1=True")
        self._env_id = OmegaConf.select(self.config, "env_id")
        self._env_args = _section(self.config, "env_args")
        try:
            self._settings = AgentSettings.model_validate(_section(self.config, "agent_args"))
        except ValidationError as error:
            raise UsageError(f"agent_args: {wrong_fields(error)}") from error

    async def run(self, sampling_params: JsonObject, **row: Any) -> list[AgentLoopOutput]:
        """Play an episode.

        Returns:
            An output for each segment. None if the infrastructure failed: verl then leaves the episode out of the batch
            and of its group's baseline.
        """
        task = row["extra_info"]
        sampler = Sampler(self.server_manager, sampling_params, self.tokenizer.eos_token_id)
        generator = AwaitedGenerator(sampler, timeout=self._settings.answer_timeout)
        template = ChatTemplate(self.tokenizer)

        def make_policy(env: Any, _seed: int | None) -> Policy:
            return self._policy(env, generator, template, sampling_params["temperature"])

        episode = await play(
            Slot(task["task_id"]),
            lambda: make_env(task, self._env_args, self._env_id),
            make_policy,
            wall_clock=self._settings.wall_clock,
        )
        return [] if episode.reward is None else [self._output(episode, one) for one in episode.rows]

    def _policy(self, env: Any, generator: Any, template: ChatTemplate, temperature: float) -> TokenPolicy:
        append_only = self._settings.append_only
        if append_only is None:
            append_only = OmegaConf.select(self.config, "algorithm.adv_estimator") != "grpo"
        return TokenPolicy(
            env,
            generator,
            template,
            system=self._settings.system,
            temperature=temperature,
            max_tokens=self._settings.max_tokens,
            max_context=self.rollout_config.prompt_length + self.rollout_config.response_length,
            append_only=append_only,
        )

    def _output(self, episode: Episode, row: Row) -> AgentLoopOutput:
        record = episode.trajectory
        versions = [version for version, sampled in zip(row.versions, row.mask, strict=True) if sampled]
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs if self.rollout_config.calculate_log_probs else None,
            reward_score=episode.reward,
            num_turns=2 * len(record.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=record.seconds.get("policy", 0.0),
                tool_calls=record.seconds.get("tools", 0.0),
                compute_score=record.seconds.get("grading", 0.0),
            ),
            extra_fields={
                "reward_extra_info": {"resolved": float(record.resolved)},  # not "acc": verl adds zeros to it
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
                "turn_scores": [],
                "tool_rewards": [],
            },
        )


def _section(config: Any, name: str) -> JsonObject:
    section = OmegaConf.select(config, name)
    return {} if section is None else dict(OmegaConf.to_container(section, resolve=True))
