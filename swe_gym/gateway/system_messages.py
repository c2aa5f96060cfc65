"""System messages in the places where chat templates expect them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..types import JsonObject


def arrange_system_messages(messages: Sequence[JsonObject], later: str) -> list[JsonObject]:
    """Return messages with one system message at the start: many chat templates take no other.

    Args:
        messages: Messages of OpenAI's chat API.
        later: Role of the system messages after the first other message: "system" or "user".
    """
    leading = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    rest = [
        {**message, "role": later} if message["role"] == "system" else message for message in messages[len(leading) :]
    ]
    texts = [message.get("content") or "" for message in leading]
    if not all(isinstance(text, str) for text in texts):  # parts, such as images
        return [*leading, *rest]
    text = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": text}, *rest] if text else rest
