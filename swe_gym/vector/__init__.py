"""Vector environments: many episodes in one process."""

from .tickets import ResultsNotReady
from .vector_env import SweVectorEnv

__all__ = ["ResultsNotReady", "SweVectorEnv"]
