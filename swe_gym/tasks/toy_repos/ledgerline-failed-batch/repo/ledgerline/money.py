"""Amounts of money: exact, with two places."""

from decimal import Decimal, InvalidOperation

from .errors import LedgerError

CENT = Decimal("0.01")
ZERO = Decimal("0.00")


def amount(value):
    """`value` as a Decimal with two places. Floats are refused: they are not exact.

    >>> amount("12.5")
    Decimal('12.50')
    """
    if isinstance(value, float):
        raise LedgerError("amounts cannot be floats: write {!r} instead".format(str(value)))
    try:
        exact = Decimal(value)
        rounded = exact.quantize(CENT)
    except (InvalidOperation, TypeError, ValueError):
        raise LedgerError("not an amount: {!r}".format(value)) from None
    if rounded != exact:
        raise LedgerError("{!r} has more than two places".format(value))
    return rounded


def positive(value):
    """Like `amount`, and refuses zero and less."""
    result = amount(value)
    if result <= ZERO:
        raise LedgerError("an amount must be positive, not {}".format(result))
    return result
