"""The turns of an agent's episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ..trajectories.trajectory import Turn
from ..types import JsonObject
from .history import AnsweredCall, CallPlace
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
