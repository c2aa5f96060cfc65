"""The mathematics of an update: advantage estimators, and losses as weighted sums of per-token terms.

The group estimators compare the episodes of a task and give one number per episode; `tree_grpo` also compares those
that branched from one. `gigpo` and `rtmc` compare steps that began in equal states and give one number per step. `gae`
needs a value head and gives one number per sampled token. Pass valid episodes only: those that the infrastructure ended
are not samples of the policy; those that reached a budget are.

`token_weights` computes the weights, mask and averaging included, once for a whole batch. So the losses of microbatches
add up to the loss of the batch. All tensors of losses have shape (tokens,): one entry per sampled token.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import unknown_name

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
    sequences: Tensor | None = None,
    importance: Tensor | None = None,
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = 3.0,
) -> tuple[Tensor, dict[str, float]]:
    """Return PPO's clipped surrogate loss with a clip range per side (arXiv 1707.06347, 2503.14476).

    With `sequences` it is GSPO's: all tokens of a sequence have its ratio, the geometric mean of theirs. The gradient
    of a token is its own, as in GSPO-token (arXiv 2507.18071, equations 7 and 14). GSPO clips far closer to 1, by 3e-4
    and 4e-4 in the paper, has no dual clip, and weighs tokens by "seq-mean-token-mean".

    Args:
        logprobs: Log-probabilities of the sampled tokens under the trained weights.
        old: Log-probabilities before the update.
        advantages: Advantages.
        weights: Weights from `token_weights`.
        sequences: Sequence number of each token. A sequence must be whole.
        importance: Weights from `truncated_importance`. They correct the loss, not the metrics.
        low: Lower clip range epsilon.
        high: Upper clip range epsilon.
        dual: With a negative advantage, the loss is at most -dual * advantage (dual clip, arXiv 1912.09729). None
            disables it.

    Returns:
        The loss, and metrics: the share of weight clipped on either side and by the dual clip, and the mean ratio.
    """
    gap = logprobs - old
    if sequences is not None:
        gap = _means(gap.detach(), sequences)[0] + gap - gap.detach()
    ratio = gap.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    terms = torch.maximum(plain, clipped)
    bounded = torch.zeros_like(terms, dtype=torch.bool)
    if dual is not None:
        most = -dual * advantages
        bounded = (advantages < 0) & (terms > most)
        terms = torch.where(bounded, most, terms)
    facts = _share_clipped(ratio.detach(), weights, ((clipped > plain) & ~bounded).detach())
    facts["clip_frac_dual"] = float((weights * bounded).sum())
    corrected = weights if importance is None else weights * importance
    return (corrected * terms).sum(), facts


def cispo_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    importance: Tensor | None = None,
    low: float = 0.2,
    high: float = 0.28,
) -> tuple[Tensor, dict[str, float]]:
    """Return CISPO's loss: REINFORCE with a clipped importance weight (MiniMax-M1, arXiv 2506.13585, equation 4).

    The ratio is a weight without gradient, so that every token keeps its gradient, also where PPO's clip removes it.
    The paper averages over tokens ("token-mean") and clips above only.

    Args:
        logprobs: As in `policy_loss`.
        old: As in `policy_loss`.
        advantages: As in `policy_loss`.
        weights: As in `policy_loss`.
        importance: As in `policy_loss`.
        low: Lower clip range epsilon.
        high: Upper clip range epsilon.

    Returns:
        The loss, and metrics: the share of weight whose ratio is clipped on either side, and the mean ratio.
    """
    ratio = (logprobs - old).exp().detach()
    kept = ratio.clamp(1 - low, 1 + high)
    corrected = weights if importance is None else weights * importance
    return -(corrected * kept * advantages * logprobs).sum(), _share_clipped(ratio, weights, ratio != kept)


def _share_clipped(ratio: Tensor, weights: Tensor, cut: Tensor) -> dict[str, float]:
    """Return the share of weight clipped below and above, the mean ratio, and the share of doubled or halved ones."""
    tails = (ratio > 2) | (ratio < 0.5)
    facts = {"clip_frac_low": cut & (ratio < 1), "clip_frac_high": cut & (ratio > 1), "ratio": ratio}
    facts["frac_ratio_tails"] = tails
    return {name: float((weights * values).sum()) for name, values in facts.items()}


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


EPSILON = 1e-6
"""Guards divisions by a standard deviation."""

Estimator = Callable[[Tensor, Tensor], Tensor]


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the reward minus the mean of the others in the group: REINFORCE leave-one-out (arXiv 2402.14740).

    A single episode in a group gets 0.

    Args:
        rewards: Rewards of the episodes, shape (episodes,).
        groups: Group number of each episode, shape (episodes,).

    Returns:
        Advantages, shape (episodes,).
    """
    mean, size = _means(rewards, groups)
    others = (size - 1).clamp(min=1)
    return torch.where(size > 1, (rewards - mean) * size / others, torch.zeros_like(rewards))


def dr_grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the reward minus the mean of the group (arXiv 2503.20783).

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).

    Returns:
        Advantages, shape (episodes,).
    """
    return rewards - _means(rewards, groups)[0]


def grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the reward minus the mean of the group, divided by its standard deviation (arXiv 2402.03300).

    It is the sample standard deviation (n - 1), as in verl and TRL. A group with equal rewards or one episode gets 0.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).

    Returns:
        Advantages, shape (episodes,).
    """
    centred = dr_grpo(rewards, groups)
    variance, size = _means(centred**2, groups)
    spread = (variance * size / (size - 1).clamp(min=1)).sqrt()
    return centred / (spread + EPSILON)


def reinforce_plus_plus(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the reward minus the mean of the group, whitened over the batch: REINFORCE++-baseline (arXiv 2501.03262).

    REINFORCE++ proper has no groups. The batch is that of episodes; verl's "reinforce_plus_plus_baseline" whitens over
    tokens.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).

    Returns:
        Advantages, shape (episodes,), with mean 0 and, unless all are equal, standard deviation 1.
    """
    return whiten(dr_grpo(rewards, groups))


def tree_grpo(rewards: Tensor, groups: Tensor, trees: Tensor) -> Tensor:
    """Return the sum of `grpo` within the trees and within the groups: Tree-GRPO (arXiv 2509.21240).

    A tree is an episode and those that continue it from one of its turns; a group has several. An episode alone in its
    tree has only the advantage within its group.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).
        trees: Tree number of each episode, shape (episodes,).

    Returns:
        Advantages, shape (episodes,).
    """
    return grpo(rewards, trees) + grpo(rewards, groups)


class EpisodeSteps(NamedTuple):
    """The steps of a batch of episodes, concatenated. Tensors have shape (steps,).

    Attributes:
        episodes: Number of the episode.
        states: Number of the state before the step: equal for equal states in a group, and only for these.
        actions: Number of the state and the action: equal for equal actions in equal states.
        returns: Discounted sum of the rewards of this step and those after it in its episode.
        discounts: Discount of a reward at the end of its episode: gamma ** (steps after this one).
    """

    episodes: Tensor
    states: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor


def gigpo(rewards: Tensor, groups: Tensor, steps: EpisodeSteps, *, weight: float = 1.0) -> Tensor:
    """Return `grpo` of the episodes plus `grpo` of the returns from equal states: GiGPO (arXiv 2505.10978).

    By its equations 3, 7 and 8, with the standard deviation as the normalization: A = A_E + weight * A_S. A_E compares
    the rewards of the group, and A_S compares the returns of all steps that began in the same state. A state that
    occurs once has A_S = 0.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).
        steps: The steps. The paper discounts returns by 0.95 per step.
        weight: Weight of the comparison of steps; 1 in the paper.

    Returns:
        Advantages, shape (steps,).
    """
    return grpo(rewards, groups)[steps.episodes] + weight * grpo(steps.returns, steps.states)


def rtmc(rewards: Tensor, groups: Tensor, steps: EpisodeSteps, *, prior: float = 2.0) -> Tensor:
    """Return the value of the action minus that of the state, over a group: RTMC (arXiv 2604.11037).

    Both are means of returns from first visits: Q(s, a) over the N(s, a) episodes that took a in s, and V(s) over the
    N(s) = sum_a N(s, a) visits. Few visits say little, so V is drawn towards the mean reward R of the group:
    A(s, a) = Q(s, a) - (N(s) V(s) + prior d(s) R) / (N(s) + prior), where d(s) is the mean discount of a reward at the
    end of the episodes over the first visits of s.

    The rest is equation 11 as a third-party implementation that cites the paper has it; d(s) is an addition. Without
    it, R is not discounted and Q and V are, so that most steps of long successes have negative advantages. The paper's
    optional scale per group is left out.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).
        steps: The steps. The paper discounts returns by 0.99 per step.
        prior: Number of visits that the mean reward counts as.

    Returns:
        Advantages, shape (steps,). Repeated visits of an episode have the advantage of the first.
    """
    first = _find_first_visits(steps)
    action, _ = _means(steps.returns, steps.actions, first)
    state, visits = _means(steps.returns, steps.states, first)
    mean = _means(rewards, groups)[0][steps.episodes] * _means(steps.discounts, steps.states, first)[0]
    return action - (visits * state + prior * mean) / (visits + prior)


def _find_first_visits(steps: EpisodeSteps) -> Tensor:
    """Return which steps are the first of their episode with their state and action, booleans of shape (steps,)."""
    places = torch.arange(len(steps.episodes))
    _, index = torch.unique(torch.stack([steps.episodes, steps.actions]), dim=1, return_inverse=True)
    return torch.full_like(places, len(places)).scatter_reduce(0, index, places, "amin")[index] == places


ESTIMATORS: dict[str, Estimator] = {
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "reinforce++": reinforce_plus_plus,
}
"""Name -> group estimator. Others work on trees, steps ("gigpo", "rtmc") or tokens ("gae")."""


def estimator(name: str) -> Estimator:
    """Return the group estimator of a name.

    Raises:
        UsageError: The name is unknown.
    """
    if name not in ESTIMATORS:
        raise unknown_name("advantage estimator", name, ESTIMATORS)
    return ESTIMATORS[name]


def nonzero_variance(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return which episodes are in a group whose rewards differ.

    In the estimators of whole episodes, the others have no gradient. `gigpo` and `rtmc` prefer the shorter ones among
    equal successes, as long as steps are discounted.

    Args:
        rewards: Shape (episodes,).
        groups: Shape (episodes,).

    Returns:
        Booleans, shape (episodes,).
    """
    return _means((dr_grpo(rewards, groups).abs() > EPSILON).float(), groups)[0] > 0


def gae(rewards: Tensor, values: Tensor, *, gamma: float = 1.0, gae_lambda: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return generalized advantage estimates over the sampled tokens of one episode (arXiv 1506.02438, equation 16).

    Each sampled token is a step; tokens of the environment are not. The value after the last token is 0, whether the
    episode was submitted or reached a budget.

    Args:
        rewards: Reward of each sampled token, shape (tokens,).
        values: Value of the state before each, shape (tokens,).
        gamma: Discount factor per sampled token.
        gae_lambda: 0 is one-step TD, 1 is Monte Carlo.

    Returns:
        Advantages and returns (the targets of the value head), each of shape (tokens,).
    """
    following = torch.cat([values[1:], values.new_zeros(1)])
    delta = (rewards + gamma * following - values).tolist()
    advantages, running = [0.0] * len(delta), 0.0
    for index in range(len(delta) - 1, -1, -1):
        running = delta[index] + gamma * gae_lambda * running
        advantages[index] = running
    found = torch.tensor(advantages, dtype=values.dtype)
    return found, found + values


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return the share of the returns' variance that the values explain.

    Args:
        values: Values, shape (tokens,).
        returns: Returns, shape (tokens,).

    Returns:
        1 - variance(returns - values) / variance(returns); NaN if the returns are all equal.
    """
    spread = float((returns - returns.mean()).pow(2).mean()) if returns.numel() else 0.0
    error = returns - values
    return 1.0 - float((error - error.mean()).pow(2).mean()) / spread if spread > EPSILON**2 else math.nan


def whiten(values: Tensor) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1. Equal values become 0."""
    centred = values - values.mean() if values.numel() else values
    spread = centred.pow(2).mean().sqrt() if values.numel() else values.new_zeros(())
    return centred / (spread + EPSILON)


def _means(values: Tensor, groups: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean and size of each value's group, both of shape (values,). With `counted`, others do not count.

    Double precision makes the mean of equal rewards exactly that reward: `grpo` would amplify a rounding error.
    """
    names, index = torch.unique(groups, return_inverse=True)
    ones = torch.ones(len(groups), dtype=torch.float64) if counted is None else counted.double()
    total, size = (
        torch.zeros(len(names), dtype=torch.float64).index_add(0, index, one) for one in (values * ones, ones)
    )
    return (total / size)[index].to(values.dtype), size[index].to(values.dtype)
