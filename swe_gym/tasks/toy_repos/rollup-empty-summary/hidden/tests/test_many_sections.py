import io
import os
import unittest
from decimal import Decimal

from rollup import ByKey, Detail, InputError, Pipeline, Report, read_csv
from rollup.__main__ import main

LINES = ["region,product,amount\n", "south,tea,2.50\n", "north,pot,10\n", "south,pot,4\n"]
DETAIL = [
    "Detail",
    "region  product  amount",
    "south   tea        2.50",
    "north   pot       10.00",
    "south   pot        4.00",
]
BY_REGION = [
    "By region",
    "region  count  amount",
    "north       1   10.00",
    "south       2    6.50",
    "total       3   16.50",
]
BY_PRODUCT = [
    "By product",
    "product  count  amount",
    "pot          2   14.00",
    "tea          1    2.50",
    "total        3   16.50",
]


class ManySectionsTest(unittest.TestCase):
    def setUp(self):
        self.pipeline = Pipeline(read_csv(iter(LINES)))

    def check(self, report, records, expected):
        text = report.render(records)
        self.assertIs(type(text), str)
        self.assertEqual(text.splitlines(), expected)

    def test_detail_and_summary(self):
        self.check(Report([Detail(), ByKey("region")]), self.pipeline, [*DETAIL, "", *BY_REGION])

    def test_summary_and_detail(self):
        self.check(Report([ByKey("region"), Detail()]), self.pipeline, [*BY_REGION, "", *DETAIL])

    def test_three_sections(self):
        self.check(
            Report([ByKey("product"), ByKey("region"), Detail()]),
            self.pipeline,
            [*BY_PRODUCT, "", *BY_REGION, "", *DETAIL],
        )

    def test_same_section_twice(self):
        self.check(Report([Detail(), Detail()]), self.pipeline, [*DETAIL, "", *DETAIL])

    def test_rendering_twice(self):
        report = Report([ByKey("region")])
        self.check(report, self.pipeline, BY_REGION)
        self.check(report, self.pipeline, BY_REGION)

    def test_one_section(self):
        self.check(Report([ByKey("region")]), self.pipeline, BY_REGION)


class PipelineAgainTest(unittest.TestCase):
    def setUp(self):
        self.pipeline = Pipeline(read_csv(iter(LINES)))

    def amounts(self, pipeline):
        """The amounts as text; Decimal.__str__ takes nothing but a Decimal."""
        return [Decimal.__str__(record["amount"]) for record in pipeline]

    def test_records_come_as_often_as_asked(self):
        self.assertEqual(self.amounts(self.pipeline), ["2.50", "10", "4"])
        self.assertEqual(self.amounts(self.pipeline), ["2.50", "10", "4"])

    def test_two_pipelines_from_one(self):
        south = self.pipeline.where(lambda record: record["region"] == "south")
        north = self.pipeline.where(lambda record: record["region"] == "north")
        self.assertEqual(self.amounts(south), ["2.50", "4"])
        self.assertEqual(self.amounts(north), ["10"])
        self.assertEqual(self.amounts(self.pipeline.sorted_by("amount")), ["2.50", "4", "10"])

    def test_every_step_can_be_read_again(self):
        doubled = self.pipeline.derive("double", lambda record: 2 * record["amount"])
        large = doubled.where(lambda record: record["double"] > 5)
        for _ in range(2):
            self.assertEqual([Decimal.__str__(record["double"]) for record in large], ["20", "8"])
            self.assertEqual([Decimal.__str__(record["double"]) for record in doubled], ["5.00", "20", "8"])

    def test_records_are_not_changed(self):
        self.amounts(self.pipeline.derive("double", lambda record: 2 * record["amount"]))
        self.assertEqual([sorted(record) for record in self.pipeline], [["amount", "product", "region"]] * 3)

    def test_plain_list(self):
        records = [{"amount": Decimal("1")}]
        self.assertEqual(self.amounts(Pipeline(records)), ["1"])

    def test_bad_line(self):
        with self.assertRaisesRegex(InputError, "line 3: not an amount: 'much'"):
            list(Pipeline(read_csv(["region,amount\n", "south,1\n", "north,much\n"])))


class CommandLineTest(unittest.TestCase):
    sample = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "samples", "sales.csv")

    def test_detail_and_summary(self):
        out = io.StringIO()
        self.assertEqual(main([self.sample, "--by", "region", "--detail"], out), 0)
        lines = out.getvalue().splitlines()
        self.assertEqual(len(lines), 15)
        self.assertEqual(lines[-1], "total       6   82.00")

    def test_two_summaries_of_some_records(self):
        out = io.StringIO()
        argv = [self.sample, "--by", "region", "--by", "product", "--where", "region=north", "--where", "product=tea"]
        self.assertEqual(main(argv, out), 0)
        self.assertEqual(
            out.getvalue().splitlines(),
            [
                "By region",
                "region  count  amount",
                "north       2   25.00",
                "total       2   25.00",
                "",
                "By product",
                "product  count  amount",
                "tea          2   25.00",
                "total        2   25.00",
            ],
        )
