"""Vector environments: many episodes in one process."""

from .families import make_vec
from .slot import ResultsNotReady
from .vector_env import Seeds, SweVectorEnv

__all__ = ["ResultsNotReady", "Seeds", "SweVectorEnv", "make_vec"]
