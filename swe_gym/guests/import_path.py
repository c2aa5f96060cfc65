"""Leaves the standard library alone on the import path, so that no module of the workspace takes the place of one.

A reporter imports this guest before all others. `report` puts the other entries back.
"""

import os
import sys


def lies_in(path: str, folder: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(os.path.realpath(folder) + os.sep)


def start_path() -> "list[str]":
    """Return the import path with the folders that the starter held back, and without this script's folder."""
    named = os.environ.pop("SWE_GYM_PYTHONPATH", "")
    if named:
        os.environ["PYTHONPATH"] = named
    found = [os.path.abspath(path) for path in named.split(os.pathsep)] if named else []
    return list(dict.fromkeys(found + sys.path[1:]))


START_PATH = start_path()
sys.path[:] = [path for path in START_PATH if lies_in(path, os.path.dirname(os.__file__))]
