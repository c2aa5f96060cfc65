import unittest
from decimal import Decimal

from ledgerline import LedgerError, amount


class AmountTest(unittest.TestCase):
    def test_exact_values(self):
        self.assertEqual(str(amount("12.5")), "12.50")
        self.assertEqual(str(amount(3)), "3.00")
        self.assertEqual(str(amount(Decimal("-0.01"))), "-0.01")

    def test_refused(self):
        for value in (0.1, "1.001", "ten", None):
            with self.assertRaises(LedgerError):
                amount(value)
