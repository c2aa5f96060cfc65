"""Arithmetic with months."""

import calendar


def add_months(day, count):
    """The same day `count` months later, or the last of that month if it is too short.

    >>> from datetime import date
    >>> add_months(date(2023, 12, 31), 2)
    datetime.date(2024, 2, 29)
    """
    year, month = divmod(day.year * 12 + day.month - 1 + count, 12)
    month += 1
    return day.replace(year=year, month=month, day=min(day.day, calendar.monthrange(year, month)[1]))
