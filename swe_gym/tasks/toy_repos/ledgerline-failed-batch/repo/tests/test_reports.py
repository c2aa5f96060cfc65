import unittest

from ledgerline import Ledger
from ledgerline.payroll import pay_all
from ledgerline.statement import statement


class ReportsTest(unittest.TestCase):
    def test_statement(self):
        ledger = Ledger()
        ledger.open("cash", overdraft="500.00")
        wages = ledger.open("wages")
        ledger.transfer("cash", "wages", "150.00", "salary")
        ledger.transfer("wages", "cash", "49.90", "rail pass")
        self.assertEqual(
            statement(wages).splitlines(),
            [
                "Account wages",
                "   1  cash       salary                   150.00     150.00",
                "   2  cash       rail pass                -49.90     100.10",
                "                              Balance                100.10",
            ],
        )

    def test_payroll(self):
        ledger = Ledger()
        ledger.open("firm", overdraft="5000.00")
        for name in ("ines", "tom"):
            ledger.open(name)
        total = pay_all(ledger, "firm", [("ines", "2100.00"), ("tom", "1990.50")], "May")
        self.assertEqual(str(total), "4090.50")
        self.assertEqual(str(ledger.account("firm").balance), "-4090.50")
