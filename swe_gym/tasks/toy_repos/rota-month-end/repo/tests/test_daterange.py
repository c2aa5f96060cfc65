import unittest
from datetime import date

from rota import DateRange

MAY = DateRange(date(2024, 5, 1), date(2024, 5, 31))


class DateRangeTest(unittest.TestCase):
    def test_both_ends_count(self):
        self.assertEqual(MAY.days(), 31)
        self.assertTrue(MAY.contains(date(2024, 5, 31)))
        self.assertFalse(MAY.contains(date(2024, 6, 1)))

    def test_overlap(self):
        late = DateRange(date(2024, 5, 31), date(2024, 6, 7))
        self.assertEqual(MAY.overlap(late), DateRange(date(2024, 5, 31), date(2024, 5, 31)))
        self.assertIsNone(MAY.overlap(DateRange(date(2024, 6, 1), date(2024, 6, 2))))

    def test_without(self):
        week = DateRange(date(2024, 5, 6), date(2024, 5, 12))
        self.assertEqual(
            MAY.without(week),
            [DateRange(date(2024, 5, 1), date(2024, 5, 5)), DateRange(date(2024, 5, 13), date(2024, 5, 31))],
        )
        self.assertEqual(MAY.without(MAY), [])
