"""One update: from the episodes that were played to an optimizer step and its metrics."""

import math

import torch
from torch import Tensor

from ..trajectories import Trajectory
from ..types import JsonObject
from .advantages import estimator, explained_variance, gae, nonzero_variance, whiten
from .batch import Batch, make_batch
from .collect import PlayedBatch
from .config import AlgorithmConfig, TrainConfig
from .learner import Learner, OldLogprobs, Targets
from .sampler import check_logprob_diff, mismatch
from .state import RunState


def make_update(played: PlayedBatch, learner: Learner, config: TrainConfig, state: RunState) -> JsonObject:
    """Compute advantages and take the optimizer steps of one update.

    Returns:
        The metrics to log.

    Raises:
        TrainingStopped: Sampler and trainer differ by more than `generation.max_logprob_diff`.
    """
    algorithm = config.algorithm
    oldest = state.update - algorithm.max_staleness
    metrics = rollout_metrics(played)
    metrics["stale"] = sum(_find_newest(one, state.update) < oldest for one in played.trajectories)
    varied = nonzero_variance(_rewards(played), torch.tensor(played.groups))
    metrics["frac_nonzero_variance"] = float(varied.float().mean()) if len(varied) else 0.0
    if algorithm.zero_variance_groups == "drop" and algorithm.advantage != "gae":
        played = played.keep(varied.tolist())
    batch = make_batch(played.trajectories, oldest)
    if not batch.tokens:
        return {**metrics, "trained": 0}
    old = learner.compute_logprobs(batch)
    batch, old, played, nonfinite = _drop_nonfinite(batch, old, played, oldest)
    metrics.update(mismatch(batch, old), nonfinite=nonfinite, trained=len(played.trajectories), tokens=batch.tokens)
    if not batch.tokens:
        return metrics
    check_logprob_diff(_same_weights(batch, old, state.update), config.generation.max_logprob_diff, state.update)
    if algorithm.async_rollout:
        metrics |= _staleness(batch, played, state.update)
    targets = _targets(algorithm, batch, old, played)
    if old.values is not None and targets.returns is not None:
        metrics["explained_variance"] = explained_variance(old.values, targets.returns)
    return {**metrics, **learner.learn(batch, old, targets, state.shuffle)}


def rollout_metrics(played: PlayedBatch) -> JsonObject:
    """Return the metrics of the episodes themselves."""
    count = len(played.trajectories)
    metrics: JsonObject = {"episodes": count, "lost": len(played.lost), "first_lost": next(iter(played.lost), "")}
    if count:
        turns = [turn for one in played.trajectories for turn in one.turns]
        metrics |= {
            "reward": sum(one.reward for one in played.trajectories) / count,
            "turns": len(turns) / count,
            "tokens_per_episode": sum(one.usage.completion_tokens for one in played.trajectories) / count,
            "calls_valid": sum(bool(turn.tool) for turn in turns) / len(turns) if turns else math.nan,
        }
    return metrics


def _rewards(played: PlayedBatch) -> Tensor:
    return torch.tensor([float(trajectory.reward) for trajectory in played.trajectories])


def _find_newest(trajectory: Trajectory, update: int) -> int:
    """Return the version of the newest token; `update` if there is none."""
    return max((version for one in trajectory.segments for version in one.versions), default=update)


def _same_weights(batch: Batch, old: OldLogprobs, update: int) -> float:
    """Return the mean difference of log-probabilities for tokens of the present weights; 0 if there is none."""
    difference = (old.logprobs - batch.sampler)[batch.versions >= update].abs()
    return float(difference.mean()) if len(difference) else 0.0


def _staleness(batch: Batch, played: PlayedBatch, update: int) -> JsonObject:
    """Return the age of the trained tokens in updates, and the share of tokens that were too old."""
    age = (update - batch.versions).float()
    sampled = sum(sum(segment.loss_mask) for one in played.trajectories for segment in one.trained_segments)
    return {
        "staleness_mean": float(age.mean()),
        "staleness_max": int(age.max()),
        "frac_stale_tokens": 1 - batch.tokens / sampled,
    }


def _drop_nonfinite(
    batch: Batch, old: OldLogprobs, played: PlayedBatch, oldest: int
) -> tuple[Batch, OldLogprobs, PlayedBatch, int]:
    """Drop episodes with a log-probability or value that is not finite."""
    finite = torch.isfinite(old.logprobs)
    if old.values is not None:
        finite &= torch.isfinite(old.values)
    dropped = set(batch.episodes[~finite].tolist())
    if not dropped:
        return batch, old, played, 0
    kept = [index not in dropped for index in range(len(played.trajectories))]
    rest = played.keep(kept)
    return make_batch(rest.trajectories, oldest), old[torch.tensor(kept)[batch.episodes]], rest, len(dropped)


def _targets(algorithm: AlgorithmConfig, batch: Batch, old: OldLogprobs, played: PlayedBatch) -> Targets:
    rewards = _rewards(played)
    if algorithm.advantage != "gae":
        return Targets(estimator(algorithm.advantage)(rewards, torch.tensor(played.groups))[batch.episodes])
    assert old.values is not None
    advantages, returns = torch.zeros(batch.tokens), torch.zeros(batch.tokens)
    for episode in range(len(rewards)):
        where = (batch.episodes == episode).nonzero()[:, 0]
        if len(where):
            earned = torch.zeros(len(where))
            earned[-1] = rewards[episode]
            advantages[where], returns[where] = gae(
                earned, old.values[where], gamma=algorithm.gamma, gae_lambda=algorithm.gae_lambda
            )
    return Targets(whiten(advantages) if algorithm.whiten else advantages, returns)
