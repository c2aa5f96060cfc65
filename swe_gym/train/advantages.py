"""Advantage estimators.

The group estimators compare the episodes of a task and give one number per episode. `gae` needs a value head and gives
one number per sampled token. Pass valid episodes only: those that the infrastructure ended are not samples of the
policy; those that reached a budget are.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import unknown_name

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


ESTIMATORS: dict[str, Estimator] = {
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "reinforce++": reinforce_plus_plus,
}
"""Name -> group estimator. "gae" is not one: it works on tokens."""


def estimator(name: str) -> Estimator:
    """Return the group estimator of a name.

    Raises:
        UsageError: The name is unknown.
    """
    if name not in ESTIMATORS:
        raise unknown_name("advantage estimator", name, ESTIMATORS)
    return ESTIMATORS[name]


def nonzero_variance(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return which episodes are in a group whose rewards differ: the others have no gradient in a group estimator.

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


def _means(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and size of each episode's group, both of shape (episodes,).

    Double precision makes the mean of equal rewards exactly that reward: `grpo` would amplify a rounding error.
    """
    _, index, size = torch.unique(groups, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=torch.float64).index_add(0, index, values.double())
    return (total / size)[index].to(values.dtype), size[index].to(values.dtype)
