import unittest
from datetime import date
from itertools import islice

from rota import DateRange, Monthly, Roster, Weekly, Yearly
from rota.planfile import parse


def texts(days):
    """ISO texts of real dates, and of nothing else."""
    return [date.isoformat(day) for day in days]


class MonthEndTest(unittest.TestCase):
    def test_last_day_of_the_month(self):
        rule = Monthly(date(2023, 1, 31))
        self.assertEqual(
            texts(rule.within(DateRange(date(2023, 1, 1), date(2023, 6, 30)))),
            ["2023-01-31", "2023-02-28", "2023-03-31", "2023-04-30", "2023-05-31", "2023-06-30"],
        )

    def test_thirtieth(self):
        self.assertEqual(
            texts(islice(Monthly(date(2023, 12, 30)), 5)),
            ["2023-12-30", "2024-01-30", "2024-02-29", "2024-03-30", "2024-04-30"],
        )

    def test_every_third_month(self):
        self.assertEqual(
            texts(islice(Monthly(date(2023, 8, 31), every=3), 5)),
            ["2023-08-31", "2023-11-30", "2024-02-29", "2024-05-31", "2024-08-31"],
        )

    def test_leap_day(self):
        self.assertEqual(
            texts(islice(Yearly(date(2024, 2, 29)), 5)),
            ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"],
        )

    def test_until(self):
        rule = Monthly(date(2023, 1, 31), until=date(2023, 3, 30))
        self.assertEqual(texts(rule), ["2023-01-31", "2023-02-28"])

    def test_a_window_late_in_the_series(self):
        rule = Monthly(date(2019, 1, 31))
        window = DateRange(date(2024, 2, 1), date(2024, 3, 31))
        self.assertEqual(texts(rule.within(window)), ["2024-02-29", "2024-03-31"])

    def test_the_calendar_ends(self):
        self.assertEqual(texts(Monthly(date(9999, 10, 31))), ["9999-10-31", "9999-11-30", "9999-12-31"])

    def test_can_be_iterated_again(self):
        rule = Monthly(date(2023, 1, 31))
        self.assertEqual(texts(islice(rule, 4)), texts(islice(rule, 4)))


class RosterAtMonthEndTest(unittest.TestCase):
    def setUp(self):
        self.roster = Roster()
        self.roster.add("stocktaking", Monthly(date(2023, 1, 31)), ["Ines", "Tom"])

    def check(self, turns, expected):
        self.assertEqual([(date.isoformat(day), str.lower(person)) for day, person in turns], expected)

    def test_upcoming_after_a_short_month(self):
        self.check(
            self.roster.upcoming("stocktaking", after=date(2023, 2, 28), count=2),
            [("2023-03-31", "ines"), ("2023-04-30", "tom")],
        )

    def test_upcoming_between_the_days(self):
        self.check(self.roster.upcoming("stocktaking", after=date(2023, 3, 28)), [("2023-03-31", "ines")])

    def test_upcoming_from_the_start(self):
        self.check(
            self.roster.upcoming("stocktaking", after=date(2022, 12, 1), count=3),
            [("2023-01-31", "ines"), ("2023-02-28", "tom"), ("2023-03-31", "ines")],
        )

    def test_upcoming_stops_at_the_end(self):
        self.roster.add("audit", Monthly(date(2023, 1, 31), until=date(2023, 4, 30)), ["Yuki"])
        self.check(
            self.roster.upcoming("audit", after=date(2023, 3, 1), count=9),
            [("2023-03-31", "yuki"), ("2023-04-30", "yuki")],
        )

    def test_plan(self):
        self.roster.add("kitchen", Weekly(date(2023, 3, 24)), ["Yuki"])
        turns = self.roster.plan(DateRange(date(2023, 3, 25), date(2023, 4, 5)))
        self.assertEqual(
            turns, [(date(2023, 3, 31), "kitchen", "Yuki"), (date(2023, 3, 31), "stocktaking", "Ines")]
        )

    def test_plan_file(self):
        roster = parse(["stocktaking  month  2023-01-31  Ines, Tom\n", "leapers  year  2024-02-29  Yuki\n"])
        self.check(roster.upcoming("stocktaking", after=date(2023, 4, 1)), [("2023-04-30", "tom")])
        self.check(roster.upcoming("leapers", after=date(2028, 2, 28)), [("2028-02-29", "yuki")])
