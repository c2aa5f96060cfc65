"""`python -m tabulo < file.tsv`: the first line holds the titles, the others the rows."""

import argparse
import sys

from . import BORDERS, Table


def draw(lines, border):
    """A table of tab-separated lines. Short rows are filled up with empty cells."""
    rows = [line.rstrip("\n").split("\t") for line in lines if line.strip()]
    if not rows:
        return ""
    table = Table(rows[0], border=border)
    for row in rows[1:]:
        table.add(*(row + [None] * len(rows[0]))[: len(rows[0])])
    return table.render()


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tabulo", description="Draw a table of tab-separated lines.")
    parser.add_argument("--border", choices=sorted(BORDERS), default="light")
    options = parser.parse_args(argv)
    print(draw(sys.stdin, options.border))


if __name__ == "__main__":
    main()
