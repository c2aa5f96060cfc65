"""A package of environments as verifiers' users write it."""

from swe_gym.adapters.verifiers import InProcessEnv, SweHarness, SweTaskset

__all__ = ["InProcessEnv", "SweHarness", "SweTaskset"]
