"""What can go wrong."""


class LedgerError(Exception):
    """Base of all errors of this package."""


class OverdraftError(LedgerError):
    """The account would fall below what it may owe."""


class ClosedAccountError(LedgerError):
    """The account is closed."""
