"""The ledger: accounts, and the journal of what moved between them."""

from contextlib import contextmanager

from .account import Account
from .errors import LedgerError
from .journal import Transfer, postings_of
from .money import ZERO, positive


class Ledger:
    """A set of accounts and a journal."""

    def __init__(self):
        self._accounts = {}
        self._journal = []

    @property
    def journal(self):
        """All transfers, in order, as a tuple."""
        return tuple(self._journal)

    @property
    def accounts(self):
        """The names of all accounts, in the order in which they were opened."""
        return list(self._accounts)

    def open(self, name, overdraft=ZERO):
        """Open an account and return it."""
        if name in self._accounts:
            raise LedgerError("there is an account {!r} already".format(name))
        self._accounts[name] = Account(name, overdraft)
        return self._accounts[name]

    def account(self, name):
        """The account of that name."""
        if name not in self._accounts:
            raise LedgerError("there is no account {!r}".format(name))
        return self._accounts[name]

    def transfer(self, source, target, value, text=""):
        """Move money from one account to another and return the line of the journal.

        Raises:
            OverdraftError: The source has not got that much.
            ClosedAccountError: One of them is closed.
            LedgerError: There is no such account, they are the same, or the amount is not positive.
        """
        if source == target:
            raise LedgerError("source and target are both {!r}".format(source))
        transfer = Transfer(len(self._journal) + 1, source, target, positive(value), text)
        giver, taker = self.account(source), self.account(target)
        giver.check(-transfer.amount)
        taker.check(transfer.amount)
        out, into = postings_of(transfer)
        giver.post(out)
        taker.post(into)
        self._journal.append(transfer)
        return transfer

    @contextmanager
    def batch(self):
        """Context manager: everything inside happens, or nothing does."""
        accounts = {name: account.copy() for name, account in self._accounts.items()}
        written = len(self._journal)
        try:
            yield self
        except BaseException:
            self._accounts = accounts
            del self._journal[written:]
            raise

    def check(self):
        """Raise LedgerError unless the accounts are what the journal makes of them."""
        totals = dict.fromkeys(self._accounts, ZERO)
        for transfer in self._journal:
            totals[transfer.source] -= transfer.amount
            totals[transfer.target] += transfer.amount
        for name, account in self._accounts.items():
            posted = sum((posting.amount for posting in account.postings), ZERO)
            if not totals[name] == account.balance == posted:
                raise LedgerError("the journal and the account {!r} disagree".format(name))
