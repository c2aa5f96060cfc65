import unittest
from decimal import Decimal

from ledgerline import ClosedAccountError, Ledger, LedgerError, OverdraftError
from ledgerline.payroll import pay_all
from ledgerline.statement import statement


class Boom(Exception):
    pass


class BatchCase(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.cash = self.ledger.open("cash", overdraft="1000.00")
        self.wages = self.ledger.open("wages")
        self.rent = self.ledger.open("rent")
        self.ledger.transfer("cash", "wages", "900.00", "salary")

    def balances(self):
        """The balances as text; Decimal.__str__ takes nothing but a Decimal."""
        return {name: Decimal.__str__(self.ledger.account(name).balance) for name in self.ledger.accounts}

    def fail_after(self, *steps):
        """Run the steps in a batch that then fails."""
        with self.assertRaises(Boom):
            with self.ledger.batch():
                for step in steps:
                    step()
                raise Boom


class FailedBatchTest(BatchCase):
    def test_balances(self):
        with self.assertRaises(OverdraftError):
            with self.ledger.batch():
                self.ledger.transfer("wages", "rent", "850.00", "rent June")
                self.ledger.transfer("wages", "rent", "850.00", "rent July")
        self.assertEqual(self.balances(), {"cash": "-900.00", "wages": "900.00", "rent": "0.00"})
        self.ledger.check()

    def test_accounts_stay_the_same_objects(self):
        self.fail_after(lambda: self.ledger.transfer("wages", "rent", 5))
        for account in (self.cash, self.wages, self.rent):
            self.assertIs(self.ledger.account(account.name), account)
        self.assertEqual(Decimal.__str__(self.wages.balance), "900.00")
        self.ledger.transfer("wages", "rent", "1.50")
        self.assertEqual(Decimal.__str__(self.rent.balance), "1.50")

    def test_postings(self):
        before = repr([account.postings for account in (self.cash, self.wages, self.rent)])
        self.fail_after(
            lambda: self.ledger.transfer("wages", "rent", 5),
            lambda: self.ledger.transfer("rent", "cash", 2),
        )
        self.assertEqual(repr([account.postings for account in (self.cash, self.wages, self.rent)]), before)

    def test_statement(self):
        before = statement(self.wages)
        self.fail_after(lambda: self.ledger.transfer("wages", "rent", 5))
        self.assertEqual(str.splitlines(statement(self.wages)), str.splitlines(before))

    def test_journal_goes_on_without_a_gap(self):
        self.fail_after(lambda: self.ledger.transfer("wages", "rent", 5))
        self.assertEqual(repr(self.ledger.transfer("wages", "rent", 7).number), "2")
        self.assertEqual([posting.number for posting in self.wages.postings], [1, 2])
        self.ledger.check()

    def test_closed_account_is_open_again(self):
        self.fail_after(self.rent.close)
        self.assertIs(self.rent.closed, False)
        self.ledger.transfer("wages", "rent", 5)

    def test_account_closed_before_stays_closed(self):
        self.rent.close()
        self.fail_after(lambda: self.ledger.transfer("wages", "cash", 5))
        self.assertIs(self.rent.closed, True)
        with self.assertRaises(ClosedAccountError):
            self.ledger.transfer("wages", "rent", 5)

    def test_account_opened_inside_is_gone(self):
        def give():
            self.ledger.open("gifts")
            self.ledger.transfer("wages", "gifts", 20)

        self.fail_after(give)
        self.assertEqual(self.ledger.accounts, ["cash", "wages", "rent"])
        with self.assertRaises(LedgerError):
            self.ledger.account("gifts")
        self.assertEqual(Decimal.__str__(self.wages.balance), "900.00")
        self.assertEqual(Decimal.__str__(self.ledger.open("gifts").balance), "0.00")

    def test_keyboard_interrupt(self):
        with self.assertRaises(KeyboardInterrupt):
            with self.ledger.batch():
                self.ledger.transfer("wages", "rent", 5)
                raise KeyboardInterrupt
        self.assertEqual(Decimal.__str__(self.rent.balance), "0.00")

    def test_two_failures_in_a_row(self):
        for _ in range(2):
            self.fail_after(lambda: self.ledger.transfer("wages", "rent", 5))
        self.assertEqual(self.balances(), {"cash": "-900.00", "wages": "900.00", "rent": "0.00"})

    def test_payroll(self):
        with self.assertRaises(OverdraftError):
            pay_all(self.ledger, "wages", [("rent", "500.00"), ("cash", "500.00")], "June")
        self.assertEqual(self.balances(), {"cash": "-900.00", "wages": "900.00", "rent": "0.00"})


class NestedBatchTest(BatchCase):
    def test_inner_failure_is_caught(self):
        with self.ledger.batch():
            self.ledger.transfer("wages", "rent", 100)
            self.fail_after(lambda: self.ledger.transfer("wages", "rent", 30))
            self.ledger.transfer("wages", "rent", 1)
        self.assertEqual(self.balances(), {"cash": "-900.00", "wages": "799.00", "rent": "101.00"})
        self.assertEqual(len(self.ledger.journal), 3)
        self.ledger.check()

    def test_outer_failure_takes_back_the_inner_batch(self):
        def inner():
            with self.ledger.batch():
                self.ledger.transfer("wages", "rent", 30)

        self.fail_after(inner)
        self.assertEqual(self.balances(), {"cash": "-900.00", "wages": "900.00", "rent": "0.00"})
        self.ledger.check()


class SuccessfulBatchTest(BatchCase):
    def test_everything_stays(self):
        with self.ledger.batch():
            self.ledger.transfer("wages", "rent", 850)
            self.ledger.open("gifts")
        self.assertEqual(
            self.balances(), {"cash": "-900.00", "wages": "50.00", "rent": "850.00", "gifts": "0.00"}
        )
        self.assertIs(self.ledger.account("wages"), self.wages)
        self.ledger.check()
