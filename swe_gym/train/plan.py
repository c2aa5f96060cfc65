"""The memory that each card of a run needs, before anything starts."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UsageError
from .batch import segments_batch
from .config import ModelConfig, TrainConfig, check_processes
from .generators.weight_sync import check_sleep, read_arguments, shares_card
from .learner import samples_from_device
from .model import BROKEN, PolicyModel, all_sampled, load_shape, refuse_family, with_adapters

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

LOGIT_COPIES = 7
"""Tensors of chunk * vocabulary float32 values in the backward pass of a chunk: logits, probabilities, gradients."""

LAYER_GRADIENTS = 1 / 3
"""Gradients that exist at a time in the backward pass of a layer, by what the layer kept. Measured, as the above."""

CUDA_CONTEXT = 1 << 30
"""Bytes that CUDA, cuBLAS and the allocator's gaps take; a round figure."""

WHILE_SAMPLING = ("weights", "optimizer", "reference", "whole copy", "CUDA")
"""Parts of the trainer that stay on the card while episodes run."""

VLLM_SHARE = 0.9
"""Default of `--gpu-memory-utilization`."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The bytes of a card by what they are for.

    Attributes:
        parts: Bytes of the trainer at its peak.
        sampler: Bytes of the vLLM server that the trainer starts, if it uses the same card.
        kv_per_token: Bytes of a token in the sampler's key-value cache.
        sleeps: Whether the sampler frees its memory while the trainer learns.
    """

    parts: Mapping[str, int]
    sampler: Mapping[str, int]
    kv_per_token: int
    sleeps: bool = False

    @property
    def peak(self) -> Mapping[str, int]:
        """Bytes by what they are for at the peak: all, or if the sampler sleeps, those of learning or of sampling."""
        if not self.sleeps:
            return {**self.parts, **self.sampler}
        learning = {**self.parts, "vLLM: CUDA": CUDA_CONTEXT}
        sampling = {**{name: self.parts[name] for name in WHILE_SAMPLING}, **self.sampler}
        return max(learning, sampling, key=lambda parts: sum(parts.values()))

    @property
    def total(self) -> int:
        """Bytes of the peak."""
        return sum(self.peak.values())


def plan_memory(config: TrainConfig, card: int, processes: int = 1) -> MemoryPlan:
    """Return the memory of the card that needs most: that of rank 0, with a vLLM server that shares any rank's card.

    With P weights of which T are trained, L layers, width h, N processes, vocabulary V and a microbatch of t tokens:

    | part | bytes |
    |---|---|
    | weights | 4 P / N; base weights of LoRA in their own type |
    | gradients, optimizer | 4 T / N and 8 T / N: AdamW's two moments (ZeRO, arXiv 1910.02054, section 3.1); offloaded |
    | | moments are there in AdamW's step only |
    | bfloat16 copies | 2 * float32 weights of the layers; with N > 1 of two, the one in use and the coming one |
    | activations | L t a; with checkpointing L t b h, b bytes of a weight (arXiv 2205.05198, sections 4 and 5) |
    | backward | the larger of two: 7 chunk V 4 for a chunk of logits, and 4 V h if b < 4; t a / 3 for the |
    | | gradients of a layer, with checkpointing plus t a |
    | optimizer step | 4 T / N, and the offloaded moments, less activations and backward, which are free by then |
    | reference, whole copy | 4 P / N for a KL penalty; 4 P on rank 0 for a generator that reads the card |
    | key-value cache | 2 L * key heads * head width * bytes a token (PagedAttention, arXiv 2309.06180, section 3); |
    | | with latent attention L * (latent + rotary width) * bytes (arXiv 2405.04434); L counts layers of attention |

    a, the bytes that a layer keeps for a token, depends on the family and on the precision. It is not a formula: it is
    counted in a forward pass of one and two layers of the same widths, with their adapters and types.

    Args:
        config: The configuration.
        card: Bytes of a card.
        processes: Training processes, one for each card.

    Raises:
        UsageError: The configuration needs more; the message names the largest part. Or the model cannot be counted, or
            a setting needs one process.
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    shape = load_shape(config.model.path)
    check_processes(config, processes)
    check_sleep(config)
    with _refuse_uncounted(shape):
        every, trained, layers = _count_weights(_build(shape, config.model))
        kept = _count_activations(shape, config.model)
    base = getattr(torch, config.model.dtype).itemsize
    text = shape.get_text_config()
    tokens, width, depth, words = (
        config.optim.max_tokens_per_microbatch,
        text.hidden_size,
        text.num_hidden_layers,
        text.vocab_size,
    )
    chunk = min(config.model.chunk, tokens)
    again = config.model.gradient_checkpointing
    activations = tokens * depth * (base * width if again else kept)
    head = 4 * words * width if base < 4 else 0  # its copy in float32
    logits, layer = LOGIT_COPIES * 4 * chunk * words + head, int(tokens * kept * LAYER_GRADIENTS)
    backward = max(logits, layer + again * tokens * kept)
    half = config.model.precision == "bfloat16" and base == 4
    whole = 4 * trained + base * (every - trained)
    parts = {
        "weights": whole // processes,
        "gradients": 4 * trained // processes,
        "optimizer": 8 * trained // processes,
        "bfloat16 copies": half * 2 * (layers if processes == 1 else 2 * layers // depth),
        "activations": activations,
        "backward": backward,
        "optimizer step": max(0, 4 * trained // processes - activations - backward),
        "reference": whole // processes if config.algorithm.kl_coef else 0,
        "whole copy": whole if processes > 1 and samples_from_device(config.generation) else 0,
        "CUDA": CUDA_CONTEXT,
    }
    sampler, per_token = _plan_sampler(config, shape, every, card, processes)
    plan = MemoryPlan(parts, sampler, per_token, bool(sampler and config.generation.sleeps))
    plan = _offload(plan) if config.optim.offload else plan
    _check(plan, config, card)
    return plan


def _offload(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan of the same run in one process with the optimizer's moments in host memory, but in its step."""
    parts = plan.parts
    step = 3 * parts["gradients"] - parts["activations"] - parts["backward"]  # 4 T and the moments of 8 T
    return dataclasses.replace(plan, parts={**parts, "optimizer": 0, "optimizer step": max(0, step)})


def _plan_sampler(
    config: TrainConfig, shape: "PretrainedConfig", weights: int, card: int, processes: int
) -> tuple[dict[str, int], int]:
    """Return the bytes of vLLM's weights and cache on the trainer's card, and of a token in the cache."""
    given = read_arguments(config.generation.options)
    for name in given.keys() & {"--quantization", "-q"}:
        raise UsageError(f"--plan cannot count the weights of a server with {name}: leave it out, or start the run")
    share = _read_number(given, "--gpu-memory-utilization", VLLM_SHARE)
    split = int(_read_number(given, "--tensor-parallel-size", 1))
    stages = int(_read_number(given, "--pipeline-parallel-size", 1))
    each = 4 if given.get("--dtype") in ("float32", "float") else 2
    cached = given.get("--kv-cache-dtype", "auto")
    narrow = 1 if cached.startswith(("fp8", "int8")) else each if cached == "auto" else 2
    with _refuse_uncounted(shape):
        per_token = narrow * _count_cached(shape, split) // stages
    if not shares_card(config, processes):
        return {}, per_token
    own = each * weights // (split * stages)
    return {"vLLM: weights": own, "vLLM: cache": max(0, int(share * card) - own)}, per_token


def _read_number(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        found = float(given.get(name, default))
    except ValueError:
        found = 0.0
    if found <= 0:
        raise UsageError(f"generation.options.args: {name} {given[name]!r} is not a number above 0")
    return found


def _count_cached(shape: "PretrainedConfig", split: int) -> int:
    """Return the values of a token in the cache of one of `split` cards. Sliding windows count as whole layers."""
    text = shape.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["attention"] * text.num_hidden_layers
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds)
    if rank := getattr(text, "kv_lora_rank", None):  # one compressed head that each card holds (arXiv 2405.04434)
        return int(layers * (rank + text.qk_rope_head_dim))
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * layers * max(1, heads // split) * head)


def _check(plan: MemoryPlan, config: TrainConfig, card: int) -> None:
    one = plan.kv_per_token * config.generation.max_context
    if plan.sampler and plan.sampler["vLLM: cache"] < one:
        raise UsageError(
            f"a conversation of generation.max_context = {config.generation.max_context} tokens needs "
            f"{one / 1e9:.1f} GB of vLLM's cache, which has {plan.sampler['vLLM: cache'] / 1e9:.1f} GB: raise "
            "--gpu-memory-utilization in generation.options.args, or lower generation.max_context"
        )
    if plan.total <= card:
        return
    every = plan.peak
    largest = max(every.keys() - {"CUDA", "vLLM: CUDA"}, key=lambda name: every[name])
    raise UsageError(
        f"a card has {card / 1e9:.1f} GB, and this run needs {plan.total / 1e9:.1f} GB on it, "
        f"{every[largest] / 1e9:.1f} GB of them for {largest}: {_advise(plan, largest)}"
    )


def _advise(plan: MemoryPlan, largest: str) -> str:
    """Return what makes the largest part of a plan smaller."""
    fix = _FIXES.get(largest, _MORE_CARDS)
    if largest == "optimizer" and _offload(plan).total < plan.total:
        return f"{fix}. In one process, optim.offload = true keeps it in host memory"
    if largest == "vLLM: cache" and not plan.sleeps:
        return f"{fix}. In one process, generation.options.sleep = true frees it while the trainer learns"
    return fix


_MORE_CARDS = "train in more processes (--nproc), train LoRA adapters (model.lora_rank), or choose a smaller model"
_FIXES = {
    "activations": "lower optim.max_tokens_per_microbatch, or set model.gradient_checkpointing = true",
    "backward": "lower optim.max_tokens_per_microbatch or model.chunk",
    "vLLM: cache": "lower --gpu-memory-utilization in generation.options.args, or give vLLM a card of its own: "
    "generation.options.env = { CUDA_VISIBLE_DEVICES = ... }",
}


@contextlib.contextmanager
def _refuse_uncounted(shape: "PretrainedConfig") -> Iterator[None]:
    """Name the family where counting fails, for example because its layers have different widths."""
    try:
        yield
    except BROKEN as error:
        raise UsageError(
            f"--plan cannot count the memory of models of type {shape.model_type!r} ({type(error).__name__}: {error})"
        ) from error


def _build(shape: "PretrainedConfig", config: ModelConfig) -> "PreTrainedModel":
    """Return the model without memory."""
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, config.dtype)
    with torch.device("meta"), refuse_family(shape):
        lm = AutoModelForCausalLM.from_config(shape, dtype=dtype, attn_implementation="sdpa")
        return with_adapters(lm, config.lora_rank) if config.lora_rank else lm


def _count_weights(lm: "PreTrainedModel") -> tuple[int, int, int]:
    """Return the numbers of all weights, of trained ones, and of those in layers. Shared ones count once."""
    every = list(lm.parameters())
    layers = sum(weight.numel() for layer in PolicyModel(lm).layers for weight in layer.parameters())
    trained = sum(weight.numel() for weight in every if weight.requires_grad)
    return sum(weight.numel() for weight in every), trained, layers


def _count_activations(shape: "PretrainedConfig", config: ModelConfig) -> int:
    """Return the bytes that a layer keeps for a token until the backward pass."""
    found = {
        (depth, tokens): _count_kept(_shrink(shape, depth), config, tokens) for depth in (1, 2) for tokens in (64, 192)
    }
    slopes = [(found[depth, 192] - found[depth, 64]) / 128 for depth in (1, 2)]
    return round(slopes[1] - slopes[0])


def _shrink(shape: "PretrainedConfig", depth: int) -> "PretrainedConfig":
    """Return the same shape with other numbers of layers and words."""
    small = copy.deepcopy(shape)
    text = small.get_text_config()
    text.num_hidden_layers, text.vocab_size = depth, 64
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(small, name, None)
        setattr(text, name, None)
    if getattr(text, "layer_types", None):
        text.layer_types = (text.layer_types * 2)[:depth]
    return small


def _count_kept(shape: "PretrainedConfig", config: ModelConfig, tokens: int) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, weights not counted."""
    lm: Any = _build(shape, config).to_empty(device="cpu")
    model = PolicyModel(lm, precision=config.precision).train()
    (pack,) = segments_batch([[all_sampled([index % 64 for index in range(tokens // 2)])]] * 2).packs(tokens)
    own = {_place(weight) for weight in lm.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _place(tensor) not in own:
            kept[_place(tensor)] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
        return tensor

    alive: list[Tensor] = []  # so that no place is used twice
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.run_layers(pack)
    return sum(kept.values())


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
