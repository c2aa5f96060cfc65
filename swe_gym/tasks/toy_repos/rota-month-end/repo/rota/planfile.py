"""Rosters as text files.

Each line is a duty: its name, how often, the first day, and the people who take turns.

    # duty      rhythm      first day    people
    kitchen     2 weeks     2024-01-01   Ines, Tom, Yuki
    newsletter  month       2024-01-15   Tom
"""

import re
from datetime import date

from .recurrence import Daily, Monthly, Weekly, Yearly
from .roster import Roster

_RULES = {"day": Daily, "week": Weekly, "month": Monthly, "year": Yearly}
_LINE = re.compile(r"(?P<name>\S+)\s+(?:(?P<every>\d+)\s+)?(?P<unit>[a-z]+?)s?\s+(?P<first>\S+)\s+(?P<people>.+)")


def parse(lines):
    """The roster that the lines describe. Comments start with "#"."""
    roster = Roster()
    for number, line in enumerate(lines, start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or match.group("unit") not in _RULES:
            raise ValueError("line {}: expected a duty, a rhythm, a day and people".format(number))
        rule = _RULES[match.group("unit")]
        people = [person.strip() for person in match.group("people").split(",")]
        first = date.fromisoformat(match.group("first"))
        roster.add(match.group("name"), rule(first, int(match.group("every") or 1)), people)
    return roster
