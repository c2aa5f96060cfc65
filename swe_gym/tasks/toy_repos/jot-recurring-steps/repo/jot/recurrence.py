"""Todos that come back."""

import calendar
from dataclasses import replace
from datetime import timedelta

from .model import JotError


def next_date(day, every):
    """The day on which something that was due on `day` is due again."""
    if every == "day":
        return day + timedelta(days=1)
    if every == "week":
        return day + timedelta(days=7)
    if every == "month":
        year, month = (day.year + 1, 1) if day.month == 12 else (day.year, day.month + 1)
        return day.replace(year=year, month=month, day=min(day.day, calendar.monthrange(year, month)[1]))
    raise JotError("cannot repeat every {!r}: use day, week or month".format(every))


def successor(todo, number):
    """The todo that follows a finished one, under a number of its own."""
    following = replace(todo, number=number, due=next_date(todo.due, todo.every), done=False)
    following.reopen_steps()
    following.log("repeats #{}".format(todo.number))
    return following
