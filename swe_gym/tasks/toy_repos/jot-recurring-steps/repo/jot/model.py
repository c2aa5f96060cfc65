"""What a todo is."""

from dataclasses import dataclass, field
from datetime import date
from typing import List, Optional


class JotError(Exception):
    """Something the user should know and can put right."""


@dataclass
class Step:
    """One line of a check list."""

    text: str
    ticked: bool = False


@dataclass
class Todo:
    """One thing to do.

    Attributes:
        number: What the user calls it by. Never used twice.
        every: "day", "week" or "month" where the todo repeats.
        history: What happened to it, in words, oldest first.
    """

    number: int
    title: str
    due: Optional[date] = None
    every: Optional[str] = None
    done: bool = False
    tags: List[str] = field(default_factory=list)
    steps: List[Step] = field(default_factory=list)
    history: List[str] = field(default_factory=list)

    def step(self, position):
        """The step at `position`, counted from 1."""
        if not 1 <= position <= len(self.steps):
            raise JotError("#{} has no step {}".format(self.number, position))
        return self.steps[position - 1]

    def reopen_steps(self):
        """Make all steps open again."""
        for step in self.steps:
            step.ticked = False

    def log(self, entry):
        """Append a line to the history."""
        self.history.append(entry)
