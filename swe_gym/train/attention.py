"""Attention within the rows of a pack, without a mask: memory grows with the tokens, not with their square.

The rows of a pack stand one after another in one sequence. A mask that keeps them apart has tokens * tokens entries and
makes attention compute all of them. Here the mask of a pack is only the lengths of its rows:

    attention(pack) = concatenate(attention(row) for row in pack)

On a GPU in bfloat16 or float16 one kernel does this, the variable length form of FlashAttention (arXiv 2307.08691) that
PyTorch has. Elsewhere each row is a call of scaled dot product attention.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
