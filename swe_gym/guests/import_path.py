"""Leaves the standard library alone on the import path, so that no module of the workspace takes the place of one.

A reporter imports this guest before all others. `report` puts the other entries back.
"""

import os
import sys


def lies_in(path: str, folder: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(os.path.realpath(folder) + os.sep)


START_PATH = sys.path[1:]  # the first entry is this script's folder
sys.path[:] = [path for path in START_PATH if lies_in(path, os.path.dirname(os.__file__))]
