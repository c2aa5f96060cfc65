"""Digests of what a model reads of a conversation: role, text, and names and arguments of tool calls."""

import hashlib
import itertools
import json
from typing import NamedTuple

from ..types import JsonMapping
from .calls import Call
from .parsing import arguments_of


def digest(value: object) -> bytes:
    """Return the digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


NO_TOOLS = digest([])
"""Digest of the tools of a call without tools."""


def mark(message: JsonMapping) -> bytes:
    """Return the digest of what a model reads of a message. Reasoning does not count: agents often drop it."""
    calls = [[call["function"]["name"], arguments_of(call)] for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    return digest([message["role"], content.strip() if isinstance(content, str) else content, calls])


def path_after(path: bytes, message: JsonMapping) -> bytes:
    """Return the digest of a conversation after another message."""
    return hashlib.sha256(path + mark(message)).digest()


class Digests(NamedTuple):
    """The digests of a conversation.

    Attributes:
        marks: Digest of each message.
        paths: Digest of the conversation up to each message.
        tools: Digest of the tools.
    """

    marks: list[bytes]
    paths: list[bytes]
    tools: bytes


def digests_of(call: Call) -> Digests:
    """Return the digests of a call's messages."""
    marks = [mark(message) for message in call.messages]
    paths = itertools.accumulate(marks, lambda path, one: hashlib.sha256(path + one).digest(), initial=b"")
    return Digests(marks, list(paths)[1:], digest(list(call.tools)))


def text_of(message: JsonMapping) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content)
