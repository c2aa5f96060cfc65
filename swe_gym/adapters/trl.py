"""The adapter for TRL: episodes as the `rollout_func` of `GRPOTrainer`.

    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(...),
        rollout_func=Rollouts(make_env),
        reward_funcs=swe_reward,
        train_dataset=task_dataset(make_env),
    )

Rows hold exactly the sampled tokens. With vLLM in server mode each episode sends its own requests; otherwise the
trainer samples the answers of many episodes at once.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ..envs import SweEnv
from ..errors import MissingDependency, SweGymError, UsageError
from ..rollout.tokens import ChatTemplate, TokenPolicy
from .episodes import Episode, EpisodeBatch, MakeEnv, Slot
from .rows import single_row

try:
    from datasets import Dataset

    from .trl_samplers import make_sampler
except ImportError as error:
    raise MissingDependency(f"this adapter needs TRL: pip install 'swe-gym[trl]' ({error})") from error

ATTEMPTS = 3
"""Calls in a row without any valid episode before their failure is an error."""

Record = dict[str, Any]


def task_dataset(make_env: MakeEnv, count: int | None = None) -> Dataset:
    """Return the first `count` tasks of an environment as a dataset for `Rollouts`: each prompt is a task id.

    Raises:
        UsageError: The tasks cannot be read, or the environment is not a local one.
    """
    with contextlib.closing(make_env()) as env:
        if not isinstance(env.unwrapped, SweEnv):
            raise UsageError(
                f"task_dataset cannot read the tasks of a {type(env.unwrapped).__name__}: use a SweEnv here, or make a "
                "dataset whose column prompt holds task ids"
            )
        return Dataset.from_dict({"prompt": list(itertools.islice(env.unwrapped.source.ids(), count))})


def swe_reward(
    swe_reward: list[float | None], log_metric: Callable[[str, float], None], **_: Any
) -> list[float | None]:
    """Return the rewards of the episodes; None for those that the infrastructure lost, counted as `infra_failed`."""
    log_metric("infra_failed", float(swe_reward.count(None)))
    return swe_reward


class Rollouts:
    """A `rollout_func` that plays one episode for each prompt.

    A lost episode is retried once. If it is lost again, its reward is None and its row masked, so TRL leaves it out of
    baseline and loss.

    Args:
        make_env: Makes an environment.
        system: System prompt. Empty: a short list of the tools.
        max_tokens: Maximum tokens of one answer; by default `max_completion_length`.
        max_context: Maximum tokens of prompt and completion. If a conversation is full, the episode ends and is graded.
        workers: Episodes that run at once; by default all.
        wall_clock: Seconds after which an episode is cancelled, and counts as lost.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        *,
        system: str = "",
        max_tokens: int | None = None,
        max_context: int = 8192,
        workers: int | None = None,
        wall_clock: float = 3600.0,
    ) -> None:
        self._make_env, self._system = make_env, system
        self._max_tokens, self._max_context = max_tokens, max_context
        self._workers, self._wall_clock = workers, wall_clock
        self._empty_calls = 0

    def __call__(self, prompts: list[str], trainer: Any) -> Record:
        """Play the episodes.

        Args:
            prompts: Task ids.
            trainer: The `GRPOTrainer`.

        Returns:
            `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`, each a list of one list per prompt, and
            `swe_reward` and `swe_failure` for reward functions. `logprobs` is None without vLLM.

        Raises:
            UsageError: The configuration is invalid.
            SweGymError: `ATTEMPTS` calls in a row had no valid episode.
        """
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise UsageError(f"each prompt must be a task id, not {prompts[0]!r}: use task_dataset(make_env)")
        sampler = make_sampler(trainer)
        template = ChatTemplate(trainer.processing_class)

        def make_policy(env: gymnasium.Env[str, str], seed: int | None) -> TokenPolicy:
            return TokenPolicy(
                env,
                sampler,
                template,
                system=self._system,
                temperature=trainer.temperature,
                max_tokens=self._max_tokens or trainer.max_completion_length,
                max_context=self._max_context,
                seed=seed,
                append_only=True,
            )

        slots = [Slot(prompt) for prompt in prompts]
        workers = self._workers or len(slots)
        batch = EpisodeBatch(slots, self._make_env, make_policy, workers=workers, wall_clock=self._wall_clock)
        episodes = sampler.play(batch)
        self._check(episodes)
        return _columns(episodes, trainer.processing_class.pad_token_id, with_logprobs=trainer.use_vllm)

    def _check(self, episodes: Sequence[Episode]) -> None:
        lost = all(episode.failure for episode in episodes)
        self._empty_calls = self._empty_calls + 1 if lost else 0
        if self._empty_calls >= ATTEMPTS:
            raise SweGymError(
                f"all episodes of {ATTEMPTS} calls in a row were lost, the last by {episodes[-1].failure}: "
                "fix the cause, which warnings of the logger swe_gym.rollout name, then resume training"
            )


def _columns(episodes: Sequence[Episode], pad: int, *, with_logprobs: bool) -> Record:
    """Return the rows as TRL takes them."""
    rows = [single_row(episode.rows, pad, masked=episode.reward is None) for episode in episodes]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "logprobs": [row.logprobs for row in rows] if with_logprobs else None,
        "env_mask": [row.mask for row in rows],
        "swe_reward": [episode.reward for episode in episodes],
        "swe_failure": [episode.failure for episode in episodes],
    }
