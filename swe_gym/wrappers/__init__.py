"""Gymnasium wrappers for `SweEnv`."""
