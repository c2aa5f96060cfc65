"""Prompts and segments from the sampler's own token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..trajectories.trajectory import Segment
from .history import AnsweredCall, side_calls


def ids_after(node: AnsweredCall) -> list[int]:
    """Return the prompt of an answer and its sampled tokens."""
    found: list[int] = []
    for one in node.line:
        if (tokens := one.answer.tokens) is not None:
            found = [*(found if tokens.extends else ()), *tokens.prompt, *tokens.completion.token_ids]
    return found


def segments_of(nodes: Sequence[AnsweredCall]) -> tuple[Segment, ...]:
    """Return the tokens of the answers as segments. Each sampled token has mask 1 in exactly one.

    Args:
        nodes: The answers that count, in their order.
    """
    rows: list[_Row] = []
    aside = side_calls(nodes)
    ends: dict[AnsweredCall, _Row] = {}
    for node in nodes:
        tokens = node.answer.tokens
        if tokens is None:
            continue
        before = node.place.before if tokens.extends else None
        row = ends.pop(before, None) if before is not None else None
        if row is None:
            row = _Row(tokens.temperature, node in aside)
            row.told(ids_after(before) if before is not None else ())
            rows.append(row)
        row.told(tokens.prompt)
        row.said(tokens.completion.token_ids, tokens.completion.logprobs, tokens.completion.version)
        ends[node] = row
    return tuple(row.segment() for row in rows)


class _Row:
    """A segment that grows."""

    def __init__(self, temperature: float, side_call: bool) -> None:
        self._temperature, self._side_call = temperature, side_call
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def told(self, ids: Iterable[int]) -> None:
        """Add tokens that were not sampled here."""
        self._add(list(ids), 0, None, -1)

    def said(self, ids: Iterable[int], logprobs: Iterable[float], version: int) -> None:
        """Add sampled tokens."""
        self._add(list(ids), 1, list(logprobs), version)

    def _add(self, ids: list[int], mask: int, logprobs: list[float] | None, version: int) -> None:
        self._ids += ids
        self._mask += [mask] * len(ids)
        self._logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self._versions += [version] * len(ids)

    def segment(self) -> Segment:
        """Return the segment."""
        return Segment(
            token_ids=tuple(self._ids),
            loss_mask=tuple(self._mask),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            temperature=self._temperature,
            side_call=self._side_call,
        )
