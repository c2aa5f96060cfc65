import unittest

from calcline import CalcError, evaluate


class ArithmeticTest(unittest.TestCase):
    def test_precedence(self):
        self.assertEqual(evaluate("1 + 2 * 3"), 7)
        self.assertEqual(evaluate("(1 + 2) * 3"), 9)
        self.assertEqual(evaluate("2 * 3 ** 2"), 18)

    def test_left_to_right(self):
        self.assertEqual(evaluate("8 - 3 - 2"), 3)
        self.assertEqual(evaluate("100 / 5 / 2"), 10.0)

    def test_signs(self):
        self.assertEqual(evaluate("-3 + 5"), 2)
        self.assertEqual(evaluate("4 - -3"), 7)
        self.assertEqual(evaluate("--3"), 3)
        self.assertEqual(evaluate("-3 * 2"), -6)

    def test_whole_numbers_stay_whole(self):
        self.assertIsInstance(evaluate("7 * 6"), int)
        self.assertIsInstance(evaluate("8 / 2"), float)

    def test_negative_exponent(self):
        self.assertEqual(evaluate("2 ** -1"), 0.5)


class NamesTest(unittest.TestCase):
    def test_variables_and_constants(self):
        self.assertEqual(evaluate("2 * x", {"x": 21}), 42)
        self.assertAlmostEqual(evaluate("pi"), 3.14159265, places=8)

    def test_functions(self):
        self.assertEqual(evaluate("max(1, 2 + 3, 4)"), 5)
        self.assertEqual(evaluate("sqrt(abs(-16))"), 4.0)


class ErrorsTest(unittest.TestCase):
    def test_messages(self):
        for text, message in [
            ("1 +", "the expression ends too early"),
            ("1 2", "unexpected '2' at column 3"),
            ("2 $ 3", "unexpected character '$' at column 2"),
            ("1 / 0", "division by zero"),
            ("speed", "unknown name 'speed'"),
            ("sin(1)", "unknown function 'sin'"),
        ]:
            with self.assertRaises(CalcError) as caught:
                evaluate(text)
            self.assertEqual(str(caught.exception), message)
