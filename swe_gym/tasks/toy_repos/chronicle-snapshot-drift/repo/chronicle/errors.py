"""What can go wrong."""


class ChronicleError(Exception):
    """Base of all errors of this package."""


class ConcurrencyError(ChronicleError):
    """Somebody else has appended to the stream in the meantime."""
