"""What an event is."""

from typing import Any, Mapping, NamedTuple


class Event(NamedTuple):
    """Something that happened. The first event of a stream makes version 1."""

    key: str
    version: int
    kind: str
    data: Mapping[str, Any]
