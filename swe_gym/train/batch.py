"""From trajectories to what a model is run on: rows of tokens, packed behind each other into micro-batches.

A row is one segment of one episode. Rows are packed without padding: each begins at position 0 again, by which the
model's attention keeps them apart. Only the places before sampled tokens are looked at afterwards.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import UsageError
from ..trajectories.trajectory import Segment, Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One segment of one episode.

    Attributes:
        episode: The number of the episode in its batch.
        token_ids: Shape (length,).
        sampled: Which of them were sampled, booleans of shape (length,).
        logprobs: The sampler's, 0 where none was sampled, shape (length,).
        temperature: At which they were sampled.
    """

    episode: int
    token_ids: Tensor
    sampled: Tensor
    logprobs: Tensor
    temperature: float

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Pack:
    """A micro-batch: rows behind each other, and the sampled tokens in them.

    Attributes:
        token_ids: Shape (1, length).
        position_ids: From 0 in each row, shape (1, length).
        places: Where the sampled tokens are predicted, one before each, shape (tokens,).
        labels: The sampled tokens, shape (tokens,).
        temperatures: At which they were sampled, shape (tokens,).
        index: Which sampled tokens of the batch these are, shape (tokens,).
    """

    token_ids: Tensor
    position_ids: Tensor
    places: Tensor
    labels: Tensor
    temperatures: Tensor
    index: Tensor

    def to(self, device: torch.device | str) -> Pack:
        """The same on another device."""
        return Pack(*(getattr(self, field.name).to(device) for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The episodes of one update, as rows; what belongs to sampled tokens lies flat, row by row.

    Attributes:
        rows: Every segment of every episode.
        episodes: Of which episode each sampled token is, shape (tokens,).
        sampler: The sampler's log-probabilities, shape (tokens,).
    """

    rows: tuple[Row, ...]
    episodes: Tensor
    sampler: Tensor

    @property
    def tokens(self) -> int:
        """How many tokens were sampled."""
        return len(self.episodes)

    def packs(self, most: int, part: Tensor | None = None) -> list[Pack]:
        """Micro-batches of at most `most` tokens each, by first fit, the longest rows first.

        Args:
            most: Tokens, sampled or not.
            part: Booleans of shape (tokens,): only rows with one of these sampled tokens.

        Raises:
            UsageError: A row is longer than that.
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


def make_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """The rows of episodes; the number of an episode is its place in the sequence.

    Raises:
        UsageError: A segment breaks a rule that training stands on; the message says which.
    """
    return segments_batch([trajectory.segments for trajectory in trajectories])


def segments_batch(episodes: Sequence[Sequence[Segment]]) -> Batch:
    """The same from the segments of each episode alone."""
    rows = tuple(_row(number, segment) for number, segments in enumerate(episodes) for segment in segments)
    return Batch(
        rows=rows,
        episodes=_flat([torch.full((len(row),), row.episode) for row in rows], rows, torch.long),
        sampler=_flat([row.logprobs for row in rows], rows, torch.float32),
    )


def _flat(columns: Iterable[Tensor], rows: Iterable[Row], dtype: torch.dtype) -> Tensor:
    """The values at sampled tokens, row by row."""
    parts = [column[row.sampled] for column, row in zip(columns, rows, strict=True)]
    return torch.cat(parts).to(dtype) if parts else torch.zeros(0, dtype=dtype)


def _row(episode: int, segment: Segment) -> Row:
    """A segment as tensors. What holds for every segment was checked when it was made; see `Segment`."""
    if segment.loss_mask and segment.loss_mask[0]:
        raise UsageError(f"episode {episode}: its first token is sampled, and nothing stands before it to predict it")
    return Row(
        episode=episode,
        token_ids=torch.tensor(segment.token_ids, dtype=torch.long),
        sampled=torch.tensor(segment.loss_mask, dtype=torch.bool),
        logprobs=torch.tensor(segment.logprobs, dtype=torch.float32),
        temperature=segment.temperature,
    )


def _pack(rows: Sequence[Row], starts: Sequence[int]) -> Pack:
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
    )


def first_fit(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which of `lengths` go together so that no sum is over `most`: first-fit decreasing.

    Raises:
        UsageError: One alone is over it.
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        if length > most:
            raise UsageError(
                f"a row of {length} tokens does not fit into a micro-batch of {most}: raise `optim.micro_tokens`, "
                "or lower `generation.max_context`"
            )
        place = next((place for place, free in enumerate(room) if free >= length), None)
        if place is None:
            groups.append([])
            room.append(most)
            place = len(room) - 1
        groups[place].append(index)
        room[place] -= length
    return groups
