"""Leaves the standard library alone on the import path, so that no module of the workspace takes the place of one.

A reporter imports this guest before all others. `report` puts the other entries back.
"""

import os
import sys


def lies_in(path: str, folder: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(os.path.realpath(folder) + os.sep)


def start_path() -> "list[str]":
    """Return the import path with the folders that the starter held back, and without this script's folder."""
    held = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "held", "")
    named = os.environ.get("PYTHONPATH", "")
    entries = [entry[len(held) :] if entry.startswith(held) else entry for entry in named.split(os.pathsep)]
    if held not in named:
        return sys.path[1:]
    os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    found = [] if sys.flags.ignore_environment else [os.path.abspath(entry) for entry in entries]
    return list(dict.fromkeys(found + [path for path in sys.path[1:] if not (path + os.sep).startswith(held)]))


START_PATH = start_path()
sys.path[:] = [path for path in START_PATH if lies_in(path, os.path.dirname(os.__file__))]
