"""`python -m rollup FILE --by COLUMN [--by COLUMN ...] [--detail] [--where COLUMN=VALUE]`."""

import argparse
import sys

from . import ByKey, Detail, InputError, Pipeline, Report, read_csv


def _condition(text):
    name, _, value = text.partition("=")
    return lambda record: record.get(name) == value


def main(argv=None, out=None):
    """Run the command line and return the exit status."""
    out = out or sys.stdout
    parser = argparse.ArgumentParser(prog="rollup", description="Print a small report about a CSV file.")
    parser.add_argument("file")
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help="sum up by this column")
    parser.add_argument("--detail", action="store_true", help="list the records first")
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE", help="only some records")
    options = parser.parse_args(argv)
    sections = [Detail()] if options.detail else []
    sections.extend(map(ByKey, options.by))
    try:
        with open(options.file, newline="", encoding="utf-8") as file:
            pipeline = Pipeline(read_csv(file))
            for text in options.where:
                pipeline = pipeline.where(_condition(text))
            print(Report(sections).render(pipeline), file=out)
    except InputError as error:
        print("rollup: {}: {}".format(options.file, error), file=out)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
