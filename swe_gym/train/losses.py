"""The losses: each is a weighted sum of per-token terms.

`token_weights` computes the weights, mask and averaging included, once for a whole batch. So the losses of microbatches
add up to the loss of the batch. All tensors have shape (tokens,): one entry per sampled token.
"""

import math
from typing import Literal

import torch
from torch import Tensor

LossAgg = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""How the loss weighs tokens, by verl's names: all alike, all episodes alike, or by a constant length (Dr. GRPO)."""

KLEstimator = Literal["k1", "k2", "k3"]


def token_weights(episodes: Tensor, loss_agg: LossAgg, *, length: int = 0) -> Tensor:
    """Return the weight of each sampled token in the loss.

    Args:
        episodes: Episode number of each token, shape (tokens,).
        loss_agg: "token-mean": 1 / tokens. "seq-mean-token-mean": 1 / (tokens of the episode * episodes).
            "seq-mean-token-sum-norm": 1 / (episodes * length).
        length: The constant length of "seq-mean-token-sum-norm": the same in all updates, or the gradient's scale would
            follow the longest episode (Dr. GRPO, arXiv 2503.20783).

    Returns:
        Weights, shape (tokens,). Those of the first two sum to 1.
    """
    ones = torch.ones(episodes.shape, dtype=torch.float32)
    if not episodes.numel() or loss_agg == "token-mean":
        return ones / max(1, episodes.numel())
    _, index, counts = torch.unique(episodes, return_inverse=True, return_counts=True)
    if loss_agg == "seq-mean-token-mean":
        return ones / (counts[index] * len(counts))
    return ones / (len(counts) * length)


def truncated_importance(old: Tensor, sampler: Tensor, cap: float = 2.0) -> Tensor:
    """Return truncated importance sampling (TIS) weights, min(exp(old - sampler), cap).

    Sampler and trainer run different code on the same weights, so their probabilities differ. The weights correct for
    that; the cap bounds their variance.

    Args:
        old: Log-probabilities of the trainer before the update.
        sampler: Log-probabilities of the sampler.
        cap: Largest weight.

    Returns:
        Weights without gradient.
    """
    return (old - sampler).exp().clamp(max=cap).detach()


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    importance: Tensor | None = None,
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = 3.0,
) -> tuple[Tensor, dict[str, float]]:
    """Return PPO's clipped surrogate loss with a clip range per side (arXiv 1707.06347, 2503.14476).

    Args:
        logprobs: Log-probabilities of the sampled tokens under the trained weights.
        old: Log-probabilities before the update.
        advantages: Advantages.
        weights: Weights from `token_weights`.
        importance: Weights from `truncated_importance`. They correct the loss, not the metrics.
        low: Lower clip range epsilon.
        high: Upper clip range epsilon.
        dual: With a negative advantage, the loss is at most -dual * advantage (dual clip, arXiv 1912.09729). None
            disables it.

    Returns:
        The loss, and metrics: the share of weight clipped on either side and by the dual clip, and the mean ratio.
    """
    ratio = (logprobs - old).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    terms = torch.maximum(plain, clipped)
    bounded = torch.zeros_like(terms, dtype=torch.bool)
    if dual is not None:
        most = -dual * advantages
        bounded = (advantages < 0) & (terms > most)
        terms = torch.where(bounded, most, terms)
    with torch.no_grad():
        cut = (clipped > plain) & ~bounded
        facts = {
            "clip_frac_low": cut & (ratio < 1),
            "clip_frac_high": cut & (ratio > 1),
            "clip_frac_dual": bounded,
        }
        shares = {name: float((weights * where).sum()) for name, where in facts.items()}
        shares["ratio"] = float((weights * ratio).sum())
    corrected = weights if importance is None else weights * importance
    return (corrected * terms).sum(), shares


def value_loss(values: Tensor, old: Tensor, returns: Tensor, weights: Tensor, *, clip: float | None = 0.2) -> Tensor:
    """Return half the squared error of the value head, clipped around its old values as in Baselines' PPO2.

    Args:
        values: Values under the trained weights.
        old: Values before the update.
        returns: The targets.
        weights: Weights from `token_weights`.
        clip: Value clip range. None disables clipping.
    """
    errors = (values - returns) ** 2
    if clip is not None:
        near = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - returns) ** 2)
    return 0.5 * (weights * errors).sum()


def kl(logprobs: Tensor, reference: Tensor, kind: KLEstimator = "k3") -> Tensor:
    """Estimate the KL divergence from a reference policy, per sampled token (Schulman 2020, "Approximating KL").

    k1 is unbiased with high variance, k2 is biased with low variance, k3 is unbiased, low-variance and never negative.
    Their gradients differ: on policy, the expected gradient of k2 is that of the divergence, that of k3 is that of the
    reverse divergence, and that of k1 is 0. So k1 has the gradient of k2 here.

    Args:
        logprobs: Log-probabilities of the sampled tokens under the policy.
        reference: Log-probabilities under the reference policy.
        kind: The estimator.
    """
    gap = logprobs - reference
    square = 0.5 * gap**2
    if kind == "k1":
        return square + (gap - square).detach()
    return square if kind == "k2" else (-gap).exp() - 1 + gap


def ess(weights: Tensor) -> float:
    """Return the effective sample size of importance weights as a share of their number: 1.0 if all are equal."""
    if not weights.numel():
        return math.nan
    return float(weights.sum() ** 2 / (weights**2).sum() / weights.numel())
