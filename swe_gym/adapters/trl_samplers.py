"""Samplers over the engines of a TRL trainer: its vLLM server, its vLLM engine in the process, or its own model."""

import contextlib
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from trl.generation.vllm_client import VLLMClient

from ..errors import PolicyError, SweGymError, UsageError
from ..rollout.pool import TICK
from ..rollout.tokens import Completion
from .episodes import Episode, EpisodeBatch

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
