"""A small in-process cache: fixed number of slots, least recently used goes first, optional time to live."""

from .cache import Cache
from .clock import ManualClock
from .decorator import cached
from .stats import Stats

__all__ = ["Cache", "ManualClock", "Stats", "cached"]
__version__ = "1.3.0"
