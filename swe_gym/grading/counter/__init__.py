"""Counter-tests: required tests once more, changed so that right work must fail them.

Code that shares a process with its judge can change the judge. Whatever turns failures into passes turns counter-tests
into passes too, and that reveals it: no list of tricks is needed.
"""

from .changes import NATURAL, Kind
from .plan import CounterGroup, CounterOptions, CounterPlan, CounterText, Scope, plan_counters
from .source import Source, TextEdit, name_of

__all__ = [
    "NATURAL",
    "CounterGroup",
    "CounterOptions",
    "CounterPlan",
    "CounterText",
    "Kind",
    "Scope",
    "Source",
    "TextEdit",
    "name_of",
    "plan_counters",
]
