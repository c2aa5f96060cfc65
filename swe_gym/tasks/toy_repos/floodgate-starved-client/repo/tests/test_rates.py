import unittest

from floodgate import Rate, parse_rates


class RatesTest(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse_rates("5/second"), [Rate(5, 1)])
        self.assertEqual(parse_rates("100 / minute, 1000/day"), [Rate(100, 60), Rate(1000, 86400)])

    def test_interval(self):
        self.assertEqual(Rate(4, 1).interval, 0.25)

    def test_nonsense(self):
        for text in ("", "5", "0/second", "5/fortnight", "a few/day"):
            with self.assertRaises(ValueError):
                parse_rates(text)
