"""What can go wrong."""


class CalcError(ValueError):
    """The expression cannot be read or has no value."""
