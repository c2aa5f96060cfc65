"""A todo list for the command line."""

__version__ = "0.9.2"
