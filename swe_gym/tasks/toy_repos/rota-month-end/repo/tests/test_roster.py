import unittest
from datetime import date

from rota import DateRange, Monthly, Roster, Weekly
from rota.planfile import parse


class RosterTest(unittest.TestCase):
    def setUp(self):
        self.roster = Roster()
        self.roster.add("kitchen", Weekly(date(2024, 1, 1)), ["Ines", "Tom", "Yuki"])

    def test_plan(self):
        self.roster.add("bins", Monthly(date(2024, 1, 8)), ["Tom"])
        self.assertEqual(
            self.roster.plan(DateRange(date(2024, 1, 2), date(2024, 1, 15))),
            [
                (date(2024, 1, 8), "bins", "Tom"),
                (date(2024, 1, 8), "kitchen", "Tom"),
                (date(2024, 1, 15), "kitchen", "Yuki"),
            ],
        )

    def test_upcoming(self):
        self.assertEqual(
            self.roster.upcoming("kitchen", after=date(2024, 1, 8), count=2),
            [(date(2024, 1, 15), "Yuki"), (date(2024, 1, 22), "Ines")],
        )

    def test_upcoming_before_the_first_day(self):
        self.assertEqual(self.roster.upcoming("kitchen", after=date(2023, 6, 1)), [(date(2024, 1, 1), "Ines")])

    def test_upcoming_stops_at_the_end(self):
        self.roster.add("project", Weekly(date(2024, 1, 1), until=date(2024, 1, 8)), ["Yuki"])
        self.assertEqual(
            self.roster.upcoming("project", after=date(2024, 1, 1), count=5), [(date(2024, 1, 8), "Yuki")]
        )

    def test_a_duty_needs_people(self):
        with self.assertRaises(ValueError):
            self.roster.add("garden", Weekly(date(2024, 1, 1)), [])


class PlanFileTest(unittest.TestCase):
    def test_parse(self):
        roster = parse(["# who does what\n", "\n", "kitchen  2 weeks  2024-01-01  Ines, Tom\n"])
        self.assertEqual(
            roster.upcoming("kitchen", after=date(2024, 1, 1)), [(date(2024, 1, 15), "Tom")]
        )

    def test_bad_line(self):
        with self.assertRaisesRegex(ValueError, "line 1"):
            parse(["kitchen sometimes\n"])
