"""Reads and changes INI files and leaves alone what it is not asked to change."""

from .document import Document
from .errors import InikeepError, ParseError
from .files import load

__all__ = ["Document", "InikeepError", "ParseError", "load", "parse"]

parse = Document.parse
