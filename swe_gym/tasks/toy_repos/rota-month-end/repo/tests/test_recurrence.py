import unittest
from datetime import date
from itertools import islice

from rota import Daily, DateRange, Monthly, Weekly, Yearly


class RecurrenceTest(unittest.TestCase):
    def first_three(self, rule):
        return [str(day) for day in islice(rule, 3)]

    def test_steps(self):
        self.assertEqual(self.first_three(Daily(date(2024, 2, 28))), ["2024-02-28", "2024-02-29", "2024-03-01"])
        self.assertEqual(self.first_three(Weekly(date(2024, 1, 1), 2)), ["2024-01-01", "2024-01-15", "2024-01-29"])
        self.assertEqual(self.first_three(Monthly(date(2023, 11, 15))), ["2023-11-15", "2023-12-15", "2024-01-15"])
        self.assertEqual(self.first_three(Yearly(date(2024, 5, 1))), ["2024-05-01", "2025-05-01", "2026-05-01"])

    def test_short_month(self):
        self.assertEqual(list(islice(Monthly(date(2024, 1, 31)), 2)), [date(2024, 1, 31), date(2024, 2, 29)])

    def test_until(self):
        rule = Daily(date(2024, 1, 1), every=2, until=date(2024, 1, 4))
        self.assertEqual(list(rule), [date(2024, 1, 1), date(2024, 1, 3)])

    def test_within(self):
        rule = Weekly(date(2024, 1, 1))
        window = DateRange(date(2024, 1, 8), date(2024, 1, 15))
        self.assertEqual(rule.within(window), [date(2024, 1, 8), date(2024, 1, 15)])

    def test_the_calendar_ends(self):
        self.assertEqual(len(list(Yearly(date(9997, 1, 1)))), 3)

    def test_bad_step(self):
        with self.assertRaises(ValueError):
            Daily(date(2024, 1, 1), every=0)
