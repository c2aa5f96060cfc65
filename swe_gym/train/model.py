"""The weights: a causal language model of Hugging Face, and a value head where one is asked for."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import MissingDependency, UsageError
from ..trajectories.trajectory import Segment
from .batch import Pack, segments_batch

MAX_PACKING_GAP = 0.1
"""Between log-probabilities in a row of its own and behind another one: more than any precision leaves."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What a model says of sampled tokens.

    Attributes:
        logprobs: Of each, under the distribution at its temperature, float32 of shape (tokens,).
        entropy: Of that distribution, shape (tokens,), without a gradient unless it was asked for.
        values: What the state before each is worth, shape (tokens,); None without a value head.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


class PolicyModel(nn.Module):
    """A causal language model that is asked about sampled tokens only.

    The vocabulary is large and most tokens of an episode are the environment's, so logits are made in float32 for a
    chunk of sampled tokens at a time, and made again in the backward pass instead of being kept.

    Args:
        lm: A `transformers` model for causal language modelling.
        value_head: Add a linear head on the last hidden state, of zeros: every state is worth 0 at first.
        detach_value: Let the value loss train the head alone, and not what is below it.
        chunk: Sampled tokens at a time.
    """

    def __init__(self, lm: Any, *, value_head: bool = False, detach_value: bool = False, chunk: int = 1024) -> None:
        super().__init__()
        self.lm = lm
        self.detach_value = detach_value
        self.chunk = chunk
        self.value = nn.Linear(lm.config.hidden_size, 1) if value_head else None
        if self.value is not None:
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenOutputs:
        """Run a micro-batch.

        Args:
            pack: The micro-batch, on the model's device.
            entropy_gradient: Whether the entropy is part of the loss.
        """
        decoder = self.lm.get_decoder()
        hidden = decoder(input_ids=pack.token_ids, position_ids=pack.position_ids, use_cache=False).last_hidden_state
        states = hidden[0, pack.places]
        logprobs, entropy = [], []
        for part in torch.arange(len(pack.labels), device=states.device).split(self.chunk):
            arguments = (states[part], self.lm.get_output_embeddings(), pack.labels[part], pack.temperatures[part])
            found = checkpoint(_token_logprobs, *arguments, use_reentrant=False)
            logprobs.append(found[0])
            entropy.append(found[1] if entropy_gradient else found[1].detach())
        values = None
        if self.value is not None:
            below = states.detach() if self.detach_value else states
            values = self.value(below.float())[:, 0]
        if not logprobs:
            empty = states.new_zeros(0, dtype=torch.float32)
            return TokenOutputs(empty, empty, values)
        return TokenOutputs(torch.cat(logprobs), torch.cat(entropy), values)

    def check(self) -> None:
        """See that it says of rows behind each other what the language model says of each alone.

        Some families scale or cap their logits after the output layer, and some let a row look at the one before it.

        Raises:
            UsageError: It does not.
        """
        rows = [torch.arange(3, 11), torch.arange(20, 27)]
        batch = segments_batch([[_all_sampled(row.tolist())] for row in rows])
        device = next(self.parameters()).device
        (pack,) = batch.packs(most=100)
        packed, alone = torch.zeros(batch.tokens), []
        with torch.no_grad():
            packed[pack.index] = self(pack.to(device)).logprobs.cpu()
            for row in rows:
                logits = self.lm(input_ids=row[None].to(device), use_cache=False).logits[0, :-1].float().cpu()
                alone.append(logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0])
        gap = float((packed - torch.cat(alone)).abs().mean())
        if not gap <= MAX_PACKING_GAP:
            raise UsageError(
                f"model.path: the trainer cannot run models of the kind {self.lm.config.model_type!r}: in rows behind "
                f"each other it finds log-probabilities of tokens that are off by {gap:.2f} on average"
            )

    def export(self, folder: Path, tokenizer: Any, *, untied: bool = False) -> None:
        """Write the language model and its tokenizer as a Hugging Face folder, adapters merged in.

        Args:
            folder: Where to; it is made.
            tokenizer: Is written beside the weights.
            untied: Write the output embedding as a weight of its own, also where it is the input embedding.
        """
        lm = self._merged()
        if untied and lm.config.tie_word_embeddings:
            lm = _untied(lm)
        lm.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    def weights(self) -> dict[str, Tensor]:
        """The language model's weights under the names that `export` writes, adapters merged in, shared ones once.

        Without adapters they are, as a rule, the very tensors that are trained, not copies.
        """
        lm = self._merged()
        named: dict[str, Tensor] = {}
        known = set()
        for name, weight in lm.state_dict().items():
            place = (weight.data_ptr(), weight.shape)
            if place not in known:
                known.add(place)
                named[name] = weight
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:  # before transformers 5 the names in memory are those in files
            return named
        return dict(revert_weight_conversion(lm, named))

    def _merged(self) -> Any:
        lm = self.lm
        if hasattr(lm, "merge_and_unload"):
            lm = copy.deepcopy(lm).merge_and_unload()
        return lm


def _untied(lm: Any) -> Any:
    """The same model with an output embedding of its own; all other weights are shared with `lm`."""
    config = copy.deepcopy(lm.config)
    config.tie_word_embeddings = False
    with torch.device("meta"):
        twin = type(lm)(config)
    twin.load_state_dict(lm.state_dict(), assign=True)
    twin.get_output_embeddings().weight = nn.Parameter(lm.get_output_embeddings().weight.detach().clone())
    return twin


def _all_sampled(token_ids: list[int]) -> Segment:
    """A row of which the first token alone is given."""
    behind = len(token_ids) - 1
    return Segment(
        token_ids=tuple(token_ids),
        loss_mask=(0, *[1] * behind),
        logprobs=(0.0,) * len(token_ids),
        versions=(-1, *[0] * behind),
    )


def _token_logprobs(states: Tensor, head: nn.Module, labels: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(states).float() / temperatures[:, None]
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(-1, labels[:, None])[:, 0] - normaliser
    entropy = normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)
    return logprobs, entropy


def load_model(
    path: str,
    *,
    dtype: str = "float32",
    value_head: bool = False,
    detach_value: bool = False,
    lora_rank: int = 0,
    gradient_checkpointing: bool = False,
) -> PolicyModel:
    """The model of a Hugging Face folder or id, without dropout: a token has one probability, trained on or not.

    Args:
        path: The folder or id.
        dtype: Of the weights: "float32", "bfloat16" or "float16".
        value_head: As in `PolicyModel`.
        detach_value: As in `PolicyModel`.
        lora_rank: Train low-rank adapters of this rank in all linear layers instead of the weights; 0 trains them all.
        gradient_checkpointing: Keep less in the forward pass and compute it again.

    Raises:
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise MissingDependency(f"training needs transformers: pip install 'swe-gym[train]' ({error})") from error
    config = AutoConfig.from_pretrained(path)
    for name in [name for name, value in vars(config).items() if isinstance(value, float) and "drop" in name]:
        setattr(config, name, 0.0)  # "attention_dropout", "resid_pdrop": every family has names of its own
    lm = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    if gradient_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora_rank:
        lm = _with_adapters(lm, lora_rank)
    return PolicyModel(lm, value_head=value_head, detach_value=detach_value)


def _with_adapters(lm: Any, rank: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependency(f"adapters need peft: pip install peft ({error})") from error
    return get_peft_model(lm, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0))
