"""`python -m threeway [--favor SIDE] [--show-base] BASE OURS THEIRS`."""

import argparse
import sys

from . import merge


def _read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def main(argv=None, out=None):
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="threeway", description="Merge two versions of a text.")
    parser.add_argument("base")
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--favor", choices=["ours", "theirs"])
    parser.add_argument("--show-base", action="store_true")
    options = parser.parse_args(argv)
    paths = (options.base, options.ours, options.theirs)
    base, ours, theirs = map(_read, paths)
    labels = (options.ours, options.base, options.theirs)
    result = merge(base, ours, theirs, options.favor, labels, options.show_base)
    (out or sys.stdout).write(result.text)
    return 1 if result.conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
