"""Event sourcing in a few small pieces."""

from .aggregate import Aggregate
from .errors import ChronicleError, ConcurrencyError
from .events import Event
from .projection import Projection
from .repository import Repository
from .snapshots import Snapshots
from .store import EventStore

__all__ = [
    "Aggregate",
    "ChronicleError",
    "ConcurrencyError",
    "Event",
    "EventStore",
    "Projection",
    "Repository",
    "Snapshots",
]
