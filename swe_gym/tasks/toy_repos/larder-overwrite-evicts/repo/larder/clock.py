"""Where the time comes from: the system, or a test."""

import time

monotonic = time.monotonic


class ManualClock:
    """A clock that stands still until it is told to move.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock()
    1.5
    """

    def __init__(self, start=0.0):
        self._now = start

    def __call__(self):
        return self._now

    def advance(self, seconds):
        """Move forward by `seconds`."""
        if seconds < 0:
            raise ValueError("a clock does not run backwards")
        self._now += seconds
