"""`python -m rota plan.txt 2024-01-01 2024-03-31`."""

import argparse
from datetime import date

from . import DateRange
from .planfile import parse


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="rota", description="Print who is on duty.")
    parser.add_argument("file")
    parser.add_argument("first", type=date.fromisoformat)
    parser.add_argument("last", type=date.fromisoformat)
    options = parser.parse_args(argv)
    with open(options.file, encoding="utf-8") as lines:
        roster = parse(lines)
    for day, duty, person in roster.plan(DateRange(options.first, options.last)):
        print("{:%a} {}  {:<12} {}".format(day, day, duty, person))


if __name__ == "__main__":
    main()
