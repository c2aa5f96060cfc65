"""CSV files to records."""

import csv
from decimal import Decimal, InvalidOperation

AMOUNT = "amount"


class InputError(ValueError):
    """A file is not what it should be. The message names the line."""


def read_csv(lines):
    """The records of a CSV file, as dicts; the amount is a Decimal.

    Raises:
        InputError: There is no column for the amount, or a line has no proper one.
    """
    reader = csv.DictReader(lines)
    if AMOUNT not in (reader.fieldnames or ()):
        raise InputError("line 1: there is no column {!r}".format(AMOUNT))
    return _records(reader)


def _records(reader):
    for row in reader:
        try:
            amount = Decimal(row[AMOUNT])
        except (InvalidOperation, TypeError):
            raise InputError("line {}: not an amount: {!r}".format(reader.line_num, row[AMOUNT])) from None
        yield {**row, AMOUNT: amount}
