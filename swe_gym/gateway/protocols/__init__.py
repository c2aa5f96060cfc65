"""The protocols that agents speak, one module each. Each module is a `Dialect`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...types import JsonObject
from ..calls import Answer, Call, Refusal
from . import chat, google, messages, responses


class Dialect(Protocol):
    """How a protocol writes calls, answers and errors."""

    PING: bytes

    def read(self, body: JsonObject) -> Call:
        """Read a request. Raises Refusal if it is invalid or not supported."""
        ...

    def write(self, call: Call, answer: Answer) -> JsonObject:
        """Return an answer as the body of a response."""
        ...

    def events(self, call: Call, answer: Answer) -> Iterator[bytes]:
        """Yield an answer as events."""
        ...

    def error(self, refusal: Refusal) -> JsonObject:
        """Return the body of an error."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """Return an error inside a stream."""
        ...

    def models(self, names: Sequence[str]) -> JsonObject:
        """Return the list of models."""
        ...

    def model(self, name: str) -> JsonObject:
        """Return one model."""
        ...


DIALECTS: dict[str, Dialect] = {"/chat/completions": chat, "/responses": responses, "/messages": messages}
"""Path, without `/v1` -> protocol of its calls, where the path is the same for all models."""

GOOGLE = re.compile(r"(?:/v1beta|/v1alpha)?/models/(?P<model>.+):(?P<method>\w+)")
GOOGLE_METHODS = ("generateContent", "streamGenerateContent", "countTokens")


class Target(NamedTuple):
    """What a path asks for.

    Attributes:
        dialect: Protocol of the call.
        fields: Fields of the request that the path holds.
        counts: Field of the answer if tokens are counted instead; empty otherwise.
    """

    dialect: Dialect
    fields: JsonObject = {}
    counts: str = ""


def find_target(path: str) -> Target | None:
    """Return what a path, without `/v1`, asks for; None if it is not a call."""
    if path in DIALECTS:
        return Target(DIALECTS[path])
    if path == "/messages/count_tokens":
        return Target(messages, counts="input_tokens")
    found = GOOGLE.fullmatch(path)
    if found is None or found["method"] not in GOOGLE_METHODS:
        return None
    fields = {"model": found["model"], "stream": found["method"] == "streamGenerateContent"}
    return Target(google, fields, "totalTokens" if found["method"] == "countTokens" else "")


def speaker(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the protocol of a request that is not a call, for its answer."""
    if path.startswith("/messages") or "anthropic-version" in headers:
        return messages
    if path.startswith(("/v1beta", "/v1alpha")) or GOOGLE.fullmatch(path) or "x-goog-api-key" in headers:
        return google
    return chat
