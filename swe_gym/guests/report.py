"""What the two reporters share: their order, the import path, and signed lines.

A reporter runs in the same process as the tests, and is loaded before any code of the workspace.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Emit = Callable[..., None]
    Prepare = Callable[[Emit, "ImportPath"], Callable[[], object]]

ORDER = "order"
WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of its parts


def take_order(folder: str) -> "tuple[bytes, str, str]":
    """Return the key, the report's path and the workspace; remove the file before product code can read it."""
    path = os.path.join(folder, ORDER)
    try:
        with open(path) as file:
            key, report, workdir = file.read().splitlines()
        os.unlink(path)
    except OSError:
        sys.exit("the reporter has no order: a test command may run the tests only once")
    return bytes.fromhex(key), report, os.path.realpath(workdir)


def lies_in(path: str, folder: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(folder + os.sep)


def is_installed(path: str) -> bool:
    """Return whether modules in `path` belong to the environment, not to the workspace."""
    environment = os.path.realpath(sys.prefix)
    return not lies_in(path or ".", WORKDIR) or (lies_in(environment, WORKDIR) and lies_in(path, environment))


KEY, REPORT, WORKDIR = take_order(os.path.dirname(os.path.abspath(sys.argv[0])))
START_PATH = sys.path[1:]  # the first entry is this script's folder
sys.path[:] = [path for path in START_PATH if is_installed(path)]

import hashlib
import hmac
import importlib.util
import json
import types


def open_report() -> "Emit":
    """Return a function that appends one signed line to the report. Each signature covers the one before."""
    owner = os.getpid()
    last = b""

    def emit(**event: object) -> None:
        nonlocal last
        if os.getpid() != owner:
            return  # a fork of the test process that forgot to end
        line = json.dumps(event, sort_keys=True).encode()
        last = hmac.new(KEY, last + line, hashlib.sha256).hexdigest().encode()
        fd = os.open(REPORT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, last + b" " + line + b"\n")
        os.close(fd)

    return emit


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
    emit = open_report()
    path = ImportPath(first or os.getcwd())
    if importlib.util.find_spec(module) is None:  # it may be the product itself
        path.restore()
    if importlib.util.find_spec(module) is None:
        emit(event="absent")
        sys.exit("there is no %s in this environment" % module)
    emit(event="start")
    main = prepare(emit, path)
    try:
        code: object = main()
    except SystemExit as error:
        code = error.code
    code = 0 if code is None else code if isinstance(code, int) else 1
    emit(event="end", exit_code=code)
    sys.exit(code)
