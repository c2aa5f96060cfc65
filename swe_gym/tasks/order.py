"""An endless random order of tasks without replacement."""

from __future__ import annotations

import numpy as np


class ShuffledOrder:
    """Numbers tasks in random order: each task once before any twice, and each pass in another order.

    A place of the order depends on count and seed only, so whoever resumes needs no more than the next place.

    Args:
        count: Number of tasks.
        seed: Seed of the order, 0 or more.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._pass = -1
        self._numbers = np.arange(0)

    def __getitem__(self, place: int) -> int:
        """Return the number of the task at a place, from 0."""
        number, inside = divmod(place, self.count)
        if number != self._pass:
            self._pass = number
            self._numbers = np.random.default_rng([self.seed, number]).permutation(self.count)
        return int(self._numbers[inside])
