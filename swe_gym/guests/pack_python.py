"""Makes a folder of the Python that runs it, for containers of the same architecture that have none.

The folder holds the interpreter, the standard library as far as the runner needs it, and the shared libraries with
their loader, so the image may have another C library or none. It works at one path only, where `python3` starts it.
"""

import contextlib
import ctypes
import importlib
import os
import py_compile
import shutil
import sys

MODULES = (
    "collections contextlib ctypes encodings.ascii encodings.latin_1 errno fcntl fnmatch functools hashlib io json os "
    "resource select shutil signal socket stat struct subprocess tarfile tempfile termios time types"
).split()
"""Imports of the runner and of the programs that are sent before it."""

LEFT_OUT = "site-packages dist-packages test tests idlelib turtledemo tkinter ensurepip config-* __pycache__".split()
"""Folders of the standard library that no agent needs."""

LAUNCHER = """\
#!/bin/sh
exec {loader}{place}/bin/python "$@"
"""


def pack_python(folder: str, place: str, site: str = "") -> None:
    """Fill `folder`, which will be mounted at `place`.

    With a folder of packages, `site`, it gets the whole standard library, and the shared libraries that they need.
    """
    library = os.path.realpath(os.path.dirname(os.__file__))
    inside = os.path.join(folder, os.path.basename(os.path.dirname(library)), os.path.basename(library))
    if site:
        load_extensions(os.path.join(library, "lib-dynload"))
        load_extensions(site)
        shutil.copytree(library, inside, ignore=shutil.ignore_patterns(*LEFT_OUT))
    else:
        for file in stdlib_files(library):
            target = copy(file, os.path.join(inside, os.path.relpath(file, library)))
            if target.endswith(".py"):
                py_compile.compile(target)
    os.makedirs(os.path.join(inside, "lib-dynload"), exist_ok=True)  # Python looks for it
    copy(os.path.realpath(sys.executable), os.path.join(folder, "bin", "python"))
    loader = ""
    for file in shared_libraries():
        if file.startswith((library + os.sep, (site or library) + os.sep)):
            continue
        first, *others = names_of(file)
        copy(file, os.path.join(folder, "libraries", first))
        for name in others:
            os.symlink(first, os.path.join(folder, "libraries", name))
        for name in (first, *others):
            if name.startswith("ld-"):
                loader = f"{place}/libraries/{name} --library-path {place}/libraries "
    launcher = os.path.join(folder, "python3")
    with open(launcher, "w") as out:
        out.write(LAUNCHER.format(loader=loader, place=place))
    os.chmod(launcher, 0o755)


def load_extensions(folder: str) -> None:
    """Map all extension modules below a folder, and so the libraries that they need."""
    for where, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".so") and not name.startswith(("_tkinter", "_test")):
                with contextlib.suppress(OSError):  # it lacks a library here too
                    ctypes.CDLL(os.path.join(where, name))


def stdlib_files(library: str) -> "list[str]":
    for name in MODULES:
        importlib.import_module(name)
    files = [os.path.realpath(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    return [file for file in files if file.startswith(library + os.sep)]


def shared_libraries() -> "set[str]":
    """Return the libraries that this process has mapped, and so all that the modules need."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(None, 5)[5].strip() for line in maps if line.count("/")]
    return {path for path in paths if ".so" in os.path.basename(path)}


def names_of(file: str) -> "list[str]":
    """Return the names of a library: the file's own, and those of links to it in its folder."""
    folder = os.path.dirname(file)
    return [name for name in os.listdir(folder) if os.path.realpath(os.path.join(folder, name)) == file]


def copy(source: str, target: str) -> str:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return shutil.copy2(source, target)
