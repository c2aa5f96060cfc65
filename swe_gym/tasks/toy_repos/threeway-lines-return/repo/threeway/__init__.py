"""Merges two versions of a text that started from the same one, line by line."""

from .merging import Conflict, Merged, merge

__all__ = ["Conflict", "Merged", "merge"]
