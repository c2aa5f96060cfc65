"""Sampling from the trained weights in this process: slow, exact, without a server."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import PolicyError
from ...rollout.tokens import Completion
from ...types import Frozen
from ..config import GenerationConfig
from ..model import PolicyModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHE = ("cache", "past_key_values")
"""Names of the attention cache, as a result of the model and as its argument; the second in older versions."""


class HfGenerator:
    """Samples with `transformers`, one answer at a time.

    An answer depends on its prompt and seed only, so runs are reproducible bit by bit. The layers compute in the
    model's precision, log-probabilities are float32.

    Args:
        config: The generation settings; there are no options.
        model: The model, which must not change while sampling.
        tokenizer: Its tokenizer, for the end token.
    """

    Options = Frozen

    def __init__(self, config: GenerationConfig, model: PolicyModel, tokenizer: "PreTrainedTokenizerBase") -> None:  # noqa: ARG002  no options
        self._model = model
        self._ends = {tokenizer.eos_token_id, *_listed(model.lm.generation_config.eos_token_id)}
        self._turn = threading.Lock()
        self._version = 0
        self._closed = False

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:
        """See `Generator`. Concurrent calls wait."""
        draw = torch.Generator().manual_seed(0 if seed is None else seed)
        with self._turn, torch.inference_mode(), self._model.autocast():
            was_training = self._model.training
            self._model.eval()
            try:
                return self._sample(list(prompt), max_tokens, temperature, draw)
            finally:
                self._model.train(was_training)

    def _sample(self, prompt: list[int], max_tokens: int, temperature: float, draw: torch.Generator) -> Completion:
        device = next(self._model.parameters()).device
        decoder = self._model.lm.get_decoder()
        ids: list[int] = []
        logprobs: list[float] = []
        step = torch.tensor([prompt], device=device)
        cache: dict[str, object] = {}
        while len(ids) < max_tokens:
            if self._closed:
                raise PolicyError("the generator was closed", reason="closed")
            out = decoder(input_ids=step, use_cache=True, **cache)
            name = next(name for name in CACHE if name in out)
            cache = {name: out[name]}
            logits = self._model.logits(out.last_hidden_state[0, -1]).cpu()
            distribution = (logits / (temperature or 1.0)).log_softmax(-1)
            token = _draw(distribution, temperature, draw)
            ids.append(token)
            logprobs.append(float(distribution[token]))
            if token in self._ends:
                return Completion(ids, logprobs, "stop", self._version)
            step = torch.tensor([[token]], device=device)
        return Completion(ids, logprobs, "length", self._version)

    def sync_weights(self, version: int) -> None:
        """Set the version; the weights are shared."""
        self._version = version

    def close(self) -> None:
        """Stop sampling: running calls raise an error at their next token."""
        self._closed = True


def _draw(distribution: Tensor, temperature: float, draw: torch.Generator) -> int:
    if temperature == 0:
        return int(distribution.argmax())
    return int(torch.multinomial(distribution.exp(), 1, generator=draw))


def _listed(ids: int | Sequence[int] | None) -> Sequence[int]:
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else ids
