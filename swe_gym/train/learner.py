"""The learner, a model and its optimizer, and the loading of what a configuration names."""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .batch import Batch, Pack
from .checkpoint import State
from .config import AlgorithmConfig, GenerationConfig, ModelConfig, OptimConfig, TrainConfig, check_processes
from .model import PolicyModel, load_model, load_pretrained
from .objective import cispo_loss, kl, policy_loss, token_weights, truncated_importance, value_loss
from .ranks import Ranks, on_all_ranks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

LOSSES = ("loss", "policy_loss", "value_loss")
"""Metrics of what is minimized. All others are averages over tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class OldLogprobs:
    """What the model computes for a batch before an update; all of shape (tokens,).

    Attributes:
        logprobs: Log-probabilities of the sampled tokens.
        values: Values of the states before them; None without a value head.
        reference: Log-probabilities under the reference model; None without a KL penalty.
    """

    logprobs: Tensor
    values: Tensor | None
    reference: Tensor | None = None

    def __getitem__(self, where: Tensor) -> OldLogprobs:
        """Select tokens by a boolean mask or by indices."""
        return OldLogprobs(
            self.logprobs[where],
            None if self.values is None else self.values[where],
            None if self.reference is None else self.reference[where],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """The targets of an update; all of shape (tokens,).

    Attributes:
        advantages: Advantages of the sampled tokens.
        returns: Targets of the value head.
    """

    advantages: Tensor
    returns: Tensor | None = None


class Learner:
    """A model and its optimizer.

    Args:
        model: The model, on its device.
        optim: Settings of the optimizer.
        algorithm: Settings of the loss.
        reference: Frozen model of the KL penalty.
        ranks: The processes that compute together; by default this one alone. All make a learner of the same model.
        copy: Unsharded copy of a sharded model, which `gather` fills; in rank 0.

    Attributes:
        ranks: As in the arguments.
        seconds: Wall-clock seconds of "forward", "backward" and "step" since the caller reset them.
        steps: Number of optimizer steps.
    """

    def __init__(
        self,
        model: PolicyModel,
        optim: OptimConfig,
        algorithm: AlgorithmConfig,
        reference: PolicyModel | None = None,
        ranks: Ranks | None = None,
        copy: PolicyModel | None = None,
    ) -> None:
        self.model, self._reference, self._copy = model, reference, copy
        self.ranks = ranks or Ranks()
        self._algorithm = algorithm
        self._device = self.ranks.device or next(model.parameters()).device
        self.seconds = {"forward": 0.0, "backward": 0.0, "step": 0.0}
        self._start(optim)

    def _start(self, optim: OptimConfig) -> None:
        head = [] if self.model.value is None else list(self.model.value.parameters())
        body = [weight for weight in self.model.lm.parameters() if weight.requires_grad]
        groups: list[dict[str, object]] = [{"params": body, "lr": optim.lr, "base_lr": optim.lr}]
        if head:
            groups.append({"params": head, "lr": optim.value_lr, "base_lr": optim.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay)
        self._optim = optim
        self._weights = [*body, *head]
        self.steps = 0

    @on_all_ranks
    def restart(self, optim: OptimConfig) -> None:
        """Start over with a new optimizer; the weights stay."""
        self._start(optim)

    @on_all_ranks
    def compute_logprobs(self, batch: Batch) -> OldLogprobs:
        """Run the model and the reference on a batch, without gradient."""
        started = time.monotonic()
        self.model.eval()
        logprobs, values = torch.zeros(batch.tokens), torch.zeros(batch.tokens)
        reference = None if self._reference is None else torch.zeros(batch.tokens)
        with torch.no_grad():
            for pack, counts in self.ranks.share(batch.packs(self._optim.max_tokens_per_microbatch)):
                here = pack.to(self._device)
                out = self.model(here)
                frozen = None if self._reference is None else self._reference(here).logprobs.cpu()
                if not counts:
                    continue
                logprobs[pack.index] = out.logprobs.cpu()
                if out.values is not None:
                    values[pack.index] = out.values.cpu()
                if reference is not None and frozen is not None:
                    reference[pack.index] = frozen
        self.ranks.add_up(logprobs, values, reference)
        self.seconds["forward"] += time.monotonic() - started
        return OldLogprobs(logprobs, None if self.model.value is None else values, reference)

    @on_all_ranks
    def learn(self, batch: Batch, old: OldLogprobs, targets: Targets, draw: torch.Generator) -> dict[str, float]:
        """Take the optimizer steps of one update.

        Args:
            batch: The batch.
            old: What `compute_logprobs` returned for it.
            targets: Advantages and returns.
            draw: Random number generator that shuffles episodes into minibatches.

        Returns:
            Metrics, averaged over the steps. All but losses are averages over the sampled tokens, weighted as in the
            loss; `approx_kl` estimates the KL divergence of the updated policy from the old one. `skipped` counts steps
            with a gradient that was not finite: they leave the weights unchanged.
        """
        self.model.train()
        facts: list[dict[str, float]] = []
        for part in self._minibatches(batch, draw):
            facts.append(self._step(batch, part, old, targets))
        names = {name for one in facts for name in one}
        found = {name: [one[name] for one in facts if name in one] for name in sorted(names)}
        mean = {name: sum(values) / len(values) for name, values in found.items()}
        mean["skipped"] = sum(not math.isfinite(one["grad_norm"]) for one in facts)
        mean["steps"] = len(facts)
        return mean

    def _minibatches(self, batch: Batch, draw: torch.Generator) -> Iterator[Tensor]:
        """Yield boolean masks over the sampled tokens; an episode is never split."""
        episodes = torch.unique(batch.episodes)
        for _ in range(self._algorithm.epochs):
            if self._algorithm.minibatches == 1:
                yield torch.ones(batch.tokens, dtype=torch.bool)
                continue
            shuffled = episodes[torch.randperm(len(episodes), generator=draw)]
            for chosen in shuffled.tensor_split(max(1, min(self._algorithm.minibatches, len(episodes)))):
                yield torch.isin(batch.episodes, chosen)

    def _step(self, batch: Batch, part: Tensor, old: OldLogprobs, targets: Targets) -> dict[str, float]:
        weights = torch.zeros(batch.tokens)
        algorithm = self._algorithm
        weights[part] = token_weights(batch.episodes[part], algorithm.loss_agg, length=algorithm.loss_length)
        facts: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for pack, counts in self.ranks.share(batch.packs(self._optim.max_tokens_per_microbatch, part)):
            counted = weights if counts else torch.zeros_like(weights)
            for name, value in self._backward(batch, pack, counted, old, targets).items():
                facts[name] = facts.get(name, 0.0) + value
        total = float(weights.sum())  # 1, unless the loss divides by a constant length
        facts = {name: value if name in LOSSES else value / total for name, value in self.ranks.totals(facts).items()}
        facts["grad_norm"] = self._apply()
        return facts

    def _backward(
        self, batch: Batch, pack: Pack, weights: Tensor, batch_old: OldLogprobs, targets: Targets
    ) -> dict[str, float]:
        """Add the gradient of one microbatch.

        Returns:
            Its part of the metrics.
        """
        algorithm, where = self._algorithm, pack.index
        old = batch_old[where]
        started = time.monotonic()
        out = self.model(pack.to(self._device), entropy_gradient=algorithm.entropy_coef != 0)
        logprobs, entropy = out.logprobs.cpu(), out.entropy.cpu()
        self.seconds["forward"] += time.monotonic() - started
        weight, cap = weights[where], algorithm.tis_cap
        importance = truncated_importance(old.logprobs, batch.sampler[where], cap) if cap else None
        terms = (logprobs, old.logprobs, targets.advantages[where], weight)
        clip = {"low": algorithm.clip_low, "high": algorithm.clip_high}
        if algorithm.loss == "cispo":
            loss, facts = cispo_loss(*terms, importance=importance, **clip)
        elif algorithm.loss == "gspo":
            loss, facts = policy_loss(*terms, sequences=batch.segments[where], importance=importance, dual=None, **clip)
        else:
            loss, facts = policy_loss(*terms, importance=importance, dual=algorithm.dual_clip or None, **clip)
        facts["policy_loss"] = float(loss.detach())
        facts["entropy"] = float((weight * entropy.detach()).sum())
        facts["approx_kl"] = float((weight * kl(old.logprobs, logprobs.detach(), "k3")).sum())  # sampled from the old
        if algorithm.entropy_coef:
            loss = loss - algorithm.entropy_coef * (weight * entropy).sum()
        if old.reference is not None:
            divergence = (weight * kl(logprobs, old.reference, algorithm.kl_estimator)).sum()
            facts["kl"] = float(divergence.detach())
            loss = loss + algorithm.kl_coef * divergence
        if out.values is not None and old.values is not None and targets.returns is not None:
            near = algorithm.value_clip or None
            error = value_loss(out.values.cpu(), old.values, targets.returns[where], weight, clip=near)
            facts["value_loss"] = float(error.detach())
            loss = loss + algorithm.value_coef * error
        started = time.monotonic()
        (loss * self.ranks.size).backward()  # FSDP averages the gradients of the processes
        self.seconds["backward"] += time.monotonic() - started
        facts["loss"] = float(loss.detach())
        return facts

    def _apply(self) -> float:
        """Take an optimizer step, unless the gradient is not finite.

        Returns:
            The gradient norm before clipping.
        """
        started = time.monotonic()
        clipped = torch.nn.utils.clip_grad_norm_(self._weights, self._optim.max_grad_norm)
        norm = float(clipped.full_tensor() if self.ranks.size > 1 else clipped)
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * self._optim.lr_share(self.steps)
            self._move_moments(self._device)
            self.optimizer.step()
            self._move_moments(torch.device("cpu"))
            self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds["step"] += time.monotonic() - started
        return norm

    def _move_moments(self, device: torch.device) -> None:
        """Copy the optimizer's moments to a device if they are offloaded, and drop those elsewhere."""
        if not self._optim.offload:
            return
        for state in self.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(device, copy=True)

    @on_all_ranks
    def imitate(self, batch: Batch) -> dict[str, float]:
        """Take one step of supervised learning on the batch's sampled tokens.

        Returns:
            Metrics: the mean negative log-likelihood of a token before the step, and the gradient norm.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for pack, counts in self.ranks.share(batch.packs(self._optim.max_tokens_per_microbatch)):
            loss = -self.model(pack.to(self._device)).logprobs.sum() / batch.tokens * counts
            (loss * self.ranks.size).backward()
            total += float(loss.detach())
        return {**self.ranks.totals({"loss": total}), "grad_norm": self._apply()}

    @on_all_ranks
    def state(self) -> State:
        """Return the state for a checkpoint: trained weights, optimizer and step count, none of it sharded."""
        trained = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        weights = {name: value for name, value in self.model.state_dict().items() if name in trained}
        state = {"model": weights, "optimizer": self.optimizer.state_dict(), "steps": torch.tensor(self.steps)}
        return tree_map(self.ranks.whole, state) if self.ranks.size > 1 else state

    @on_all_ranks
    def load(self, path: Path) -> None:
        """Restore what `state` returned from a file of `torch.save`."""
        state = self._read(path)
        self._load(self.model, state["model"])
        optimizer = state["optimizer"]
        for index, values in optimizer["state"].items():
            weight = self._weights[index]
            optimizer["state"][index] = {name: self.ranks.spread(value, weight) for name, value in values.items()}
        self.optimizer.load_state_dict(optimizer)
        self._move_moments(torch.device("cpu"))
        self.steps = int(state["steps"])

    @on_all_ranks
    def load_reference(self, path: Path) -> None:
        """Load weights into the reference of the KL penalty."""
        if self._reference is not None:
            self._load(self._reference, self._read(path))

    def _read(self, path: Path) -> State:
        several = self.ranks.size > 1  # each reads its part only
        state: State = torch.load(path, map_location="cpu", weights_only=True, mmap=several)
        return state

    def _load(self, model: PolicyModel, weights: dict[str, Tensor]) -> None:
        own = model.state_dict()
        parts = {name: self.ranks.spread(weight, own.get(name)) for name, weight in weights.items()}
        model.load_state_dict(parts, strict=False)

    @on_all_ranks
    def gather(self) -> None:
        """Copy sharded weights to the unsharded copy. Does nothing in one process."""
        if self.ranks.size > 1:
            copies = {} if self._copy is None else self._copy.state_dict()
            for name, value in self.model.state_dict().items():
                whole = self.ranks.whole(value)
                if name in copies:
                    copies[name].copy_(whole)

    def whole_model(self) -> PolicyModel:
        """Return the model that generators read and that is exported: a sharded model's copy, after `gather`."""
        return self.model if self._copy is None else self._copy


def seed_everything(seed: int) -> None:
    """Seed the global random number generators of Python and PyTorch."""
    random.seed(seed)
    torch.manual_seed(seed)


def load_learner(config: TrainConfig, ranks: Ranks) -> Learner:
    """Load the model and the reference of a KL penalty, sharded over several processes.

    Raises:
        UsageError: The trainer does not support the model, or a setting needs one process.
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    check_processes(config, ranks.size)
    torch.set_float32_matmul_precision(config.model.matmul_precision)
    if config.model.matmul_precision != "highest" and torch.cuda.is_available():
        logger.info("float32 matrix products use TF32: model.matmul_precision = %r", config.model.matmul_precision)
    cpu = torch.device("cpu")
    device = cpu if ranks.size > 1 else None  # sharding moves one layer at a time
    model = load_policy(config.model, device)
    model.check()
    penalized = config.algorithm.kl_coef > 0
    reference = load_policy(config.model, device).requires_grad_(False).eval() if penalized else None
    copy = None
    if ranks.size > 1:
        if ranks.rank == 0:
            copy = load_policy(config.model, ranks.device if samples_from_device(config.generation) else cpu)
        for one in (model, reference):
            if one is not None:
                ranks.shard(one, one.layers, config.model.precision)
    return Learner(model, config.optim, config.algorithm, reference, ranks, copy)


def samples_from_device(config: GenerationConfig) -> bool:
    """Return whether the generator reads the weights on the trainer's device."""
    return config.backend == "hf" or config.options.get("weight_sync", "file") != "file"


def load_policy(config: ModelConfig, device: torch.device | None = None) -> PolicyModel:
    """Load the model onto a device, by default the one that the configuration names.

    Raises:
        MissingDependency: transformers, or peft for adapters, is not installed.
    """
    if device is None:
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(auto if config.device == "auto" else config.device)
    options = config.model_dump(exclude={"device", "matmul_precision"})
    policy: PolicyModel = load_model(**options).to(device)
    return policy


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder or id. Raises the errors of `load_pretrained`."""
    tokenizer: PreTrainedTokenizerBase = load_pretrained("AutoTokenizer", path)
    return tokenizer
