"""Paying many people at once."""

from .money import ZERO, positive


def pay_all(ledger, source, payments, text):
    """Pay every (account, amount) of `payments` from `source`, all of them or none.

    Returns the total.
    """
    total = ZERO
    with ledger.batch():
        for target, value in payments:
            ledger.transfer(source, target, value, text)
            total += positive(value)
    return total
