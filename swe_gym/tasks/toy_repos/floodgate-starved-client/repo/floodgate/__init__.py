"""Rate limits for anything that has a key."""

from .bucket import Bucket
from .clock import ManualClock
from .limiter import Limiter
from .rates import Rate, parse_rates

__all__ = ["Bucket", "Limiter", "ManualClock", "Rate", "parse_rates"]
