"""Token buckets."""


class Bucket:
    """Tokens that are taken one by one and come back with time.

    Args:
        rate: How many tokens there are at most, and how fast they come back.
        now: The time at which the bucket is full.
    """

    def __init__(self, rate, now):
        self.rate = rate
        self.tokens = rate.tokens
        self._updated = now

    def refill(self, now):
        """Put in the tokens that have come back since the last time."""
        earned = int((now - self._updated) / self.rate.interval)
        self.tokens = min(self.rate.tokens, self.tokens + earned)
        self._updated = now

    def take(self):
        """Take one token. The caller has made sure that there is one."""
        self.tokens -= 1

    def wait(self, now):
        """Seconds until there is a token, 0.0 if there is one."""
        if self.tokens:
            return 0.0
        return self._updated + self.rate.interval - now
