"""Ranges of days."""

from datetime import date, timedelta
from typing import NamedTuple

ONE_DAY = timedelta(days=1)


class DateRange(NamedTuple):
    """The days from `first` to `last`, both included."""

    first: date
    last: date

    def days(self):
        """The number of days."""
        return (self.last - self.first).days + 1

    def contains(self, day):
        """Whether `day` lies in the range."""
        return self.first <= day <= self.last

    def overlap(self, other):
        """The days that both ranges have, or None."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return DateRange(first, last) if first <= last else None

    def without(self, other):
        """What is left of the range when the days of `other` are taken out: a list of up to two ranges."""
        common = self.overlap(other)
        if common is None:
            return [self]
        pieces = []
        if self.first < common.first:
            pieces.append(DateRange(self.first, common.first - ONE_DAY))
        if common.last < self.last:
            pieces.append(DateRange(common.last + ONE_DAY, self.last))
        return pieces
