"""The command line: `python -m calcline [--show] [--set NAME=VALUE ...] EXPRESSION`."""

import argparse
import sys

from . import evaluate, format_expression
from .errors import CalcError


def _assignment(text):
    name, _, value = text.partition("=")
    return name.strip(), evaluate(value)


def main(argv=None, out=sys.stdout):
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="calcline", description="Evaluate one line of arithmetic.")
    parser.add_argument("expression")
    parser.add_argument("--show", action="store_true", help="print the expression itself, in canonical form")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="define a variable")
    # An expression may begin with a minus sign, which argparse would take for an option.
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and "--" not in argv:
        argv.insert(len(argv) - 1, "--")
    options = parser.parse_args(argv)
    try:
        if options.show:
            print(format_expression(options.expression), file=out)
        else:
            print(evaluate(options.expression, dict(map(_assignment, options.set))), file=out)
    except CalcError as error:
        print("error: {}".format(error), file=out)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
