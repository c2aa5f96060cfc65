"""Duties and the people who take turns with them."""

from typing import Any, NamedTuple, Tuple


class Duty(NamedTuple):
    """Something that repeats, and who does it in turn."""

    name: str
    rule: Any
    people: Tuple[str, ...]

    def person(self, turn):
        """Who is on duty at the given turn; the first turn is 0."""
        return self.people[turn % len(self.people)]


class Roster:
    """Duties under their names."""

    def __init__(self):
        self._duties = {}

    def add(self, name, rule, people):
        """Add a duty. The first of `people` has it on the first day of `rule`."""
        if name in self._duties:
            raise ValueError("there is a duty {!r} already".format(name))
        if not people:
            raise ValueError("the duty {!r} needs people".format(name))
        self._duties[name] = Duty(name, rule, tuple(people))

    def plan(self, window):
        """All turns in the given range as (day, duty, person), sorted by day and then by duty."""
        turns = []
        for duty in self._duties.values():
            for turn, day in enumerate(duty.rule):
                if day > window.last:
                    break
                if window.contains(day):
                    turns.append((day, duty.name, duty.person(turn)))
        return sorted(turns)

    def upcoming(self, name, after, count=1):
        """The next `count` turns of one duty after a day, as (day, person)."""
        duty = self._duties[name]
        turn, day = 0, duty.rule.first
        while day <= after:
            turn, day = turn + 1, duty.rule.following(day)
        turns = []
        while len(turns) < count and day <= duty.rule.until:
            turns.append((day, duty.person(turn)))
            turn, day = turn + 1, duty.rule.following(day)
        return turns
