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
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import gymnasium

from ..envs import SweEnv
from ..errors import MissingDependency, PolicyError, SweGymError, UsageError
from ..rollout.tokens import ChatTemplate, Completion, TokenPolicy
from .episodes import TICK, Episode, EpisodeBatch, MakeEnv, Slot, single_row

try:
    from datasets import Dataset
    from trl.generation.vllm_client import VLLMClient
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


LINGER = 0.2
"""Seconds without a new request before a batch is sampled."""

SETTINGS = ("repetition_penalty", "top_p", "top_k", "structured_outputs_regex", "generation_kwargs")
"""Sampling settings of a trainer that each request to its vLLM server repeats."""


class _Request(NamedTuple):
    prompt: list[int]
    max_tokens: int
    sampled: Future[tuple[Sequence[int], Sequence[float | None]]]


class TrlServerSampler:
    """Samples from the vLLM server of a trainer. Each episode sends its own requests, in every process of the training.

    Args:
        trainer: A `GRPOTrainer` with `vllm_mode="server"`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._vllm = trainer, trainer.vllm_generation
        self._client: Any = getattr(self._vllm, "vllm_client", None)  # TRL makes one in the main process only
        if self._client is None:
            url = self._vllm.server_base_url or f"http://{self._vllm.server_host}:{self._vllm.server_port}"
            self._client = VLLMClient(url, connection_timeout=self._vllm.server_timeout)

    def play(self, batch: EpisodeBatch) -> list[Episode]:
        """Play episodes that sample here."""
        return batch.play()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`. As in TRL, requests have no seed."""
        settings = {name: getattr(self._vllm, name) for name in SETTINGS} | {"min_p": self._vllm.min_p or 0.0}
        answer = self._client.generate([list(prompt)], max_tokens=max_tokens, temperature=temperature, **settings)
        logprobs = [token[0] for token in answer["logprobs"][0]]
        return _completion(self._trainer, answer["completion_ids"][0], logprobs, max_tokens)


class BatchSampler:
    """Samples as the trainer does without a server: in its own thread, the answers of many episodes in one batch.

    Args:
        trainer: A `GRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._closed = False

    def play(self, batch: EpisodeBatch) -> list[Episode]:
        """Play episodes that sample here, in another thread."""
        with ThreadPoolExecutor(1, thread_name_prefix="episodes") as thread:
            played = thread.submit(batch.play)
            played.add_done_callback(lambda _: self._requests.put(None))
            try:
                while requests := list(self._batch()):
                    self._sample(requests)
            finally:
                self._closed = True
                batch.cancel()
            return played.result()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        """See `Generator`. Temperature and seed are the trainer's. Log-probabilities are 0.0 without vLLM: unknown."""
        request = _Request(list(prompt), max_tokens, Future())
        self._requests.put(request)
        while not request.sampled.done():
            if self._closed:
                raise PolicyError("the trainer stopped sampling", reason="closed")
            wait([request.sampled], timeout=TICK)
        return _completion(self._trainer, *request.sampled.result(), max_tokens)

    def _batch(self) -> Iterator[_Request]:
        """Yield requests until no more come for a while; none once the episodes have ended."""
        request = self._requests.get()
        with contextlib.suppress(queue.Empty):
            while request is not None:
                yield request
                request = self._requests.get(timeout=LINGER)
            self._requests.put(None)

    def _sample(self, requests: Sequence[_Request]) -> None:
        trainer = self._trainer
        limit = "max_completion_length" if trainer.use_vllm else "max_new_tokens"
        owner = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
        before = getattr(owner, limit)
        setattr(owner, limit, max(request.max_tokens for request in requests))
        try:
            prompts = [request.prompt for request in requests]
            completions, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
        finally:
            setattr(owner, limit, before)
        known = logprobs or [[0.0] * len(ids) for ids in completions]
        if not len(requests) == len(completions) == len(known):
            raise SweGymError(f"the trainer sampled {len(completions)} answers for {len(requests)} prompts")
        for request, ids, values in zip(requests, completions, known, strict=True):
            request.sampled.set_result((ids, values))


def make_sampler(trainer: Any) -> TrlServerSampler | BatchSampler:
    """Return the sampler for a `GRPOTrainer`.

    Raises:
        UsageError: Several processes would have to sample in step, which episodes do not.
    """
    if trainer.use_vllm and trainer.vllm_generation.mode == "server":
        return TrlServerSampler(trainer)
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if trainer.args.vllm_tensor_parallel_size > 1 if trainer.use_vllm else sharded:
        raise UsageError(
            "rollouts cannot sample from a model that is sharded over processes: "
            "set use_vllm=True and vllm_mode='server', or vllm_tensor_parallel_size=1"
        )
    return BatchSampler(trainer)


def _completion(trainer: Any, ids: Sequence[int], logprobs: Sequence[float | None], max_tokens: int) -> Completion:
    ids, known = list(ids[:max_tokens]), [one for one in logprobs[:max_tokens] if one is not None]
    if not ids or len(known) < len(ids):
        raise PolicyError("the sampler returned no token, or one without a log-probability", reason="bad_reply")
    ended = ids[-1] in trainer.eos_token_ids
    return Completion(ids, known, "stop" if ended else "length", trainer.state.global_step)
