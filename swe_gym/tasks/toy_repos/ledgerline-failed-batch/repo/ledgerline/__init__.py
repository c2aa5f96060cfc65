"""Double-entry bookkeeping in memory, with exact decimal money."""

from .account import Account
from .errors import ClosedAccountError, LedgerError, OverdraftError
from .ledger import Ledger
from .money import amount

__all__ = ["Account", "ClosedAccountError", "Ledger", "LedgerError", "OverdraftError", "amount"]
