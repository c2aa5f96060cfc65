import unittest

from calcline import format_expression, parse


class PrinterTest(unittest.TestCase):
    def test_drops_needless_parentheses(self):
        self.assertEqual(format_expression("((1 + 2)) * (3)"), "(1 + 2) * 3")
        self.assertEqual(format_expression("(8 - 3) - 2"), "8 - 3 - 2")

    def test_keeps_needed_parentheses(self):
        self.assertEqual(format_expression("8 - (3 - 2)"), "8 - (3 - 2)")
        self.assertEqual(format_expression("-(1 + 2)"), "-(1 + 2)")

    def test_spacing(self):
        self.assertEqual(format_expression("max( 1,2*x )"), "max(1, 2 * x)")

    def test_round_trip(self):
        for text in ["1 - (2 - 3) - 4", "2 * (3 % 4) * 5", "-(-1)", "a / (b * c)"]:
            self.assertEqual(parse(format_expression(text)), parse(text))
