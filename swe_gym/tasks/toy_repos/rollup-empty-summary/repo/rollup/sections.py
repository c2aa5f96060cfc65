"""The sections of a report. Each makes lines of the records."""

from decimal import Decimal

from .layout import columns
from .reader import AMOUNT


class Detail:
    """All records, with all their columns."""

    title = "Detail"

    def lines(self, records):
        """One line for each record, below a head."""
        rows = []
        for record in records:
            if not rows:
                rows.append(list(record))
            rows.append(list(record.values()))
        return columns(rows)


class ByKey:
    """How many records there are for each value of a column, and what they come to."""

    def __init__(self, key):
        self.key = key
        self.title = "By {}".format(key)

    def lines(self, records):
        """One line for each value in sorted order, and the total."""
        counts = {}
        amounts = {}
        for record in records:
            value = record[self.key]
            counts[value] = counts.get(value, 0) + 1
            amounts[value] = amounts.get(value, Decimal(0)) + record[AMOUNT]
        rows = [[value, counts[value], amounts[value]] for value in sorted(counts)]
        total = ["total", sum(counts.values()), sum(amounts.values(), Decimal(0))]
        return columns([[self.key, "count", AMOUNT], *rows, total])
