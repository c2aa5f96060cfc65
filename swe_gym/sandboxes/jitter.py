"""Random delays from the system's generator: a program that seeds `random` draws the same numbers with any backend."""

from random import SystemRandom


def jittered(seconds: float, least: float = 0.5, most: float = 1.0) -> float:
    """Return `seconds` times a random factor from `least` to `most`, so that clients do not retry all at once."""
    return seconds * SystemRandom().uniform(least, most)
