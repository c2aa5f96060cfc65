"""What one slot of the cache holds."""

from typing import Any, NamedTuple, Optional


class Entry(NamedTuple):
    """A value and the moment from which it no longer counts (None: it never expires)."""

    value: Any
    deadline: Optional[float]

    def expired(self, now):
        """Whether the entry is past its deadline at time `now`."""
        return self.deadline is not None and now >= self.deadline
