import unittest
from decimal import Decimal

from ledgerline import ClosedAccountError, Ledger, LedgerError, OverdraftError


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.cash = self.ledger.open("cash", overdraft="100.00")
        self.wages = self.ledger.open("wages")

    def test_transfer(self):
        self.ledger.transfer("cash", "wages", "60.00", "salary")
        self.assertEqual(self.wages.balance, Decimal("60.00"))
        self.assertEqual(self.cash.balance, Decimal("-60.00"))
        self.ledger.check()

    def test_overdraft(self):
        with self.assertRaises(OverdraftError):
            self.ledger.transfer("cash", "wages", "100.01")
        self.assertEqual(self.ledger.journal, ())
        self.ledger.check()

    def test_closed_account(self):
        self.wages.close()
        with self.assertRaises(ClosedAccountError):
            self.ledger.transfer("cash", "wages", 1)
        self.assertEqual(self.cash.balance, 0)

    def test_only_empty_accounts_can_be_closed(self):
        self.ledger.transfer("cash", "wages", 1)
        with self.assertRaises(LedgerError):
            self.wages.close()

    def test_nonsense(self):
        for source, target, value in [("cash", "cash", 1), ("cash", "nobody", 1), ("cash", "wages", 0)]:
            with self.assertRaises(LedgerError):
                self.ledger.transfer(source, target, value)

    def test_numbers(self):
        numbers = [self.ledger.transfer("cash", "wages", 1).number for _ in range(3)]
        self.assertEqual(numbers, [1, 2, 3])


class BatchTest(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.ledger.open("cash", overdraft="100.00")
        self.ledger.open("wages")

    def test_successful_batch(self):
        with self.ledger.batch():
            self.ledger.transfer("cash", "wages", 10)
            self.ledger.transfer("wages", "cash", 4)
        self.assertEqual(self.ledger.account("wages").balance, 6)
        self.ledger.check()

    def test_failed_batch_leaves_the_journal_alone(self):
        self.ledger.transfer("cash", "wages", 1)
        with self.assertRaises(OverdraftError):
            with self.ledger.batch():
                self.ledger.transfer("cash", "wages", 10)
                self.ledger.transfer("wages", "cash", 500)
        self.assertEqual(len(self.ledger.journal), 1)

    def test_failed_batch_takes_back_new_accounts(self):
        with self.assertRaises(ZeroDivisionError):
            with self.ledger.batch():
                self.ledger.open("gifts")
                1 / 0
        self.assertEqual(self.ledger.accounts, ["cash", "wages"])
