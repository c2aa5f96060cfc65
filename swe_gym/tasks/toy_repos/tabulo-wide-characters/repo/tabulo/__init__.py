"""Plain text tables for terminals and mails."""

from .borders import BORDERS, Border
from .table import Column, Table

__all__ = ["BORDERS", "Border", "Column", "Table"]
