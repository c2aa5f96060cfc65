"""Counters of what a cache has been doing."""

from dataclasses import dataclass


@dataclass
class Stats:
    """Running totals since the cache was made or `reset` was called."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    expirations: int = 0

    @property
    def requests(self):
        """Number of lookups, successful or not."""
        return self.hits + self.misses

    @property
    def hit_rate(self):
        """Share of lookups that found a live entry, 0.0 before the first lookup."""
        return self.hits / self.requests if self.requests else 0.0

    def reset(self):
        """Set all counters back to zero."""
        self.hits = self.misses = self.evictions = self.expirations = 0
