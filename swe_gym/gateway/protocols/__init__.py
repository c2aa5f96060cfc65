"""The protocols that agents speak, one module each. Each module is a `Dialect`."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ...types import JsonObject
from ..calls import Answer, Call, Refusal
from . import chat, messages, responses


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
"""Path, without `/v1` -> protocol of its calls."""
