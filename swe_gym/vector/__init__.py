"""Vector environments: many episodes in one process."""

from .families import make_vec
from .tickets import ResultsNotReady
from .vector_env import SweVectorEnv

__all__ = ["ResultsNotReady", "SweVectorEnv", "make_vec"]
