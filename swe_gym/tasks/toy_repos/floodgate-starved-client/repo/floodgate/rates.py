"""Rates and how they are written: "5/second", "100/minute, 1000/day"."""

import re
from typing import NamedTuple

UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE = re.compile(r"\s*(\d+)\s*/\s*([a-z]+)\s*")


class Rate(NamedTuple):
    """So many tokens in so many seconds."""

    tokens: int
    seconds: int

    @property
    def interval(self):
        """Seconds from one token to the next."""
        return self.seconds / self.tokens


def parse_rates(text):
    """The rates in a text, separated by commas."""
    rates = []
    for part in text.split(","):
        match = _RATE.fullmatch(part)
        if match is None or match.group(2) not in UNITS or int(match.group(1)) == 0:
            raise ValueError("not a rate: {!r}, expected something like '5/second'".format(part.strip()))
        rates.append(Rate(int(match.group(1)), UNITS[match.group(2)]))
    return rates
