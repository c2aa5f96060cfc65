"""Batches: segments of episodes as rows of tokens, packed into microbatches.

Rows are packed without padding. The position ids of each row start at 0, which keeps the rows apart in attention.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import UsageError
from ..trajectories import Segment, Trajectory, Turn
from .objective import EpisodeSteps


@dataclasses.dataclass(frozen=True, slots=True)
class TrainRow:
    """One segment of one episode.

    Attributes:
        episode: Number of the episode in its batch.
        token_ids: Token ids, shape (length,).
        sampled: Mask of the sampled tokens to train on, booleans of shape (length,).
        answers: Number of the answer that each sampled token is part of, from 0 in each episode, shape (length,).
        logprobs: Log-probabilities of the sampler, 0 for other tokens, shape (length,).
        versions: Versions of the weights, -1 for other tokens, shape (length,).
        temperature: Sampling temperature.
    """

    episode: int
    token_ids: Tensor
    sampled: Tensor
    answers: Tensor
    logprobs: Tensor
    versions: Tensor
    temperature: float

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Pack:
    """A microbatch of packed rows.

    Attributes:
        token_ids: Token ids, shape (1, length).
        position_ids: Positions, from 0 in each row, shape (1, length).
        places: Positions in the pack that predict the sampled tokens, shape (tokens,).
        labels: The sampled tokens, shape (tokens,).
        temperatures: Their sampling temperatures, shape (tokens,).
        index: Their numbers among the sampled tokens of the batch, shape (tokens,).
        lengths: Number of tokens of each row.
    """

    token_ids: Tensor
    position_ids: Tensor
    places: Tensor
    labels: Tensor
    temperatures: Tensor
    index: Tensor
    lengths: tuple[int, ...]

    def to(self, device: torch.device | str) -> Pack:
        """Copy to a device."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **tensors)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The episodes of one update. Tensors hold the sampled tokens of all rows, concatenated.

    Attributes:
        rows: The segments of all episodes.
        episodes: Episode number of each sampled token, shape (tokens,).
        segments: Number of its row, shape (tokens,).
        answers: Number of the answer that it is part of, from 0 in each episode, shape (tokens,).
        sampler: Log-probabilities of the sampler, shape (tokens,).
        versions: Version of the weights that sampled each token, shape (tokens,).
    """

    rows: tuple[TrainRow, ...]
    episodes: Tensor
    segments: Tensor
    answers: Tensor
    sampler: Tensor
    versions: Tensor

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.episodes)

    def packs(self, most: int, part: Tensor | None = None) -> list[Pack]:
        """Pack rows into microbatches, first-fit decreasing.

        Args:
            most: Maximum tokens of a microbatch, sampled or not.
            part: Booleans of shape (tokens,). Only rows with one of these sampled tokens are packed.

        Raises:
            UsageError: A row is longer than `most`.
        """
        ends = list(itertools.accumulate(int(row.sampled.sum()) for row in self.rows))
        starts = [0, *ends[:-1]]
        chosen = [
            (row, start)
            for row, start, end in zip(self.rows, starts, ends, strict=True)
            if part is None or part[start:end].any()
        ]
        groups = first_fit([len(row) for row, _ in chosen], most)
        return [_pack(*zip(*(chosen[i] for i in group), strict=True)) for group in groups]


def make_batch(trajectories: Sequence[Trajectory], oldest: int = -1) -> Batch:
    """Make a batch of episodes; the number of an episode is its index.

    Args:
        trajectories: The episodes. Side calls of agents are left out.
        oldest: The oldest version of the weights. Tokens of older ones are masked: they are context only.

    Raises:
        UsageError: The first token of a segment is sampled.
    """
    return segments_batch([trajectory.trained_segments for trajectory in trajectories], oldest)


def segments_batch(episodes: Sequence[Sequence[Segment]], oldest: int = -1) -> Batch:
    """Make a batch of the segments of each episode, as `make_batch` does."""
    rows = tuple(row for number, segments in enumerate(episodes) for row in _rows(number, segments, oldest))
    return Batch(
        rows=rows,
        episodes=_flatten([torch.full((len(row),), row.episode) for row in rows], rows, torch.long),
        segments=_flatten([torch.full((len(row),), number) for number, row in enumerate(rows)], rows, torch.long),
        answers=_flatten([row.answers for row in rows], rows, torch.long),
        sampler=_flatten([row.logprobs for row in rows], rows, torch.float32),
        versions=_flatten([row.versions for row in rows], rows, torch.long),
    )


def _flatten(columns: Iterable[Tensor], rows: Iterable[TrainRow], dtype: torch.dtype) -> Tensor:
    """Concatenate the values at sampled tokens."""
    parts = [column[row.sampled] for column, row in zip(columns, rows, strict=True)]
    return torch.cat(parts).to(dtype) if parts else torch.zeros(0, dtype=dtype)


def _rows(episode: int, segments: Sequence[Segment], oldest: int) -> Iterable[TrainRow]:
    """Yield the segments of an episode with tokens that are not too old."""
    answers = 0
    for segment in segments:
        row = _row(episode, segment, oldest, answers)
        answers = int(row.answers[-1]) + 1
        if max(segment.versions) >= oldest:
            yield row


def _row(episode: int, segment: Segment, oldest: int, answers: int) -> TrainRow:
    """Convert a segment, which `Segment` has validated, to tensors. `answers` were sampled before it."""
    if segment.loss_mask and segment.loss_mask[0]:
        raise UsageError(
            f"episode {episode}: the first token of a segment is sampled, and no token before it predicts it"
        )
    versions = torch.tensor(segment.versions, dtype=torch.long)
    mask = torch.tensor(segment.loss_mask, dtype=torch.bool)
    starts = mask & ~torch.cat([mask.new_zeros(1), mask[:-1]])
    return TrainRow(
        episode=episode,
        token_ids=torch.tensor(segment.token_ids, dtype=torch.long),
        sampled=mask & (versions >= oldest),
        answers=answers + starts.long().cumsum(0) - 1,
        logprobs=torch.tensor(segment.logprobs, dtype=torch.float32),
        versions=versions,
        temperature=segment.temperature,
    )


def _pack(rows: Sequence[TrainRow], starts: Sequence[int]) -> Pack:
    offset = 0
    places, index = [], []
    for row, start in zip(rows, starts, strict=True):
        sampled = row.sampled.nonzero()[:, 0]
        places.append(offset + sampled - 1)
        index.append(start + torch.arange(len(sampled)))
        offset += len(row)
    return Pack(
        token_ids=torch.cat([row.token_ids for row in rows])[None],
        position_ids=torch.cat([torch.arange(len(row)) for row in rows])[None],
        places=torch.cat(places),
        labels=torch.cat([row.token_ids[row.sampled] for row in rows]),
        temperatures=torch.cat([torch.full((int(row.sampled.sum()),), row.temperature) for row in rows]),
        index=torch.cat(index),
        lengths=tuple(map(len, rows)),
    )


def first_fit(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Group indices of `lengths` so that no sum exceeds `most`, by first-fit decreasing.

    Raises:
        UsageError: A single length exceeds it.
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        if length > most:
            raise UsageError(
                f"a row of {length} tokens does not fit into a microbatch of {most}: raise "
                "optim.max_tokens_per_microbatch, or lower generation.max_context"
            )
        place = next((place for place, free in enumerate(room) if free >= length), None)
        if place is None:
            groups.append([])
            room.append(most)
            place = len(room) - 1
        groups[place].append(index)
        room[place] -= length
    return groups


# --- steps ----------------------------------------------------------------------------------------------------------


def find_steps(trajectories: Sequence[Trajectory], groups: Sequence[int], gamma: float) -> EpisodeSteps:
    """Return the steps of episodes whose records have state signatures. An episode without a turn is one step.

    All episodes of a group start in one state. A state without a signature equals no other. Actions are equal if their
    calls are, whatever the policy thought before them; invalid ones are compared as texts.

    Args:
        trajectories: The episodes.
        groups: Group of each. Only states of one group are equal.
        gamma: Discount factor per step.
    """
    numbers: dict[object, int] = {}
    rows = []
    for episode, (one, group) in enumerate(zip(trajectories, groups, strict=True)):
        turns: Sequence[Turn | None] = one.turns or (None,)
        returns = _discount([turn.reward for turn in one.turns] or [one.reward], gamma)
        signature: object = ""
        for place, (turn, earned) in enumerate(zip(turns, returns, strict=True)):
            known: object = signature if signature or not place else (episode, place)
            state, action = (group, known), _action_key(turn)
            named = (numbers.setdefault(key, len(numbers)) for key in (state, (state, action)))
            rows.append((episode, *named, earned, gamma ** (len(turns) - 1 - place)))
            signature = turn.info.get("signature", "") if turn else ""
    whole = torch.tensor([row[:3] for row in rows], dtype=torch.long).reshape(-1, 3)
    episodes, states, actions = whole.unbind(1)
    returns, discounts = torch.tensor([row[3:] for row in rows], dtype=torch.float32).reshape(-1, 2).unbind(1)
    return EpisodeSteps(episodes, states, actions, returns, discounts)


def _action_key(turn: Turn | None) -> str:
    if turn is None:
        return ""
    return json.dumps([turn.tool, turn.arguments], sort_keys=True) if turn.tool else turn.action


def _discount(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return the discounted sum of each reward and those after it."""
    sums = itertools.accumulate(reversed(rewards), lambda after, reward: reward + gamma * after)
    return list(sums)[::-1]


def places_of_tokens(steps: EpisodeSteps, batch: Batch) -> Tensor:
    """Return the step that each token of a batch is part of, shape (tokens,). Further answers belong to the last."""
    counts = torch.bincount(steps.episodes)
    firsts = counts.cumsum(0) - counts
    return firsts[batch.episodes] + torch.minimum(batch.answers, counts[batch.episodes] - 1)
