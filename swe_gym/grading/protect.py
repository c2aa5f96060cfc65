"""Sets back a policy's changes to the tests and to the runner's configuration, and modules that would replace a runner.

Such changes are left out, so that the fresh workspace keeps its original. Everything else is product and stays,
including a `conftest.py` or tests of the policy's own away from hidden tests.
"""

import argparse
import fnmatch
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence, Set

from ..types import Oracle, Task
from .diff import touched_files
from .ids import parse_id
from .patch import FileChange, Patch, parents
from .plan import parse_command, read_plan

RUNNER_CONFIGURATION = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"})
"""Files near hidden tests that configure pytest and not the product."""

RUNNER_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "pytest_cov", "xdist", "execnet"})
"""Modules of test runners."""

RUNNER_LIBRARIES = frozenset(
    {"py", "packaging", "exceptiongroup", "pygments", "tomli", "attr", "attrs", "more_itertools"}
    | {"importlib_metadata", "zipp", "coverage"}
)
"""Modules that test runners import and that a product may bring itself."""

INTERPRETER_HOOKS = frozenset({"sitecustomize", "usercustomize", "apport_python_hook"})
HARMLESS_SHADOWS = frozenset({"test", "this", "antigravity", "idlelib", "turtledemo"})
SHADOWING = (RUNNER_MODULES | sys.stdlib_module_names) - HARMLESS_SHADOWS
"""Modules that a new top-level module of the same name replaces in the test process."""

NAME = re.compile(rb"[A-Za-z_]\w*")
SCRIPT = re.compile(
    r"(?:\bpython[\d.]*[ \t]+(?:-[WX][ \t]+\S+[ \t]+|-\S+[ \t]+)*|(?:^|[;&|])[ \t]*)([\w./{}$-]+\.py)(?=\s|$)",
    re.MULTILINE,
)
"""A Python script in a command. Its folder comes first on Python's path."""

CHANGED_FOLDER = re.compile(r"\b(?:cd|pushd)[ \t]+(?:--[ \t]+)?([^\s;&|)]+)")
"""A folder to which a shell goes."""


class Protection:
    """The files that one task protects from the work.

    Args:
        task: The task. Its oracle names the tests, its environment the folders that Python imports from.
    """

    def __init__(self, task: Task) -> None:
        oracle = task.oracle
        self._globs = tuple(glob.rstrip("/") for glob in oracle.test_paths)
        self._hidden = hidden_files(oracle)
        command = _test_command(oracle)
        named = set(_find_named_tests(oracle))
        self._named = _named_files(task, command) | {path for path, whole in named if whole}
        self._modules = {path for path, whole in named if not whole}
        folders = {_folder(path) for path in self._hidden | self._named} | {_literal_part(glob) for glob in self._globs}
        self._beside_tests = folders
        self._above_tests = {"", *folders, *(parent for folder in folders for parent in parents(folder))}
        self._import_roots = {"", "src", "lib", *_python_path(task, command), *_import_roots(task, command)}

    def covers(self, change: FileChange, packages: Set[str] = frozenset()) -> bool:
        """Whether grading sets a change back, unless the work needs it.

        Args:
            change: The change.
            packages: Folders that are Python packages, as in `Patch.packages`.
        """
        return self._is_the_tasks(change, packages) or self._is_doubtful(change, packages)

    def sift(self, patch: Patch) -> tuple[Patch, tuple[str, ...]]:
        """Return the part of a patch that counts, and the sorted paths of the rest.

        A change that cannot stand beside a kept original, such as a file in place of the tests' folder, does not count
        either.
        """
        packages = frozenset(patch.packages)
        tasks = {change.path for change in patch.changes if self._is_the_tasks(change, packages)}
        left = [change for change in patch.changes if change.path not in tasks]
        fixed = tasks | self._not_needed(left, packages) | self._hidden
        above = {parent for path in fixed for parent in parents(path)}
        kept, dropped = [], [entry.path for entry in patch.dropped]
        for change in patch.changes:
            in_the_way = change.path in above and change.new is not None
            below_a_file = any(parent in fixed for parent in parents(change.path))
            if change.path in fixed or in_the_way or below_a_file:
                dropped.append(change.path)
            else:
                kept.append(change)
        return patch.model_copy(update={"changes": tuple(kept)}), tuple(sorted(dropped))

    def _is_doubtful(self, change: FileChange, packages: Set[str]) -> bool:
        """Whether a new file might disturb the run without being product. The rest of the work decides which it is."""
        is_library = change.old is None and self._provides(change.path, RUNNER_LIBRARIES, packages)
        return is_library or self._joins_the_tests(change)

    def _not_needed(self, changes: Sequence[FileChange], packages: Set[str]) -> set[str]:
        """The doubtful files that no other module of the work names."""
        waiting = {change.path: change for change in changes if self._is_doubtful(change, packages)}
        todo = [change for change in changes if change.path not in waiting]
        while todo:
            change = todo.pop()
            if not change.path.endswith(".py"):
                continue
            names = set(NAME.findall(change.new or b""))
            todo += [waiting.pop(path) for path in list(waiting) if _module(path)[1].encode() in names]
        return set(waiting)

    def ignored_folders(self, patch: Patch, workdir: str) -> list[str]:
        """Return options that keep pytest from collecting the policy's files.

        These are folders with a `conftest.py` of the policy's, whose effects are not confined to its folder, and
        modules of the product that look like tests. No hidden test lies there.
        """
        made = [change for change in patch.changes if change.new is not None]
        folders = [
            folder for folder, name in (posixpath.split(change.path) for change in made) if name == "conftest.py"
        ]
        files = [change.path for change in made if self._joins_the_tests(change)]
        return [f"--ignore={posixpath.join(workdir, path)}" for path in (*folders, *files)]

    def _is_the_tasks(self, change: FileChange, packages: Set[str]) -> bool:
        """Whether a change is to the tests or the runner's configuration, or would replace the runner."""
        path = change.path
        if change.old is None and self._provides(path, SHADOWING, packages):
            return True
        if change.new is None and self._provides(path, RUNNER_MODULES, packages):  # the product is the runner
            return True
        return self.protects(path)

    def protects(self, path: str) -> bool:
        """Whether a file belongs to the tests or to the runner's configuration."""
        return self._is_test(path) or self._steers_runner(path)

    def _is_test(self, path: str) -> bool:
        matches = fnmatch.fnmatchcase
        return (
            path in self._hidden
            or path in self._named
            or any(f"/{path}".endswith(f"/{module}") for module in self._modules)
            or any(matches(path, glob) or matches(path, glob + "/*") for glob in self._globs)
        )

    def _steers_runner(self, path: str) -> bool:
        folder, name = posixpath.split(path)
        if name.endswith(".pth") or name.partition(".")[0] in INTERPRETER_HOOKS:
            return True
        if any(part in INTERPRETER_HOOKS for part in folder.split("/")):
            return True
        if name == "entry_points.txt" and folder.endswith((".egg-info", ".dist-info")):
            return True  # pytest loads a plugin that it names
        return name in RUNNER_CONFIGURATION and self.near_tests(folder)

    def near_tests(self, folder: str) -> bool:
        """Whether configuration in a folder may affect hidden tests: it lies above, at or below them."""
        return folder in self._above_tests or self._below_tests(folder)

    def _below_tests(self, folder: str) -> bool:
        return any(parent in self._beside_tests for parent in parents(folder))

    def _joins_the_tests(self, change: FileChange) -> bool:
        """Whether a new file looks like a test in or below a folder of hidden tests."""
        folder, name = posixpath.split(change.path)
        looks_like_one = change.old is None and re.fullmatch(r"test_.*\.py|.*_test\.py", name)
        return bool(looks_like_one) and (folder in self._beside_tests or self._below_tests(folder))

    def _provides(self, path: str, modules: Set[str], packages: Set[str]) -> bool:
        """Whether Python would import one of these modules from a file.

        Python imports from folders that the task names. pytest adds folders on the way to the tests that are not
        packages: a module of a package is imported as a part of it.
        """
        folder, stem, kind = _module(path)
        importable = kind == "py" or kind.endswith(("so", "pyd"))
        on_the_way = folder in self._above_tests and folder not in packages
        return importable and stem in modules and (on_the_way or folder in self._import_roots)


# --- what the oracle names --------------------------------------------------------------------------------


def hidden_files(oracle: Oracle) -> set[str]:
    """Return every file that the hidden tests add or change."""
    return {posixpath.normpath(path) for path in (*oracle.test_files, *touched_files(oracle.test_patch))}


def _find_named_tests(oracle: Oracle) -> Iterator[tuple[str, bool]]:
    """The paths that required test ids name, and whether each is whole or only the end of a path.

    A doctest's file, whose id has a dot in the name, is product.
    """
    for test in (*oracle.fail_to_pass, *oracle.pass_to_pass):
        found = parse_id(test)
        whole = "::" in test
        if found.path and not (whole and any("." in name for name in found.names)):
            yield found.path, whole


def _test_command(oracle: Oracle) -> str:
    """The command that runs the tests: the last line of a script that does not tell it from its preparation."""
    plan = read_plan(oracle.evaluation, "{workdir}")
    return plan.command if plan.prepare or oracle.test_cmd else plan.command.rpartition("\n")[2]


def _folder(path: str) -> str:
    """The folder of a path: its parent if it has a suffix, else itself."""
    return posixpath.dirname(path) if posixpath.splitext(path)[1] else path


def _literal_part(glob: str) -> str:
    """The folder in the literal part of a glob pattern."""
    literal = re.split(r"[*?\[]", glob, maxsplit=1)[0]
    return _folder(literal) if literal == glob else posixpath.dirname(literal)


def _words(command: str) -> set[str]:
    """The words of a command that may name a file of the workspace."""
    words = re.split(r"[\s\"'=;&|()<>]+", re.sub(r"(\{workdir\}|\$PWD|\$\{PWD\})/", "", command))
    paths = (word.partition("::")[0] for word in words if word and not word.startswith(("-", "/")))
    return {posixpath.normpath(path) for path in paths if path} - {".", "setup.py"}  # setup.py builds the product


def _named_files(task: Task, command: str) -> set[str]:
    """The files that a test command may name, from the workspace and from each folder that a shell enters."""
    words = _words(command)
    entered = {_inside(folder, task) for folder in CHANGED_FOLDER.findall(f"{task.oracle.eval_script}\n{command}")}
    return words | {posixpath.normpath(posixpath.join(folder, word)) for folder in entered for word in words}


def _python_path(task: Task, command: str) -> set[str]:
    """The folders of the workspace on PYTHONPATH."""
    values = [task.env.get("PYTHONPATH", ""), *re.findall(r"PYTHONPATH=[\"']?([^\s\"';&]+)", command)]
    entries = (entry for value in values for entry in value.split(":") if entry)
    local = (re.sub(r"^(\{workdir\}|\$PWD|\$\{PWD\})/?", "", entry) for entry in entries)
    return {"" if path in ("", ".") else posixpath.normpath(path) for path in local if not path.startswith("/")}


def _import_roots(task: Task, command: str) -> set[str]:
    """The folders that a test command puts on Python's path: its working, script and unittest top-level folders."""
    found = {*CHANGED_FOLDER.findall(command), *map(posixpath.dirname, SCRIPT.findall(command))}
    runner = parse_command(command)
    if runner is not None and runner.module == "unittest":
        found.add(_find_discovered(runner.after))
    return {_inside(folder, task) for folder in found}


def _find_discovered(arguments: str) -> str:
    """The top-level folder of `python -m unittest` with these arguments."""
    words = re.split(r"[;&|\n]", arguments, maxsplit=1)[0].split()
    if "discover" not in words:
        return "."
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for names in (("-s", "--start-directory"), ("-p", "--pattern"), ("-t", "--top-level-directory"), ("-k",)):
        parser.add_argument(*names)
    parser.add_argument("places", nargs="*")  # start, pattern, top
    try:
        given, _ = parser.parse_known_args(words[words.index("discover") + 1 :])
    except argparse.ArgumentError:  # unittest refuses it too
        return "."
    start = given.start_directory or next(iter(given.places), ".")
    return given.top_level_directory or next(iter(given.places[2:]), start)


def _inside(folder: str, task: Task) -> str:
    """A folder as a command names it, relative to the workspace."""
    for place in ("{workdir}", "$PWD", "${PWD}", task.workdir):
        folder = folder.removeprefix(place)
    path = posixpath.normpath(folder.strip("\"'").lstrip("/") or ".")
    return "" if path == "." else path


def _module(path: str) -> tuple[str, str, str]:
    """The folder, name and suffix of a file as a module."""
    folder, name = posixpath.split(path)
    stem, _, kind = name.partition(".")
    if stem == "__init__":
        folder, stem = posixpath.split(folder)
    return folder, stem, kind
