"""The adapter for SkyRL's trainer: a generator whose rows are the sampler's tokens.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return SweGenerator(cfg.generator, cfg.environment.skyrl_gym, inference_engine_client, tokenizer)

The environments are those that are registered with SkyRL-gym: see `swe_gym.adapters.skyrl_gym`.
"""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import gymnasium

from ..envs.registration import make_env
from ..errors import PolicyError, UsageError
from ..rollout.policy import Policy
from ..rollout.tokens import ChatTemplate, Completion, TokenPolicy
from ..types import JsonMapping
from .aio import AwaitedGenerator, play
from .episodes import Episode, Slot
from .row_agent import find_task_id
from .rows import single_row
from .skyrl_gym import ENV_ID, FAILED, metrics

import skyrl_gym  # isort: skip  # after the module above, whose error names the extra

try:
    from skyrl.train.generators.base import GeneratorInterface
except ImportError:  # the trainer, which needs a GPU
    GeneratorInterface = object


class SweGenerator(GeneratorInterface):
    """SkyRL's generator on registered environments: one row for each episode, whose tokens are the sampler's.

    An episode that the infrastructure lost is retried. If that fails too, its row is masked, and its reward is the mean
    of its group, so that it is neither trained nor part of a baseline. The environment is the one that the row's
    `env_class` is registered with.

    Args:
        generator_cfg: `cfg.generator`: `max_turns`, `max_input_length` and `sampling_params.max_generate_length` count.
        skyrl_gym_cfg: `cfg.environment.skyrl_gym`: at most `max_env_workers` episodes run at once; 0 is no limit.
        inference_engine_client: SkyRL's client.
        tokenizer: The tokenizer, with a chat template.
        policy_model_name: Model name at the client.

    Raises:
        UsageError: The sampler is configured to return no log-probabilities, or the tokenizer has no chat template.
    """

    def __init__(
        self,
        generator_cfg: Any,
        skyrl_gym_cfg: Any,
        inference_engine_client: Any,
        tokenizer: Any,
        policy_model_name: str | None = None,
    ) -> None:
        if generator_cfg.sampling_params.logprobs is None:
            raise UsageError("training needs the sampler's log-probabilities: set generator.sampling_params.logprobs=1")
        self._cfg, self._client, self._model = generator_cfg, inference_engine_client, policy_model_name
        self._workers = int(skyrl_gym_cfg.max_env_workers)
        self._template, self._end = ChatTemplate(tokenizer), int(tokenizer.eos_token_id)

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:  # noqa: ARG002  no progress bar
        """Play an episode for each prompt.

        Returns:
            A `GeneratorOutput` in the order of the prompts.

        Raises:
            UsageError: An environment is not registered, or a task is unknown.
        """
        batch = list(zip(input_batch["env_classes"], input_batch["env_extras"], strict=True))
        params = input_batch.get("sampling_params") or {}
        room = asyncio.Semaphore(self._workers or len(batch))
        plays = [self._play(name, extras, params, room) for name, extras in batch]
        episodes: list[Episode] = []
        for one in await asyncio.gather(*plays, return_exceptions=True):  # none is left behind
            if isinstance(one, BaseException):
                raise one
            episodes.append(one)
        groups = [one.instance_id for one in input_batch.get("trajectory_ids") or []] or [""] * len(batch)
        rows = [single_row(episode.rows, self._end, masked=episode.reward is None) for episode in episodes]
        infos = [episode.trajectory.info if episode.reward is not None else FAILED for episode in episodes]
        return {
            "prompt_token_ids": [row.prompt_ids for row in rows],
            "response_ids": [row.response_ids for row in rows],
            "loss_masks": [row.mask for row in rows],
            "rollout_logprobs": [row.logprobs for row in rows],
            "rewards": _rewards(episodes, groups),
            "stop_reasons": ["stop" if info["outcome"] == "submitted" else info["outcome"] for info in infos],
            "trajectory_ids": input_batch.get("trajectory_ids"),
            "trajectory_generation_times": [episode.trajectory.seconds.get("total", 0.0) for episode in episodes],
            "env_metrics": [metrics(info) for info in infos],
            "rollout_metrics": {f"environment/{name}": value for name, value in _means(map(metrics, infos)).items()},
            "rollout_expert_indices": None,
            "is_last_step": None,
        }

    async def _play(self, env_class: str, extras: JsonMapping, params: JsonMapping, room: asyncio.Semaphore) -> Episode:
        registered = skyrl_gym.spec(env_class).kwargs
        options = {"max_turns": self._cfg.max_turns, **registered.get("options", {})}
        session = uuid.uuid4().hex
        longest = int(params.get("max_tokens") or self._cfg.sampling_params.max_generate_length)

        async def sample(prompt: Sequence[int], *, max_tokens: int, **_: Any) -> Completion:
            asked = {"sampling_params": {**params, "max_tokens": max_tokens}, "session_ids": [session]}
            said = await self._client.generate({**asked, "prompt_token_ids": [list(prompt)]}, model=self._model)
            ids, version = list(said["response_ids"][0]), getattr(self._client, "weight_version", None)
            if not ids or said["stop_reasons"][0] == "abort":
                raise PolicyError("the engine aborted the answer", reason="server")
            ended = ids[-1:] == [self._end]
            logprobs = said.get("response_logprobs") or [[0.0] * len(ids)]  # none are needed to evaluate
            return Completion(ids, logprobs[0], "stop" if ended else "length", version or 0)

        def make_policy(env: gymnasium.Env[str, str], _: int | None) -> Policy:
            room = self._cfg.max_input_length + longest
            limits = {"max_tokens": longest, "max_context": room, "temperature": params.get("temperature", 1.0)}
            return TokenPolicy(env, generator, self._template, append_only=True, **limits)

        generator = AwaitedGenerator(sample)
        slot, env_id = Slot(find_task_id(extras)), registered.get("env_id", ENV_ID)
        async with room:
            try:
                return await play(slot, partial(make_env, env_id, **options), make_policy)
            finally:
                await self._client.finish_session(session)


def _means(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over those that have it."""
    values: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def _rewards(episodes: Sequence[Episode], groups: Sequence[str]) -> list[float]:
    """Return the rewards, and for episodes without one the mean of their group, else of the batch."""
    given: dict[str, list[float]] = {}
    for episode, group in zip(episodes, groups, strict=True):
        if episode.reward is not None:
            given.setdefault(group, []).append(episode.reward)
    other = [reward for rewards in given.values() for reward in rewards] or [0.0]
    return [
        fmean(given.get(group, other)) if episode.reward is None else episode.reward
        for episode, group in zip(episodes, groups, strict=True)
    ]
