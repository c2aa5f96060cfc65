"""The adapter for SkyRL's trainer: a generator whose rows are the sampler's tokens.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            gym, client = cfg.environment.skyrl_gym, inference_engine_client
            return SweGenerator(cfg.generator, gym, client, tokenizer, env_args={"max_turns": 30})

Tasks are the rows of `swe-gym tasks export train.parquet --to verl`.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..errors import PolicyError, UsageError
from ..rollout.tokens import ChatTemplate, Completion
from ..spaces import Info
from ..types import JsonMapping
from .aio import RowAgent
from .episodes import Episode, known_numbers, outcome_shares, single_row

try:
    from skyrl.train.generators.base import GeneratorInterface
except ImportError:  # the trainer, which needs a GPU
    GeneratorInterface = object

FAILED: Info = {"outcome": "infra_failed", "reward_valid": False, "resolved": False}
"""Info of an episode that the infrastructure lost."""

CANNOT = {
    "step_wise_trajectories": "an episode is one row",
    "merge_stepwise_output": "an episode is one row",
    "batched": "an episode has several turns",
    "vision_language_generator": "observations are text",
    "inference_engine.enable_return_routed_experts": "rows have no routes of experts",
    "inference_engine.enable_return_sample_support_set": "rows have no sample support",
    "chat_template.name_or_path": "the chat template is the tokenizer's; set tokenizer.chat_template",
    "chat_template_kwargs": "the chat template is the tokenizer's; set tokenizer.chat_template",
}
"""Settings of `cfg.generator` that must be unset -> why."""


class SweGenerator(GeneratorInterface):
    """SkyRL's generator on tasks of rows: one row for each episode, whose tokens are the sampler's.

    An episode that the infrastructure lost is retried. If that fails too, its row is masked, and its reward is the mean
    of its group, so that it is neither trained nor part of a baseline. A row's `env_class` is not used.

    Args:
        generator_cfg: `cfg.generator`: `max_turns`, `max_input_length` and `sampling_params.max_generate_length` count.
        skyrl_gym_cfg: `cfg.environment.skyrl_gym`: at most `max_env_workers` episodes run at once; 0 is no limit.
        inference_engine_client: SkyRL's client.
        tokenizer: The tokenizer, with a chat template.
        policy_model_name: Model name at the client.
        env_args: Arguments of `SweEnv`, such as `backend`, `tools` and `max_turns`, which replaces that of
            `cfg.generator`.
        env_id: Registered environment id to make instead of the row's task source.

    Raises:
        UsageError: The sampler is configured to return no log-probabilities, a setting of `generator_cfg` is one that
            this generator cannot follow, or the tokenizer has no chat template.
    """

    def __init__(
        self,
        generator_cfg: Any,
        skyrl_gym_cfg: Any,
        inference_engine_client: Any,
        tokenizer: Any,
        policy_model_name: str | None = None,
        *,
        env_args: JsonMapping | None = None,
        env_id: str | None = None,
    ) -> None:
        if generator_cfg.sampling_params.logprobs is None:
            raise UsageError("training needs the sampler's log-probabilities: set generator.sampling_params.logprobs=1")
        _check_settings(generator_cfg)
        self._cfg, self._client, self._model = generator_cfg, inference_engine_client, policy_model_name
        self._workers = int(skyrl_gym_cfg.max_env_workers)
        ChatTemplate(tokenizer)  # refuses one that has none
        self._tokenizer, self._end = tokenizer, int(tokenizer.eos_token_id)
        self._agent = RowAgent(env_id=env_id, env_args={"max_turns": generator_cfg.max_turns, **(env_args or {})})

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:  # noqa: ARG002  no progress bar
        """Play an episode for each prompt.

        Returns:
            A `GeneratorOutput` in the order of the prompts.

        Raises:
            UsageError: A row names no task or an unknown one, or an argument of the environment is invalid.
        """
        batch = list(input_batch["env_extras"])
        params = input_batch.get("sampling_params") or {}
        room = asyncio.Semaphore(self._workers or len(batch))
        salt = self._make_salt()  # of the weights at the start, for every turn of these episodes
        plays = [self._play({**row, **(row.get("extra_info") or {})}, params, room, salt) for row in batch]
        played: list[tuple[Episode, str]] = []
        for one in await asyncio.gather(*plays, return_exceptions=True):  # none is left behind
            if isinstance(one, BaseException):
                raise one
            played.append(one)
        episodes, stops = [episode for episode, _ in played], [stop for _, stop in played]
        filtered = getattr(self._cfg, "apply_overlong_filtering", False)
        groups = [one.instance_id for one in input_batch.get("trajectory_ids") or []] or [""] * len(batch)
        rows = [
            single_row(episode.rows, self._end, masked=episode.reward is None or (filtered and stop != "stop"))
            for episode, stop in played
        ]
        infos = [episode.trajectory.info if episode.reward is not None else FAILED for episode in episodes]
        return {
            "prompt_token_ids": [row.prompt_ids for row in rows],
            "response_ids": [row.response_ids for row in rows],
            "loss_masks": [row.mask for row in rows],
            "rollout_logprobs": [row.logprobs for row in rows],
            "rewards": _fill_rewards([self._reward(*one) for one in played], groups),
            "stop_reasons": stops,
            "trajectory_ids": input_batch.get("trajectory_ids"),
            "trajectory_generation_times": [episode.trajectory.seconds.get("total", 0.0) for episode in episodes],
            "env_metrics": [metrics(info) for info in infos],
            "rollout_metrics": {f"environment/{name}": value for name, value in _means(map(metrics, infos)).items()},
            "rollout_expert_indices": None,
            "is_last_step": None,
        }

    async def _play(
        self, row: JsonMapping, params: JsonMapping, room: asyncio.Semaphore, salt: str | None
    ) -> tuple[Episode, str]:
        """Play an episode, and return it with its stop reason."""
        session = uuid.uuid4().hex
        longest = int(params.get("max_tokens") or self._cfg.sampling_params.max_generate_length)
        stops: list[str] = []

        async def sample(prompt: Sequence[int], *, max_tokens: int, **_: Any) -> Completion:
            asked = {"sampling_params": {**params, "max_tokens": max_tokens}, "session_ids": [session]}
            asked |= {"cache_salt": salt} if salt else {}
            said = await self._client.generate({**asked, "prompt_token_ids": [list(prompt)]}, model=self._model)
            ids, version = list(said["response_ids"][0]), getattr(self._client, "weight_version", None)
            stops.append(said["stop_reasons"][0])
            if not ids or stops[-1] == "abort":
                raise PolicyError("the engine aborted the answer", reason="server")
            ended = ids[-1:] == [self._end]
            logprobs = said.get("response_logprobs") or [[0.0] * len(ids)]  # none are needed to evaluate
            return Completion(ids, logprobs[0], "stop" if ended else "length", version or 0)

        agent = self._agent.model_copy(update={"max_tokens": longest})
        temperature, most = params.get("temperature", 1.0), self._cfg.max_input_length + longest
        async with room:
            try:
                episode = await agent.play(
                    row, sample, self._tokenizer, max_context=most, temperature=temperature, append_only=True
                )
            finally:
                await self._client.finish_session(session)
        return episode, _stop_reason(episode, stops[-1:])

    def _make_salt(self) -> str | None:
        """Return a text that differs for each version of the weights and each model, as SkyRL's own generator does.

        vLLM shares cached prefixes between requests of one salt only. It takes 128 characters without "@" and "/".
        """
        version = getattr(self._client, "weight_version", None)
        if version is None or not getattr(self._cfg, "use_cache_salt", True):
            return None
        name = "" if self._model is None else hashlib.sha256(self._model.encode()).hexdigest()[:16]
        return f"{name}:{version}"

    def _reward(self, episode: Episode, stop: str) -> float | None:
        """Return the reward; None for a lost episode."""
        zero = getattr(self._cfg, "zero_reward_on_non_stop", False) and stop != "stop"
        return 0.0 if zero and episode.reward is not None else episode.reward


def metrics(info: Info) -> dict[str, float]:
    """Return what SkyRL averages over episodes: each value over those that have it."""
    return known_numbers(info, ["resolved", "turn"]) | outcome_shares(info)


def _check_settings(cfg: Any) -> None:
    """Refuse settings that would change nothing here, or that the trainer relies on."""
    found = {name: reason for name, reason in CANNOT.items() if _setting(cfg, name)}
    if not getattr(cfg, "use_conversation_multi_turn", True):
        found["use_conversation_multi_turn"] = "each answer is a message of its own; set it to true"
    for name, reason in found.items():
        advice = "" if "set " in reason else f"; unset generator.{name}"
        raise UsageError(f"SweGenerator cannot follow generator.{name}: {reason}{advice}")


def _setting(cfg: Any, name: str) -> Any:
    """Return a setting by its dotted name; None if this version of SkyRL has none."""
    for part in name.split("."):
        cfg = cfg.get(part) if isinstance(cfg, dict) else getattr(cfg, part, None)
    return cfg


def _stop_reason(episode: Episode, last: Sequence[str]) -> str:
    """Return the stop reason of an episode, given that of its last answer."""
    if episode.reward is None:
        return "infra_failed"
    return "length" if episode.trajectory.reason == "context" or "length" in last else "stop"


def _means(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over those that have it."""
    values: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def _fill_rewards(rewards: Sequence[float | None], groups: Sequence[str]) -> list[float]:
    """Return the rewards, and for episodes without one the mean of their group, else of the batch."""
    given: dict[str, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            given.setdefault(group, []).append(reward)
    other = [reward for known in given.values() for reward in known] or [0.0]
    return [
        fmean(given.get(group, other)) if reward is None else reward
        for reward, group in zip(rewards, groups, strict=True)
    ]
