"""What the two reporters share: their order, the import path, and the lines they sign.

A guest program: it runs inside the sandbox beside the product's code, on any Python >= 3.6, and needs nothing but the
standard library. It is loaded before any code of the workspace.
"""

import os
import sys

ORDER = "order"
WORSE = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")  # a test ends as the worst of what it did


def take_order(folder):
    """Read the key, the report's path and the workspace, and remove them before product code can look."""
    path = os.path.join(folder, ORDER)
    try:
        with open(path) as file:
            key, report, workdir = file.read().splitlines()
        os.unlink(path)
    except OSError:
        sys.exit("the reporter has no order: a test command may run the tests only once")
    return bytes.fromhex(key), report, os.path.realpath(workdir)


def lies_in(path, folder):
    return (os.path.realpath(path) + os.sep).startswith(folder + os.sep)


def is_installed(path):
    """Whether modules in `path` belong to the environment, and not to the work."""
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


def open_report():
    """A function that appends one signed line to the report. Each signature covers the one before."""
    owner = os.getpid()
    last = b""

    def emit(**event):
        nonlocal last
        if os.getpid() != owner:
            return  # a fork of the test process that forgot to end
        line = json.dumps(event, sort_keys=True).encode()
        last = hmac.new(KEY, last + line, hashlib.sha256).hexdigest().encode()
        fd = os.open(REPORT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, last + b" " + line + b"\n")
        os.close(fd)

    return emit


def act_as_module(name, argv0):
    """Look like `python -m NAME`, with a `__main__` that holds nothing of ours."""
    sys.argv[0] = argv0
    main = types.ModuleType("__main__")
    try:
        main.__spec__ = importlib.util.find_spec(name + ".__main__")
    except (ImportError, AttributeError):  # a module, not a package, as pytest once was
        main.__spec__ = importlib.util.find_spec(name)
    main.__file__ = main.__spec__.origin
    sys.modules["__main__"] = main
    sys.modules.pop("report", None)


class ImportPath:
    """The path that Python imports from: at first the environment's folders alone, or before all others.

    Args:
        first: What `python -m` or a script puts first: the current folder, or the script's.
    """

    def __init__(self, first):
        self.usual = [first, *START_PATH]
        self.installed = [path for path in START_PATH if is_installed(path)]

    def prefer_installed(self):
        """Import what is installed in preference to the work: the runner's own plugins, and what they need."""
        sys.path[:] = self.installed + [path for path in self.usual if path not in self.installed]

    def restore(self):
        """The order that Python itself gives; what was put in front meanwhile stays there."""
        added = [path for path in sys.path if path not in self.usual]
        sys.path[:] = added + self.usual


def report_on(module, prepare, first=""):
    """Do the work of a reporter.

    Args:
        module: The runner's name.
        prepare: Called with `emit` and the `ImportPath` once the runner can be imported; returns a function that runs
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
        code = main()
    except SystemExit as error:
        code = error.code
    code = 0 if code is None else code if isinstance(code, int) else 1
    emit(event="end", exit_code=code)
    sys.exit(code)
