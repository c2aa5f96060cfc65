"""`python -m topmake [--file Buildfile] [GOAL ...]` prints the commands, in order."""

import argparse
import sys

from . import TopmakeError, parse, run


def main(argv=None):
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="topmake", description="Print what has to be done, in order.")
    parser.add_argument("--file", default="Buildfile")
    parser.add_argument("goals", nargs="*")
    options = parser.parse_args(argv)

    def show(command):
        print(command)
        return True

    try:
        with open(options.file, encoding="utf-8", newline="") as file:
            run(parse(file.read()), options.goals, show)
    except TopmakeError as error:
        print("topmake: {}".format(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
