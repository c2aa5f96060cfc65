"""The record of an agent's episode: its turns, and the sampler's own token ids as prompts and segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..trajectories import Segment, Turn
from ..types import JsonObject
from .history import AnsweredCall, CallPlace, side_calls
from .parsing import arguments_of

OnTurn = Callable[[Turn], None]


class Record:
    """Turns answers into turns. Not thread-safe.

    A turn is complete once its observation is known, which is what the agent adds to the conversation with the next
    call, and once it is certain that the agent took the answer. The turn of an answer without tool calls needs no
    observation once another conversation goes on.

    Args:
        on_turn: Called with each complete turn.
    """

    def __init__(self, on_turn: OnTurn | None) -> None:
        self._on_turn = on_turn
        self._open: dict[AnsweredCall, _Observed | None] = {}
        self._turns: dict[int, Turn] = {}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The complete turns, in the order of the answers."""
        return tuple(turn for _, turn in sorted(self._turns.items()))

    def called(self, place: CallPlace) -> None:
        """Note a call: it tells what the agent observed after the answer that it continues or drops."""
        before = place.dropped or place.before
        for node, observed in list(self._open.items()):
            if observed is None and (node is before or not node.answer.tool_calls):
                self._open[node] = _Observed.now(place.observation if node is before else "", node)
            if self._open[node] is not None and node.taken:
                self._complete(node)

    def answered(self, node: AnsweredCall) -> None:
        """Note an answer."""
        self._open[node] = None

    def close(self) -> None:
        """Complete all turns."""
        for node in list(self._open):
            self._complete(node)

    def _complete(self, node: AnsweredCall) -> None:
        observed = self._open.pop(node) or _Observed()
        turn = turn_of(node, observed.text, observed.seconds)
        self._turns[node.number] = turn
        if self._on_turn is not None:
            self._on_turn(turn)


class _Observed(NamedTuple):
    """What the agent observed after an answer, and how long that took."""

    text: str = ""
    seconds: float = 0.0

    @classmethod
    def now(cls, text: str, node: AnsweredCall) -> _Observed:
        return cls(text, time.monotonic() - node.ended if text else 0.0)


def turn_of(node: AnsweredCall, observed: str, seconds: float) -> Turn:
    """Return the turn of an answer.

    Args:
        node: The answer.
        observed: What the agent observed after it.
        seconds: Seconds until the next call.
    """
    answer = node.answer
    calls = [{"name": one["function"]["name"], "arguments": arguments_of(one)} for one in answer.tool_calls]
    info: JsonObject = {"call": node.number, "calls": len(calls), "finish": answer.finish}
    if more := calls[1:]:
        info["more_calls"] = more
    if node.reason:
        info["segment"] = node.reason
    if not node.used:
        info["used"] = False
    return Turn(
        action=answer.text,
        thought="\n".join(filter(None, [answer.reasoning, answer.content])) if calls else "",
        tool=calls[0]["name"] if calls else "",
        arguments=calls[0]["arguments"] if calls else {},
        observation=observed,
        info=info,
        seconds=seconds,
        policy_seconds=node.seconds,
        parent=_parent(node),
        usage=answer.usage,
    )


def _parent(node: AnsweredCall) -> int | None:
    before = node.place.dropped or node.place.before
    if node.number == (before.number + 1 if before else 0):
        return None
    return node.parent.number if node.parent else -1


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
