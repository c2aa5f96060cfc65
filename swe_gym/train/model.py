"""The model: a causal language model of Hugging Face with an optional value head.

Attention within the rows of a pack needs no mask, so memory grows with the tokens, not with their square. The rows
stand one after another in one sequence. A mask that keeps them apart has tokens * tokens entries and makes attention
compute all of them. Here the mask of a pack is only the lengths of its rows:

    attention(pack) = concatenate(attention(row) for row in pack)

On a GPU in bfloat16 or float16 one kernel does this, the variable length form of FlashAttention (arXiv 2307.08691) that
PyTorch has. Elsewhere each row is a call of scaled dot product attention.
"""

import contextlib
import copy
import errno
import functools
import inspect
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import MissingDependency, UsageError
from ..trajectories import Segment
from .batch import Pack, segments_batch

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

NAME = "swe_gym_rows"
"""Name among the attention functions of transformers."""

MAX_KERNEL_WIDTH = 256
"""Width of the widest head that FlashAttention takes."""


class PackedRows(NamedTuple):
    """The mask of a pack.

    Attributes:
        lengths: Number of tokens of each row.
        ends: Cumulative lengths from 0, int32 of shape (rows + 1,), on the model's device.
        window: Number of tokens that a token sees, itself included. 0: all before it.
    """

    lengths: tuple[int, ...]
    ends: Tensor
    window: int = 0


_ROWS: ContextVar[PackedRows | None] = ContextVar("rows", default=None)


@contextlib.contextmanager
def attend_within(lengths: Sequence[int], device: torch.device) -> Iterator[None]:
    """Keep rows of these lengths apart while a model's forward pass runs."""
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    token = _ROWS.set(PackedRows(tuple(lengths), ends))
    try:
        yield
    finally:
        _ROWS.reset(token)


def attend_by_rows(lm: "PreTrainedModel") -> None:
    """Make a model attend within the rows of `attend_within`. Other calls of it, with a cache for example, stay."""
    _register()
    lm.set_attn_implementation(NAME)


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def make_mask(*arguments: Any, config: Any = None, **options: Any) -> Tensor | PackedRows | None:
        rows = _ROWS.get()
        own = options.get("use_vmap") or getattr(config, "attention_chunk_size", None)  # not causal, or in chunks
        if rows is None or own:
            mask: Tensor | None = sdpa_mask(*arguments, config=config, **options)
            return mask
        return rows._replace(window=options.get("local_size") or 0)

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | PackedRows | None,  # some families pass it by this name
        **options: Any,
    ) -> tuple[Tensor, None]:
        if not isinstance(attention_mask, PackedRows):
            found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
            return found
        return attend_rows(query, key, value, attention_mask, scale=options.get("scaling")).contiguous(), None

    AttentionMaskInterface.register(NAME, make_mask)
    AttentionInterface.register(NAME, attend)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, rows: PackedRows, *, scale: float | None = None) -> Tensor:
    """Return causal attention within each row.

    Args:
        query: Queries, shape (1, heads, tokens, width).
        key: Keys, shape (1, key heads, tokens, width). Heads in succession share a key head.
        value: Values, shape (1, key heads, tokens, width).
        rows: The rows.
        scale: Scale of the products, by default 1 / sqrt(width).

    Returns:
        Shape (1, tokens, heads, width).
    """
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    kernel, window = _find_kernel(), rows.window
    if kernel is not None and query.is_cuda and _fits_kernel(query, value):
        packed = [one[0].transpose(0, 1).contiguous() for one in (query, key, value)]  # (tokens, heads, width)
        ends, longest, left = rows.ends, max(rows.lengths), window - 1 if window else -1
        out: Tensor = kernel(*packed, ends, ends, longest, longest, scale=scale, window_size=(left, 0), enable_gqa=True)
        return out[None]
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    parts = zip(query.split(rows.lengths, 2), key.split(rows.lengths, 2), value.split(rows.lengths, 2), strict=True)
    return torch.cat([_attend_row(*part, scale=scale, window=window) for part in parts], 2).transpose(1, 2)


def _fits_kernel(query: Tensor, value: Tensor) -> bool:
    """Return whether FlashAttention takes heads of this type and width."""
    width = query.shape[-1]
    narrow = width == value.shape[-1] and width <= MAX_KERNEL_WIDTH and width % 8 == 0
    return narrow and query.dtype in (torch.bfloat16, torch.float16)


@functools.cache
def _find_kernel() -> Callable[..., Tensor] | None:
    """Return PyTorch's kernel for rows of different lengths; None if it is too old."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = {"scale", "window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)
    return varlen_attn if known else None


def _attend_row(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int) -> Tensor:
    """Attend within one row. A window shorter than it is a block of queries at a time: no mask of its whole square."""
    attend, length = nn.functional.scaled_dot_product_attention, query.shape[2]
    if not window or window >= length:
        return attend(query, key, value, is_causal=True, scale=scale)
    parts = []
    for start in range(0, length, window):
        end, first = min(start + window, length), max(0, start - window + 1)
        at, seen = torch.arange(start, end, device=query.device), torch.arange(first, end, device=query.device)
        behind = at[:, None] - seen
        mask = (behind >= 0) & (behind < window)
        parts.append(
            attend(query[:, :, start:end], key[:, :, first:end], value[:, :, first:end], attn_mask=mask, scale=scale)
        )
    return torch.cat(parts, 2)


MAX_PACKING_GAP = {True: 1e-3, False: 0.1}
"""Largest mean difference of log-probabilities between a packed row and a single one, in float32 and with rounding."""

BROKEN = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the forward pass of a family raises that does not take packs."""

_WAY_OUT = "Choose a model of another family: Llama, Mistral, Qwen 2, Qwen 3 and their mixtures of experts work"


class TokenOutputs(NamedTuple):
    """The outputs of a model for sampled tokens.

    Attributes:
        logprobs: Log-probabilities at the sampling temperature, float32 of shape (tokens,).
        entropy: Entropies of the same distributions, shape (tokens,).
        values: Values of the states before them, shape (tokens,); None without a value head.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


class PolicyModel(nn.Module):
    """A causal language model that computes logits for sampled tokens only.

    To save memory, it computes float32 logits for a chunk of sampled tokens at a time, and again in the backward pass.

    With `precision` "bfloat16" the layers compute in bfloat16 (autocast, arXiv 1710.03740). Weights, their gradients,
    residuals, logits and all that follows stay float32, so an optimizer step too small for bfloat16 is not lost.

    Args:
        lm: A `transformers` model for causal language modelling.
        value_head: Add a linear value head on the last hidden state, initialized to zero.
        detach_value: Stop the gradient of the value loss at the head.
        chunk: Number of sampled tokens per chunk.
        precision: "float32" or "bfloat16".
    """

    def __init__(
        self,
        lm: "PreTrainedModel",
        *,
        value_head: bool = False,
        detach_value: bool = False,
        chunk: int = 1024,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        attend_by_rows(lm)
        self.lm = lm
        self.detach_value = detach_value
        self.chunk = chunk
        self.precision = precision
        self.value = nn.Linear(lm.config.hidden_size, 1) if value_head else None
        if self.value is not None:
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenOutputs:
        """Run a microbatch.

        Args:
            pack: The microbatch, on the model's device.
            entropy_gradient: Whether the entropy needs a gradient.
        """
        states = self.run_layers(pack)[0, pack.places]
        logprobs, entropy = [], []
        columns = (states, pack.labels, pack.temperatures)
        for some, labels, temperatures in zip(*(one.split(self.chunk) for one in columns), strict=True):
            found = checkpoint(_token_logprobs, some, self.logits, labels, temperatures, use_reentrant=False)
            logprobs.append(found[0])
            entropy.append(found[1] if entropy_gradient else found[1].detach())
        values = None
        if self.value is not None:
            below = states.detach() if self.detach_value else states
            values = self.value(below.float())[:, 0].clone()  # FSDP2 warns of a view
        if not logprobs:
            empty = states.new_zeros(0, dtype=torch.float32)
            return TokenOutputs(empty, empty, values)
        return TokenOutputs(torch.cat(logprobs), torch.cat(entropy), values)

    def run_layers(self, pack: Pack) -> Tensor:
        """Return the last hidden states of a microbatch, shape (1, length, width)."""
        decoder = self.lm.get_decoder()
        ids, positions = pack.token_ids, pack.position_ids
        with self.autocast(), attend_within(pack.lengths, ids.device):
            hidden: Tensor = decoder(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        return hidden

    def autocast(self) -> torch.autocast:
        """Return the context in which the layers compute."""
        return self._autocast(enabled=self.precision == "bfloat16")

    def _autocast(self, *, enabled: bool) -> torch.autocast:
        return torch.autocast(next(self.parameters()).device.type, torch.bfloat16, enabled=enabled)

    def logits(self, states: Tensor) -> Tensor:
        """Return logits of last hidden states, computed in float32 whatever the type of the output layer's weights."""
        head = self.lm.get_output_embeddings()
        with self._autocast(enabled=False):
            if head.weight.dtype == torch.float32:
                logits: Tensor = head(states.float())
                return logits
            bias = None if head.bias is None else head.bias.float()
            return nn.functional.linear(states.float(), head.weight.float(), bias)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers of the decoder."""
        return next((list(one) for one in self.lm.get_decoder().modules() if isinstance(one, nn.ModuleList)), [])

    def check(self) -> None:
        """Check that packed rows give the same log-probabilities as single rows, and know nothing of each other.

        Some model families scale or cap the logits after the output layer, and some carry a state from row to row.

        Raises:
            UsageError: They do not.
        """
        rows = [torch.arange(3, 11), torch.arange(20, 27)]
        batch = segments_batch([[all_sampled(row.tolist())] for row in rows])
        device = next(self.parameters()).device
        (pack,) = (one.to(device) for one in batch.packs(most=100))
        with refuse_family(self.lm.config, BROKEN):
            logprobs, leak = self._find_leak(pack)
            alone = [self._run_alone(row.to(device)) for row in rows]
        packed = torch.zeros(batch.tokens)
        packed[pack.index] = logprobs
        gap = float((packed - torch.cat(alone)).abs().mean())
        kind = self.lm.config.model_type
        if leak:
            raise UsageError(
                f"model.path: the trainer does not support models of type {kind!r}: the log-probabilities of a packed "
                f"row depend on the row before it. {_WAY_OUT}"
            )
        if not gap <= MAX_PACKING_GAP[self._is_exact()]:
            raise UsageError(
                f"model.path: the trainer does not support models of type {kind!r}: log-probabilities of packed rows "
                f"are off by {gap:.2g} on average. {_WAY_OUT}"
            )

    def _find_leak(self, pack: Pack) -> tuple[Tensor, bool]:
        """Return the log-probabilities, and whether those behind the first row have a gradient by its embeddings."""
        embedded: list[Tensor] = []

        def keep(_module: nn.Module, _arguments: object, made: Tensor) -> Tensor:
            embedded.append(made.detach().requires_grad_())
            return embedded[-1]

        hook = self.lm.get_input_embeddings().register_forward_hook(keep)
        try:
            logprobs = self(pack).logprobs
        finally:
            hook.remove()
        behind = logprobs[pack.places >= pack.lengths[0]].sum()
        (gradient,) = torch.autograd.grad(behind, embedded[:1])
        return logprobs.detach().cpu(), bool(gradient[0, : pack.lengths[0]].any())

    def _run_alone(self, row: Tensor) -> Tensor:
        """Return the log-probabilities of a row in the plain model."""
        with torch.no_grad():
            logits = self.lm(input_ids=row[None], use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0].cpu()

    def _is_exact(self) -> bool:
        """Return whether nothing is rounded to less than float32."""
        exact = self.precision == "float32" and torch.get_float32_matmul_precision() == "highest"
        return exact and all(weight.dtype == torch.float32 for weight in self.parameters())

    @property
    def lora_rank(self) -> int:
        """Rank of the LoRA adapters; 0 without adapters."""
        return int(self.lm.peft_config["default"].r) if hasattr(self.lm, "peft_config") else 0

    def export(
        self, folder: Path, tokenizer: "PreTrainedTokenizerBase", *, untied: bool = False, base: bool = False
    ) -> None:
        """Write the language model and its tokenizer as a Hugging Face folder.

        Args:
            folder: The folder to create.
            tokenizer: The tokenizer.
            untied: Untie the output embedding from the input embedding.
            base: Leave adapters out. Otherwise they are merged.
        """
        lm, state = self._plain(merged=not base)
        if untied and lm.config.tie_word_embeddings:
            lm = _untie(lm, state)
            state = lm.state_dict()
        lm.save_pretrained(folder, state_dict=state, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    def weights(self) -> dict[str, Tensor]:
        """Return the language model's weights by the names that `export` writes, adapters merged, shared ones once.

        Without adapters they are usually the trained tensors, not copies.
        """
        lm, state = self._plain(merged=True)
        named: dict[str, Tensor] = {}
        known = set()
        for name, weight in state.items():
            place = (weight.data_ptr(), weight.shape)
            if place not in known:
                known.add(place)
                named[name] = weight
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:  # before transformers 5, names in memory and in files are the same
            return named
        return dict(revert_weight_conversion(lm, named))

    def _plain(self, *, merged: bool) -> tuple["PreTrainedModel", dict[str, Tensor]]:
        """Return the model without adapters and its weights. Only weights that adapters are merged into are copied."""
        if not self.lora_rank:
            return self.lm, self.lm.state_dict()
        lm = self.lm.get_base_model()
        state = {name.replace(".base_layer", ""): w for name, w in lm.state_dict().items() if ".lora_" not in name}
        for name, layer in lm.named_modules():
            if merged and hasattr(layer, "get_delta_weight"):  # one at a time, and kept in host memory
                state[f"{name}.weight"] = (layer.weight + layer.get_delta_weight("default")).detach().cpu()
        return lm, state


def _untie(lm: "PreTrainedModel", state: Mapping[str, Tensor]) -> "PreTrainedModel":
    """Return a model with an untied output embedding that shares all other weights."""
    config = copy.deepcopy(lm.config)
    config.tie_word_embeddings = False
    with torch.device("meta"):
        twin = type(lm)(config)
    twin.load_state_dict(state, assign=True)
    twin.get_output_embeddings().weight = nn.Parameter(lm.get_output_embeddings().weight.detach().clone())
    return twin


@contextlib.contextmanager
def refuse_family(shape: "PretrainedConfig", errors: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Make errors of a model's own code one that names its family."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except errors as error:
        raise UsageError(
            f"model.path: the trainer does not support models of type {shape.model_type!r}: {error}. {_WAY_OUT}"
        ) from error


@contextlib.contextmanager
def explain_writing(what: str, target: Path, advice: str) -> Iterator[None]:
    """Make an error of writing weights one that says what to do on a full disk, and remove what was written.

    Raises:
        UsageError: They could not be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        _remove(target)
        full = is_full(error)
        if isinstance(error, RuntimeError) and not full:
            raise
        told = advice if full else "Make it writable, and run the same command again"
        raise UsageError(f"{what} could not be written to {target}: {error}. {told}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_full(error: BaseException) -> bool:
    """Return whether an error of writing means that there is no room."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    text = str(error)  # torch does not say why, and safetensors says it in words
    return (
        "PytorchStreamWriter" in text
        or "inline_container" in text
        or any(f"(os error {number})" in text for number in _NO_ROOM)
    )


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def all_sampled(token_ids: list[int]) -> Segment:
    """Make a segment in which all tokens but the first are sampled."""
    behind = len(token_ids) - 1
    return Segment(
        token_ids=tuple(token_ids),
        loss_mask=(0, *[1] * behind),
        logprobs=(0.0,) * len(token_ids),
        versions=(-1, *[0] * behind),
    )


def _token_logprobs(
    states: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    logits = head(states) / temperatures[:, None]
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
    chunk: int = 1024,
    precision: str = "float32",
) -> PolicyModel:
    """Load a model without dropout, so that log-probabilities in training and evaluation mode agree.

    Args:
        path: Hugging Face folder or id.
        dtype: Data type of the weights: "float32", "bfloat16" or "float16".
        value_head: As in `PolicyModel`.
        detach_value: As in `PolicyModel`.
        lora_rank: Rank of LoRA adapters in all linear layers. 0 trains all weights.
        gradient_checkpointing: Recompute activations in the backward pass.
        chunk: As in `PolicyModel`.
        precision: As in `PolicyModel`.

    Raises:
        MissingDependency: transformers, or peft for adapters, is not installed.
        UsageError: The path is no model, or one of a family that the trainer does not support.
    """
    config = load_shape(path)
    from transformers import AutoModelForCausalLM

    for name in [name for name, value in vars(config).items() if isinstance(value, float) and "drop" in name]:
        setattr(config, name, 0.0)  # names differ by family: "attention_dropout", "resid_pdrop"
    with refuse_family(config):
        lm = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    if gradient_checkpointing:
        checkpoint_layers(lm)
    if lora_rank:
        lm = with_adapters(lm, lora_rank)
    return PolicyModel(lm, value_head=value_head, detach_value=detach_value, chunk=chunk, precision=precision)


def load_shape(path: str) -> "PretrainedConfig":
    """Load the configuration of a Hugging Face folder or id. Raises the errors of `load_pretrained`."""
    return load_pretrained("AutoConfig", path)


def load_pretrained(kind: str, path: str) -> Any:
    """Load a part of a Hugging Face folder or id, by the name of its class in transformers.

    Raises:
        MissingDependency: transformers is not installed.
        UsageError: The path is neither.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency(f"training needs transformers: pip install 'swe-gym[train]' ({error})") from error
    try:
        return getattr(transformers, kind).from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path {path!r} is neither a model folder nor a Hugging Face id that can be downloaded: {error}"
        ) from error


def checkpoint_layers(lm: "PreTrainedModel") -> None:
    """Make each layer keep its input only and compute the rest again in the backward pass."""
    enable = getattr(lm, "activation_checkpointing_enable", lm.gradient_checkpointing_enable)  # named so from 5.23 on
    enable({"use_reentrant": False})


def with_adapters(lm: "PreTrainedModel", rank: int) -> "PeftModel":
    """Return a model with LoRA adapters in all linear layers.

    Raises:
        MissingDependency: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependency(f"model.lora_rank needs peft: pip install peft ({error})") from error
    return get_peft_model(lm, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0))
