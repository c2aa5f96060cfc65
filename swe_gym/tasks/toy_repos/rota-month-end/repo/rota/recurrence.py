"""Days that repeat."""

from datetime import date, timedelta

from .months import add_months


class Recurrence:
    """A day and those that follow it at even steps.

    Args:
        first: The first day.
        every: The length of a step, in the unit of the class.
        until: The last day that counts; without it there is no end before the year 9999.
    """

    def __init__(self, first, every=1, until=None):
        if every < 1:
            raise ValueError("every must be at least 1, not {}".format(every))
        self.first = first
        self.every = every
        self.until = until or date.max

    def following(self, day):
        """The day one step after `day`."""
        raise NotImplementedError

    def __iter__(self):
        day = self.first
        while day <= self.until:
            yield day
            try:
                day = self.following(day)
            except (OverflowError, ValueError):  # past the year 9999
                return

    def within(self, window):
        """All days in the given range, in order."""
        days = []
        for day in self:
            if day > window.last:
                break
            if window.contains(day):
                days.append(day)
        return days


class Daily(Recurrence):
    """Every so many days."""

    def following(self, day):
        return day + timedelta(days=self.every)


class Weekly(Recurrence):
    """Every so many weeks, on the weekday of the first day."""

    def following(self, day):
        return day + timedelta(weeks=self.every)


class Monthly(Recurrence):
    """Every so many months, on the same day of the month."""

    def following(self, day):
        return add_months(day, self.every)


class Yearly(Recurrence):
    """Every so many years, on the same day of the year."""

    def following(self, day):
        return add_months(day, 12 * self.every)
