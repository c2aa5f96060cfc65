"""What the two reporters share: the import path, and a run of the tests that is reported to the keeper.

A reporter runs in the same process as the tests, and is loaded before any code of the workspace.
"""

import os
import sys

from .import_path import START_PATH, lies_in
from .keeper import split
from .twins import Twins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Emit = Callable[..., None]
    Prepare = Callable[[Emit, "ImportPath"], Callable[[], object]]

WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of its parts


def is_installed(path: str) -> bool:
    """Return whether modules in `path` belong to the environment, not to the workspace."""
    environment = os.path.realpath(sys.prefix)
    return not lies_in(path or ".", WORKDIR) or (lies_in(environment, WORKDIR) and lies_in(path, environment))


LINK, KNOWN = split(os.path.dirname(os.path.abspath(sys.argv[0])))
WORKDIR = os.path.realpath(KNOWN["workdir"])
TWINS = Twins(LINK, KNOWN, WORKDIR)
sys.path[:] = [path for path in START_PATH if is_installed(path)]

import importlib.util
import types


def act_as_module(name: str, argv0: str) -> None:
    """Look like `python -m NAME`, with an empty `__main__`."""
    sys.argv[0] = argv0
    main = types.ModuleType("__main__")
    try:
        main.__spec__ = importlib.util.find_spec(name + ".__main__")
    except (ImportError, AttributeError):  # a module, not a package, as pytest once was
        main.__spec__ = importlib.util.find_spec(name)
    main.__file__ = main.__spec__.origin if main.__spec__ else None
    sys.modules["__main__"] = main


class ImportPath:
    """The path that Python imports from: first the environment's folders only, then all.

    Args:
        first: The entry that `python -m` or a script puts first: the current folder, or the script's.
    """

    def __init__(self, first: str) -> None:
        self.usual = [first, *START_PATH]
        self.installed = [path for path in START_PATH if is_installed(path)]

    def prefer_installed(self) -> None:
        """Import installed modules before the workspace's: the test runner's plugins, and what they need."""
        sys.path[:] = self.installed + [path for path in self.usual if path not in self.installed]

    def restore(self) -> None:
        """Restore the order that Python gives. Entries that were added in front meanwhile stay."""
        added = [path for path in sys.path if path not in self.usual]
        sys.path[:] = added + self.usual


def report_on(module: str, prepare: "Prepare", first: str = "") -> None:
    """Run the tests and report how they ended. Does not return.

    Args:
        module: The test runner's module.
        prepare: Called with `emit` and the `ImportPath` once the module can be imported; returns a function that runs
            the tests and returns the exit code.
        first: The first entry of the import path; empty is the current folder.
    """
    emit = LINK.tell
    path = ImportPath(first or os.getcwd())
    if importlib.util.find_spec(module) is None:  # it may be the product itself
        path.restore()
    if importlib.util.find_spec(module) is None:
        emit(event="absent")
        sys.exit("there is no %s in this environment" % module)
    emit(event="started")
    main = prepare(emit, path)
    try:
        code: object = main()
    except SystemExit as error:
        code = error.code
    code = 0 if code is None else code if isinstance(code, int) else 1
    emit(event="end", exit_code=code)
    sys.exit(code)
