import unittest
from decimal import Decimal

from rollup import InputError, Pipeline, read_csv

LINES = ["region,amount\n", "south,2.50\n", "north,10\n", "south,4\n"]


class ReaderTest(unittest.TestCase):
    def test_amounts_are_exact(self):
        records = list(read_csv(LINES))
        self.assertEqual(records[0], {"region": "south", "amount": Decimal("2.50")})

    def test_errors(self):
        for lines, message in [
            (["region\n", "south\n"], "line 1: there is no column 'amount'"),
            (["region,amount\n", "south,1\n", "north,much\n"], "line 3: not an amount: 'much'"),
            ([], "line 1: there is no column 'amount'"),
        ]:
            with self.assertRaises(InputError) as caught:
                list(read_csv(lines))
            self.assertEqual(str(caught.exception), message)


class PipelineTest(unittest.TestCase):
    def amounts(self, pipeline):
        return [str(record["amount"]) for record in pipeline]

    def test_where(self):
        self.assertEqual(
            self.amounts(Pipeline(read_csv(LINES)).where(lambda record: record["region"] == "south")), ["2.50", "4"]
        )

    def test_derive(self):
        pipeline = Pipeline(read_csv(LINES)).derive("double", lambda record: 2 * record["amount"])
        self.assertEqual([str(record["double"]) for record in pipeline], ["5.00", "20", "8"])

    def test_sorted_by(self):
        self.assertEqual(self.amounts(Pipeline(read_csv(LINES)).sorted_by("amount")), ["2.50", "4", "10"])
