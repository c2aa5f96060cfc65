"""Who is on duty, and when."""

from .daterange import DateRange
from .recurrence import Daily, Monthly, Weekly, Yearly
from .roster import Roster

__all__ = ["Daily", "DateRange", "Monthly", "Roster", "Weekly", "Yearly"]
