"""The learner: a model and its optimizer."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Pack
from .config import AlgorithmConfig, OptimConfig
from .losses import kl, policy_loss, token_weights, truncated_importance, value_loss
from .model import PolicyModel


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

    Attributes:
        seconds: Wall-clock seconds of "forward", "backward" and "step" since the caller reset them.
        steps: Number of optimizer steps.
    """

    def __init__(
        self, model: PolicyModel, optim: OptimConfig, algorithm: AlgorithmConfig, reference: PolicyModel | None = None
    ) -> None:
        self.model, self._reference = model, reference
        self._optim, self._algorithm = optim, algorithm
        head = [] if model.value is None else list(model.value.parameters())
        body = [weight for weight in model.lm.parameters() if weight.requires_grad]
        groups: list[dict[str, Any]] = [{"params": body, "lr": optim.lr, "base_lr": optim.lr}]
        if head:
            groups.append({"params": head, "lr": optim.value_lr, "base_lr": optim.value_lr})
        self.optimizer = torch.optim.AdamW(groups, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay)
        self._weights = [*body, *head]
        self._device = self._weights[0].device
        self.steps = 0
        self.seconds = {"forward": 0.0, "backward": 0.0, "step": 0.0}

    def compute_logprobs(self, batch: Batch) -> OldLogprobs:
        """Run the model and the reference on a batch, without gradient."""
        started = time.monotonic()
        self.model.eval()
        logprobs, values = torch.zeros(batch.tokens), torch.zeros(batch.tokens)
        reference = None if self._reference is None else torch.zeros(batch.tokens)
        with torch.no_grad():
            for pack in batch.packs(self._optim.max_tokens_per_microbatch):
                here = pack.to(self._device)
                out = self.model(here)
                logprobs[pack.index] = out.logprobs.cpu()
                if out.values is not None:
                    values[pack.index] = out.values.cpu()
                if reference is not None and self._reference is not None:
                    reference[pack.index] = self._reference(here).logprobs.cpu()
        self.seconds["forward"] += time.monotonic() - started
        return OldLogprobs(logprobs, None if self.model.value is None else values, reference)

    def learn(self, batch: Batch, old: OldLogprobs, targets: Targets, draw: torch.Generator) -> dict[str, Any]:
        """Take the optimizer steps of one update.

        Args:
            batch: The batch.
            old: What `compute_logprobs` returned for it.
            targets: Advantages and returns.
            draw: Random number generator that shuffles episodes into minibatches.

        Returns:
            Metrics, averaged over the steps. `skipped` counts steps with a gradient that was not finite: they leave the
            weights unchanged.
        """
        self.model.train()
        facts: list[dict[str, float]] = []
        for part in self._minibatches(batch, draw):
            facts.append(self._step(batch, part, old, targets))
        names = {name for one in facts for name in one}
        found = {name: [one[name] for one in facts if name in one] for name in sorted(names)}
        mean: dict[str, Any] = {name: sum(values) / len(values) for name, values in found.items()}
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
            for chosen in episodes[torch.randperm(len(episodes), generator=draw)].chunk(self._algorithm.minibatches):
                yield torch.isin(batch.episodes, chosen)

    def _step(self, batch: Batch, part: Tensor, old: OldLogprobs, targets: Targets) -> dict[str, float]:
        weights = torch.zeros(batch.tokens)
        length = int(batch.episodes.bincount().max())
        weights[part] = token_weights(batch.episodes[part], self._algorithm.loss_agg, length=length)
        facts: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for pack in batch.packs(self._optim.max_tokens_per_microbatch, part):
            for name, value in self._backward(batch, pack, weights, old, targets).items():
                facts[name] = facts.get(name, 0.0) + value
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
        loss, facts = policy_loss(
            logprobs,
            old.logprobs,
            targets.advantages[where],
            weight,
            importance=truncated_importance(old.logprobs, batch.sampler[where], cap) if cap else None,
            low=algorithm.clip_low,
            high=algorithm.clip_high,
            dual=algorithm.dual_clip or None,
        )
        facts["policy_loss"] = float(loss.detach())
        facts["entropy"] = float((weight * entropy.detach()).sum())
        facts["approx_kl"] = float((weight * kl(logprobs.detach(), old.logprobs, "k3")).sum())
        if algorithm.entropy_coef:
            loss = loss - algorithm.entropy_coef * (weight * entropy).sum()
        if old.reference is not None:
            divergence = (weight * kl(logprobs, old.reference, algorithm.kl_estimator)).sum()
            facts["kl"] = float(divergence.detach())
            loss = loss + algorithm.kl_coef * divergence
        if out.values is not None and old.values is not None and targets.returns is not None:
            clip = algorithm.value_clip or None
            error = value_loss(out.values.cpu(), old.values, targets.returns[where], weight, clip=clip)
            facts["value_loss"] = float(error.detach())
            loss = loss + algorithm.value_coef * error
        started = time.monotonic()
        loss.backward()
        self.seconds["backward"] += time.monotonic() - started
        facts["loss"] = float(loss.detach())
        return facts

    def _apply(self) -> float:
        """Take an optimizer step, unless the gradient is not finite.

        Returns:
            The gradient norm before clipping.
        """
        started = time.monotonic()
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, self._optim.max_grad_norm))
        if math.isfinite(norm):
            share = min(1.0, (self.steps + 1) / self._optim.warmup_steps) if self._optim.warmup_steps else 1.0
            for group in self.optimizer.param_groups:
                group["lr"] = group["base_lr"] * share
            self.optimizer.step()
            self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds["step"] += time.monotonic() - started
        return norm

    def imitate(self, batch: Batch) -> dict[str, float]:
        """Take one step of supervised learning on the batch's sampled tokens.

        Returns:
            Metrics: the mean negative log-likelihood of a token before the step, and the gradient norm.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for pack in batch.packs(self._optim.max_tokens_per_microbatch):
            loss = -self.model(pack.to(self._device)).logprobs.sum() / batch.tokens
            loss.backward()
            total += float(loss.detach())
        return {"loss": total, "grad_norm": self._apply()}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: trained weights, optimizer and step count."""
        trained = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        weights = {name: value for name, value in self.model.state_dict().items() if name in trained}
        return {"model": weights, "optimizer": self.optimizer.state_dict(), "steps": torch.tensor(self.steps)}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = int(state["steps"])
