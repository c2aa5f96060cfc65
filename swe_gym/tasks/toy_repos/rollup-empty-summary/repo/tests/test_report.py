import io
import os
import unittest

from rollup import ByKey, Detail, Pipeline, Report, read_csv
from rollup.__main__ import main

SAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "samples", "sales.csv")
LINES = ["region,product,amount\n", "south,tea,2.50\n", "north,pot,10\n", "south,pot,4\n"]


class SectionTest(unittest.TestCase):
    def render(self, *sections):
        return Report(sections).render(Pipeline(read_csv(LINES))).splitlines()

    def test_by_key(self):
        self.assertEqual(
            self.render(ByKey("region")),
            [
                "By region",
                "region  count  amount",
                "north       1   10.00",
                "south       2    6.50",
                "total       3   16.50",
            ],
        )

    def test_detail(self):
        self.assertEqual(
            self.render(Detail()),
            [
                "Detail",
                "region  product  amount",
                "south   tea        2.50",
                "north   pot       10.00",
                "south   pot        4.00",
            ],
        )

    def test_no_records(self):
        self.assertEqual(
            Report([ByKey("region")]).render(Pipeline([])).splitlines()[-1], "total       0    0.00"
        )


class CommandLineTest(unittest.TestCase):
    def rollup(self, *argv):
        out = io.StringIO()
        self.status = main(list(argv), out)
        return out.getvalue().splitlines()

    def test_where(self):
        lines = self.rollup(SAMPLE, "--by", "product", "--where", "region=north")
        self.assertEqual(lines[-1], "total        3   29.20")
        self.assertEqual(self.status, 0)

    def test_titles(self):
        lines = self.rollup(SAMPLE, "--detail", "--by", "region")
        self.assertIn("Detail", lines)
        self.assertIn("By region", lines)
