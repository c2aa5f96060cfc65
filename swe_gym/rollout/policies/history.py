"""The conversation of an episode, and how it is shortened when it is too long for the model."""

import json
from collections.abc import Iterator

from ...actions import check_text
from ...errors import ActionError
from ...types import Json, JsonObject

NOT_RUN = "This call was not run: only the first call of a message is."

SHORT = 200
"""Observations below this many characters are kept: a marker would hardly be shorter."""

_MARKER = "[An earlier observation of {} characters was left out here.]"
_CUT = "\n[{} characters were left out here.]\n"
_DROPPED = "\n\n[The conversation was shortened: your first {} turns after this message are not shown.]"


class ChatHistory:
    """The messages of an episode, as in OpenAI's chat API.

    The model's messages stay as they were sent, tool calls with their ids included. One exception: servers refuse a
    tool call whose arguments are not a JSON object, and fail on deep nesting, so such a call becomes text.

    Args:
        system: The system prompt.
    """

    def __init__(self, system: str) -> None:
        self._system = system
        self._opening = ""
        self._turns: list[_Turn] = []
        self._dropped = 0

    def observed(self, observation: str) -> None:
        """Add an observation: first the issue, then the result of each answer."""
        if self._turns:
            self._turns[-1].observe(observation)
        else:
            self._opening = observation

    def answered(self, message: JsonObject) -> None:
        """Add an answer of the model."""
        self._turns.append(_Turn(_make_sendable(message)))

    @property
    def messages(self) -> list[JsonObject]:
        """All messages, ready to be sent."""
        note = _DROPPED.format(self._dropped) if self._dropped else ""
        opening = [
            {"role": "system", "content": self._system},
            {"role": "user", "content": self._opening + note},
        ]
        return opening + [message for turn in self._turns for message in turn.messages()]

    @property
    def size(self) -> int:
        """Number of characters of the messages as JSON."""
        return len(json.dumps(self.messages, ensure_ascii=False))

    def shrink(self, size: int) -> bool:
        """Shorten the conversation to at most `size` characters if possible.

        Observations go first, then whole turns, the oldest first; then the middle of the last observation. The system
        prompt and the issue stay.

        Returns:
            Whether the conversation became shorter.
        """
        before = self.size
        excess = before - size
        for turn in self._turns[:-1]:
            if excess <= 0:
                break
            excess -= turn.elide()
        while self.size > size and len(self._turns) > 1:
            del self._turns[0]
            self._dropped += 1
        if self._turns and (excess := self.size - size) > 0:
            self._turns[-1].cut(excess)
        return self.size < before


class _Turn:
    """An answer of the model and its observation."""

    def __init__(self, message: JsonObject) -> None:
        self._message = message
        self._observation: str | None = None

    def observe(self, observation: str) -> None:
        self._observation = observation

    def elide(self) -> int:
        """Replace a long observation by a marker. Returns the number of characters saved."""
        text = self._observation or ""
        if len(text) < SHORT:
            return 0
        self._observation = _MARKER.format(len(text))
        return len(text) - len(self._observation)

    def cut(self, excess: int) -> None:
        """Cut about `excess` characters from the middle of the observation."""
        text = self._observation or ""
        marker = _CUT.format(len(text))
        keep = max(0, len(text) - excess - len(marker))
        if keep + len(marker) < len(text):
            self._observation = text[: keep - keep // 2] + _CUT.format(len(text) - keep) + text[len(text) - keep // 2 :]

    def messages(self) -> Iterator[JsonObject]:
        yield self._message
        if self._observation is None:
            return
        calls = self._message.get("tool_calls") or ()
        if not calls:
            yield {"role": "user", "content": self._observation}
        for number, call in enumerate(calls):
            text = NOT_RUN if number else self._observation
            yield {"role": "tool", "tool_call_id": call["id"], "content": text}


def _make_sendable(message: JsonObject) -> JsonObject:
    """Return the message in a form that servers accept."""
    calls = message.get("tool_calls")
    if not calls or all(map(_is_whole, calls)):
        return message
    written = json.dumps(calls, ensure_ascii=False)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message.get("content"), written]))}


def _is_whole(call: Json) -> bool:
    """Return whether servers accept the call."""
    try:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if not (isinstance(call["id"], str) and isinstance(name, str) and isinstance(arguments, dict)):
            return False
        check_text(name, arguments)
    except (ActionError, KeyError, TypeError, ValueError, RecursionError):
        return False
    return True
