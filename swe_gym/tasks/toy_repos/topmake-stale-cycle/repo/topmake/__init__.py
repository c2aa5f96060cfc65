"""Works out what to do, and in which order, from a Buildfile in the manner of make."""

from .errors import BuildfileError, CycleError, TopmakeError, UnknownTarget
from .parser import Buildfile, Rule, parse
from .planner import plan
from .runner import run

__all__ = [
    "Buildfile",
    "BuildfileError",
    "CycleError",
    "Rule",
    "TopmakeError",
    "UnknownTarget",
    "parse",
    "plan",
    "run",
]
