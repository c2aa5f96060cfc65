"""A URL router and nothing else."""

from .errors import BuildError, MethodNotAllowed, NotFound, PatternError, RoutingError
from .headers import Headers
from .router import Match, Router

__all__ = ["BuildError", "Headers", "Match", "MethodNotAllowed", "NotFound", "PatternError", "Router", "RoutingError"]
