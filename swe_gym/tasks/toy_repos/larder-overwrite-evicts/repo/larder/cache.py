"""The cache itself: an ordered dict whose first entry is the least recently used."""

from collections import OrderedDict

from .clock import monotonic
from .entry import Entry
from .stats import Stats


class Cache:
    """Keeps at most `capacity` entries, each for at most `ttl` seconds.

    Args:
        capacity: Number of slots, at least 1.
        ttl: Default time to live in seconds; None keeps entries until they are evicted.
        clock: A callable that returns the time in seconds.
    """

    def __init__(self, capacity, ttl=None, clock=monotonic):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.ttl = ttl
        self.stats = Stats()
        self._clock = clock
        self._entries = OrderedDict()

    def get(self, key, default=None):
        """The value of `key`, or `default` if it is missing or has expired."""
        entry = self._entries.get(key)
        if entry is not None and entry.expired(self._clock()):
            self._expire(key)
            entry = None
        if entry is None:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key, value, ttl=None):
        """Store `value` under `key`, for `ttl` seconds where that is given."""
        if len(self._entries) >= self.capacity:
            self._make_room()
        self._entries[key] = Entry(value, self._deadline(ttl))

    def delete(self, key):
        """Forget `key`. Returns whether there was anything to forget."""
        return self._entries.pop(key, None) is not None

    def purge(self):
        """Drop all expired entries and return how many there were."""
        now = self._clock()
        stale = [key for key, entry in self._entries.items() if entry.expired(now)]
        for key in stale:
            self._expire(key)
        return len(stale)

    def keys(self):
        """The live keys, from the least to the most recently used."""
        now = self._clock()
        return [key for key, entry in self._entries.items() if not entry.expired(now)]

    def __contains__(self, key):
        entry = self._entries.get(key)
        return entry is not None and not entry.expired(self._clock())

    def __len__(self):
        return len(self.keys())

    def _deadline(self, ttl):
        lifetime = self.ttl if ttl is None else ttl
        return None if lifetime is None else self._clock() + lifetime

    def _expire(self, key):
        del self._entries[key]
        self.stats.expirations += 1

    def _make_room(self):
        if self.purge() == 0:
            self._entries.popitem(last=False)
            self.stats.evictions += 1
