"""Snapshots: the state of aggregates at some version, so that older events need not be replayed."""

from typing import Any, Dict, NamedTuple


class Snapshot(NamedTuple):
    """A state and the version that it belongs to."""

    version: int
    state: Dict[str, Any]


class Snapshots:
    """The latest snapshot of each aggregate, in memory."""

    def __init__(self):
        self._latest = {}

    def put(self, key, version, state):
        """Keep the state of an aggregate. It is copied: what happens to the aggregate later does not matter."""
        self._latest[key] = Snapshot(version, dict(state))

    def get(self, key):
        """The latest snapshot of an aggregate, or None."""
        return self._latest.get(key)

    def drop(self, key):
        """Forget the snapshot of an aggregate, if there is one."""
        self._latest.pop(key, None)
