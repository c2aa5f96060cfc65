"""Limiters: a set of buckets for each key."""

from .bucket import Bucket
from .clock import monotonic
from .rates import parse_rates


class Limiter:
    """Says who may go on and who has to wait.

    Args:
        rates: The rates as text, as in "100/minute, 5/second".
        clock: A callable that returns the time in seconds.
    """

    def __init__(self, rates, clock=monotonic):
        self.rates = parse_rates(rates)
        self._clock = clock
        self._buckets = {}

    def allow(self, key):
        """Whether the key may go on now. If so, that takes a token from each of its buckets."""
        buckets = self._refilled(key, self._clock())
        if not all(bucket.tokens for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.take()
        return True

    def remaining(self, key):
        """How often the key may go on right now."""
        return min(bucket.tokens for bucket in self._refilled(key, self._clock()))

    def retry_after(self, key):
        """Seconds until the key may go on, 0.0 if it may do so now."""
        now = self._clock()
        return max(bucket.wait(now) for bucket in self._refilled(key, now))

    def sweep(self):
        """Forget the keys whose buckets are all full, and return how many they were."""
        now = self._clock()
        full = [key for key in self._buckets if self._is_full(key, now)]
        for key in full:
            del self._buckets[key]
        return len(full)

    def __len__(self):
        return len(self._buckets)

    def _is_full(self, key, now):
        return all(bucket.tokens == bucket.rate.tokens for bucket in self._refilled(key, now))

    def _refilled(self, key, now):
        """The buckets of a key, one for each rate, as they are now."""
        if key not in self._buckets:
            self._buckets[key] = [Bucket(rate, now) for rate in self.rates]
        for bucket in self._buckets[key]:
            bucket.refill(now)
        return self._buckets[key]
