"""`python -m inikeep FILE get|set|unset SECTION.OPTION [VALUE]`."""

import argparse
import sys

from . import InikeepError, load


def main(argv=None, out=None):
    """Run the command line and return the exit status."""
    out = out or sys.stdout
    parser = argparse.ArgumentParser(prog="inikeep", description="Read and change INI files.")
    parser.add_argument("file")
    parser.add_argument("action", choices=["get", "set", "unset"])
    parser.add_argument("option", metavar="SECTION.OPTION")
    parser.add_argument("value", nargs="?")
    options = parser.parse_args(argv)
    section, dot, option = options.option.rpartition(".")
    if not dot or (options.action == "set") != (options.value is not None):
        parser.error("expected SECTION.OPTION, and a VALUE for set only")
    try:
        document = load(options.file)
        if options.action == "get":
            value = document.get(section, option)
            if value is None:
                return 1
            print(value, file=out)
            return 0
        if options.action == "set":
            document.set(section, option, options.value)
        else:
            document.remove(section, option)
        document.save(options.file)
    except InikeepError as error:
        print("inikeep: {}: {}".format(options.file, error), file=out)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
