"""Where the time comes from."""

import time

monotonic = time.monotonic


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now

    def advance(self, seconds):
        """Move forward by `seconds`."""
        self.now += seconds
