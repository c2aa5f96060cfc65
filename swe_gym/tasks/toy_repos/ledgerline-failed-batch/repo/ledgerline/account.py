"""Accounts."""

import copy

from .errors import ClosedAccountError, LedgerError, OverdraftError
from .money import ZERO, amount


class Account:
    """A name, a balance and how it came about.

    Args:
        name: What the account is called.
        overdraft: How far below zero the balance may fall.
    """

    def __init__(self, name, overdraft=ZERO):
        self.name = name
        self.overdraft = amount(overdraft)
        self.balance = ZERO
        self.closed = False
        self._postings = []

    @property
    def postings(self):
        """The postings so far, as a tuple."""
        return tuple(self._postings)

    def check(self, change):
        """Raise unless the balance can change by the given amount."""
        if self.closed:
            raise ClosedAccountError("the account {!r} is closed".format(self.name))
        if self.balance + change < -self.overdraft:
            raise OverdraftError(
                "the account {!r} has {} and may owe {}".format(self.name, self.balance, self.overdraft)
            )

    def post(self, posting):
        """Write down a posting."""
        self.check(posting.amount)
        self._postings.append(posting)
        self.balance += posting.amount

    def close(self):
        """Close the account, which must be empty."""
        if self.balance != ZERO:
            raise LedgerError("the account {!r} still has {}".format(self.name, self.balance))
        self.closed = True

    def copy(self):
        """The account as it is now."""
        return copy.copy(self)

    def __repr__(self):
        return "<Account {} {}>".format(self.name, self.balance)
