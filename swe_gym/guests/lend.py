"""Makes a folder of the Python that runs it, which then works in any container of the same architecture.

For images that have none. In the folder are the interpreter, its standard library as far as the runner needs it, and
the shared libraries with the loader that links them, so it does not matter whether the image has another C library or
none at all. It works at one place only, where `python3` starts it.
"""

import importlib
import os
import py_compile
import shutil
import sys

MODULES = (
    "collections contextlib ctypes encodings.ascii encodings.latin_1 errno fcntl fnmatch functools hashlib io json os "
    "resource select shutil signal socket stat struct subprocess tarfile tempfile termios time typing"
).split()
"""What the runner, and what is sent before it, imports."""

LAUNCHER = """\
#!/bin/sh
exec {loader}{place}/bin/python "$@"
"""


def lend(folder, place):
    """Fill `folder`, which is to lie at `place`."""
    library = os.path.realpath(os.path.dirname(os.__file__))
    modules = stdlib_files(library)
    inside = os.path.join(folder, os.path.basename(os.path.dirname(library)), os.path.basename(library))
    for file in modules:
        target = copy(file, os.path.join(inside, os.path.relpath(file, library)))
        if target.endswith(".py"):
            py_compile.compile(target)
    os.makedirs(os.path.join(inside, "lib-dynload"), exist_ok=True)  # Python looks for it
    copy(os.path.realpath(sys.executable), os.path.join(folder, "bin", "python"))
    loader = ""
    for file in shared_libraries() - set(modules):
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


def stdlib_files(library):
    for name in MODULES:
        importlib.import_module(name)
    files = [os.path.realpath(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    return [file for file in files if file.startswith(library + os.sep)]


def shared_libraries():
    """All that is mapped here, and so all that the modules need."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(None, 5)[5].strip() for line in maps if line.count("/")]
    return {path for path in paths if ".so" in os.path.basename(path)}


def names_of(file):
    """What programs call a library: the file's name, and the links to it beside it."""
    folder = os.path.dirname(file)
    return [name for name in os.listdir(folder) if os.path.realpath(os.path.join(folder, name)) == file]


def copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return shutil.copy2(source, target)
