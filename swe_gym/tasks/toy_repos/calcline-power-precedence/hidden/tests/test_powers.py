import io
import unittest

from calcline import evaluate, format_expression, parse
from calcline.__main__ import main


class PowerValueTest(unittest.TestCase):
    def check(self, text, expected):
        value = evaluate(text)
        self.assertIs(type(value), type(expected), text)
        self.assertEqual(value, expected, text)

    def test_power_binds_tighter_than_a_sign(self):
        self.check("-2 ** 2", -4)
        self.check("+2 ** 2", 4)
        self.check("--2 ** 2", 4)
        self.check("10 - -3 ** 2", 19)
        self.check("2 * -3 ** 2", -18)

    def test_parentheses_win(self):
        self.check("(-2) ** 2", 4)
        self.check("(2 ** 3) ** 2", 64)

    def test_towers_are_read_from_the_top(self):
        self.check("2 ** 3 ** 2", 512)
        self.check("2 ** 2 ** 2 ** 2", 65536)
        self.check("4 ** 3 ** 2 ** 0", 64)

    def test_sign_on_the_exponent(self):
        self.check("2 ** -1", 0.5)
        self.check("2 ** -1 ** 2", 0.5)
        self.check("2 ** -2 ** 2", 0.0625)
        self.check("2 ** -1 * 4", 2.0)
        self.check("2 ** --3", 8)

    def test_signs_still_bind_tighter_than_products(self):
        self.check("-7 % 4", 1)
        self.check("-6 / 4", -1.5)

    def test_other_operators_stay_left_to_right(self):
        self.check("8 - 3 - 2", 3)
        self.check("100 / 5 / 2", 10.0)
        self.check("17 % 10 % 4", 3)

    def test_command_line(self):
        out = io.StringIO()
        self.assertEqual(main(["-2 ** 2"], out), 0)
        self.assertEqual(out.getvalue(), "-4\n")


class PowerTextTest(unittest.TestCase):
    def check(self, text, expected):
        written = format_expression(text)
        self.assertIs(type(written), str)
        self.assertEqual(written, expected)

    def test_base_that_is_a_power(self):
        self.check("(2 ** 3) ** 2", "(2 ** 3) ** 2")
        self.check("((a ** b) ** c) ** d", "((a ** b) ** c) ** d")

    def test_exponent_that_is_a_power(self):
        self.check("2 ** (3 ** 2)", "2 ** 3 ** 2")
        self.check("a ** (b ** (c ** d))", "a ** b ** c ** d")

    def test_signs(self):
        self.check("(-2) ** 2", "(-2) ** 2")
        self.check("-(2 ** 2)", "-2 ** 2")
        self.check("(-x) * y", "-x * y")

    def test_other_operators(self):
        self.check("(8 - 3) - 2", "8 - 3 - 2")
        self.check("8 - (3 - 2)", "8 - (3 - 2)")
        self.check("(2 * 3) ** (1 + 1)", "(2 * 3) ** (1 + 1)")

    def test_round_trip(self):
        for text in [
            "(2 ** 3) ** 2",
            "2 ** 3 ** 2",
            "(-2) ** 2",
            "-2 ** 2",
            "-(-2) ** -2",
            "2 ** -1 ** 2",
            "(2 ** -1) ** 2",
            "-(2 * 3)",
            "(-(a + b)) ** c",
            "a ** (b * c) ** d",
            "1 - -2 ** 2 - 3",
        ]:
            tree = parse(text)
            self.assertEqual(repr(parse(format_expression(tree))), repr(tree), text)
