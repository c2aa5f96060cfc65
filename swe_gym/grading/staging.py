"""Brings a fresh sandbox to the point where the tests can run, in an order that keeps the work from interfering.

Most scripts of Python datasets install the product before they test it, which runs code of the workspace as root:
`setup.py`, build backends, hooks. That code could change the installed test runner, or leave a process behind that
rewrites the tests. So the preparation runs on the original, and the work goes in after it. Files that a compiler reads
go in before it: they are compiled, not run.

An evaluation script runs as two commands. So the second prints the log alone, without marks that a test could print
too, and the reporter gets its key only after the first, in which code of the work may have run.

The task's pytest configuration stays in force where it shares a file with the product. `pyproject.toml` and `setup.cfg`
describe the product and the test run. The policy's version is kept for the product. If its pytest section differs from
the original's, pytest is pointed at a copy of the original.
"""

import contextlib
import itertools
import posixpath
import re
import secrets
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import FileError, GradingError, MissingFile, SandboxError, TaskError
from ..sandboxes import Sandbox
from ..types import Frozen, Task
from .base import OpenSandbox, Ready
from .diff import touched_files
from .patch import Patch, apply_diff, apply_patch, parents
from .plan import EvaluationPlan, read_plan
from .protect import Protection
from .reporter import name_folder, steady_env
from .seal import seal_for_grading

SHARED = ("pyproject.toml", "setup.cfg")
SEARCHED = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Files that pytest looks for in a folder, in this order."""

LONGEST_TOML, MOST_DOTS = 1 << 20, 200
"""Characters of a file, and dots of a line, beyond which it is compared as text: parsing it would take too long."""


def pytest_section(name: str, data: bytes | None) -> object:
    """Return a file's pytest configuration in a comparable form; None if it has none."""
    if data is None:
        return None
    text = data.decode("utf-8", "replace")
    if name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"):
        return text  # these count even if they are empty
    if not name.endswith(".toml"):
        return _ini_section("[tool:pytest]" if name == "setup.cfg" else "[pytest]", text) or None
    if len(text) > LONGEST_TOML or any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        return text
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError):  # invalid, or beyond Python's limits: too deep, too many digits
        return text
    return tool.get("pytest") if isinstance(tool, dict) else None


def _ini_section(header: str, text: str) -> list[str]:
    """The lines of a section as pytest finds them: its header may end in blanks and a comment, a line in any break."""
    found, inside = [], False
    for line in text.splitlines():
        name = re.split("[#;]", line)[0].rstrip()
        if name[:1] == "[" and name[-1:] == "]":
            inside = name == header
        if inside:
            found.append(line.rstrip())
    return found


def changed_folder(patch: Patch, protection: Protection) -> str | None:
    """Return the deepest folder in which the work changes pytest's configuration; None if it changes none."""
    folders = []
    for change in patch.changes:
        folder, name = posixpath.split(change.path)
        read = name in SHARED and protection.near_tests(folder)
        if read and pytest_section(name, change.old) != pytest_section(name, change.new):
            folders.append(folder)
    return max(folders, key=len, default=None)


class Configuration(Frozen):
    """A file that configures pytest.

    Attributes:
        folder: Folder, relative to the workspace.
        name: File name.
        data: Content.
    """

    folder: str
    name: str
    data: bytes


def find_configuration(fresh: Sandbox, folder: str) -> Configuration:
    """Return the configuration that pytest uses for tests in `folder`; an empty one if there is none."""
    for place in (folder, *parents(folder), *([""] if folder else [])):
        for name in SEARCHED:
            data = _read_configuration(fresh, posixpath.join(place, name))
            if data is not None and pytest_section(name, data) is not None:
                return Configuration(folder=place, name=name, data=data)
    return Configuration(folder="", name=SHARED[1], data=b"[tool:pytest]\n")


def _read_configuration(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return sandbox.read_file(path)
    except MissingFile:
        return None


def point_at(configuration: Configuration, sandbox: Sandbox) -> list[str]:
    """Return the options that make pytest read a configuration. Write a copy of it beside the work if needed."""
    root = sandbox.resolve(configuration.folder)
    path = posixpath.join(root, configuration.name)
    if configuration.name in SHARED:
        # The copy lies in the same folder: some paths in it are relative to it.
        path = posixpath.join(root, f".{secrets.token_hex(8)}{posixpath.splitext(configuration.name)[1]}")
        sandbox.write_file(path, configuration.data)
    return ["-c", path, "--rootdir", root, "--confcutdir", root]


MAX_LOG = 64 << 20
"""Bytes of a log that are read. A longer log loses its middle, and the tests named there."""

SETUP_TIMEOUT = 600.0
"""Time limit of an oracle's `setup_cmd` in seconds."""

COMPILED = (".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".pyx", ".pxd", ".f", ".f90")
"""Suffixes of files that a build compiles and does not run."""

BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "meson.build", "CMakeLists.txt", "Makefile")

NOT_PRODUCTS = ("-r", "--requirement", "-c", "--constraint", "--editable")
"""Options of pip whose path is not installed as a copy. Options that end in "e", as `-e` and `-ve` do, are others."""


class FreshSandboxes:
    """Opens sandboxes one after another. What runs in the earlier ones ends first: it could slow down the next one.

    One whose processes cannot be ended is closed.

    Args:
        first: The first sandbox. It is open.
        open_fresh: Opens another one.
    """

    def __init__(self, first: Sandbox, open_fresh: OpenSandbox) -> None:
        self._opened = [first]
        self._open_fresh = open_fresh

    @contextlib.contextmanager
    def open(self) -> Iterator[Sandbox]:
        """End all processes in the open sandboxes, and open another one for the block."""
        for sandbox in self._opened:
            _end(sandbox)
        with self._open_fresh() as fresh:
            self._opened.append(fresh)
            try:
                yield fresh
            finally:
                self._opened.remove(fresh)


def _end(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxError):
        if sandbox.closed or sandbox.end_processes(commands=True):
            return
    with contextlib.suppress(SandboxError):  # its lease ends it
        sandbox.close()


@dataclass(frozen=True)
class Stage:
    """Prepares sandboxes of one task.

    Attributes:
        task: The task.
        protection: The files that the task protects from the work.
        open_fresh: Opens further sandboxes of the task.
    """

    task: Task
    protection: Protection
    open_fresh: OpenSandbox

    def prepare(self, work: Patch | str, fresh: Sandbox) -> Ready:
        """Put the hidden tests and the work into a fresh sandbox.

        Args:
            work: The part of the policy's work that counts, or the gold patch as a diff.
            fresh: A sandbox in which nothing has run.

        Raises:
            GradingError: The evaluation script did not reach its tests.
            TaskError: The sandbox cannot be sealed, the hidden tests or the gold patch do not apply, or `setup_cmd`
                failed.
            SandboxError: The sandbox failed.
        """
        seal_for_grading(self.task, fresh)
        self._set_up(fresh)
        put_tests_in(self.task, fresh)  # before the work, which cannot make them fail to apply
        patch = work if isinstance(work, Patch) else Patch()
        folder = changed_folder(patch, self.protection)
        configuration = None if folder is None else find_configuration(fresh, folder)
        plan, state = self._put_in(work, fresh)
        options = [] if configuration is None else point_at(configuration, fresh)
        options += self.protection.ignored_folders(patch, fresh.workdir)
        return Ready(self.task, plan, self.open_fresh, state, tuple(options))

    def _set_up(self, fresh: Sandbox) -> None:
        command = self.task.oracle.setup_cmd
        if not command:
            return
        result = fresh.exec(command.replace("{workdir}", fresh.workdir), timeout=SETUP_TIMEOUT, merge=True)
        if not result.ok:
            said = result.text[-2000:].strip()
            raise TaskError(f"task {self.task.task_id}: its setup_cmd failed ({result.describe()}): {said}")

    def _put_in(self, work: Patch | str, fresh: Sandbox) -> tuple[EvaluationPlan, bytes]:
        """Put work in and run the preparation. Return the plan, and the preparation's state.

        The work goes in first if its build is part of what is judged: the gold patch changes the build, the script
        installs a copy of the product, or the project is not a Python one. The gold patch always goes in first.
        """
        oracle = self.task.oracle
        plan = read_plan(oracle.evaluation, fresh.workdir)
        built = changes_the_build(oracle.gold_patch) or installs_a_copy(plan.prepare, fresh.workdir)
        late = Patch()
        if isinstance(work, str):
            apply_diff(fresh, work, what=f"task {self.task.task_id}: the gold patch")
        elif built or not plan.prepares_python:
            apply_patch(work, fresh)
        else:
            apply_patch(_select_compiled(work, compiled=True), fresh)
            late = _select_compiled(work, compiled=False)
        plan = plan.inlined(lambda path: _read(fresh, path))
        state = run_preparation(plan.prepare, self.task, fresh)
        apply_patch(late, fresh)
        return plan, state


def _select_compiled(work: Patch, *, compiled: bool) -> Patch:
    changes = tuple(change for change in work.changes if change.path.endswith(COMPILED) is compiled)
    return work.model_copy(update={"changes": changes})


def _read(sandbox: Sandbox, path: str) -> str | None:
    try:
        return sandbox.read_file(path).decode("utf-8", "replace")
    except FileError:  # the script makes it, or calls it from another folder
        return None


def put_tests_in(task: Task, sandbox: Sandbox) -> None:
    """Put the hidden tests into a fresh sandbox, unless the evaluation script does it, as SWE-bench's do.

    Raises:
        TaskError: They do not apply.
        SandboxError: The sandbox failed.
    """
    oracle = task.oracle
    if oracle.test_patch.strip() not in oracle.eval_script:
        apply_diff(sandbox, oracle.test_patch, what=f"task {task.task_id}: the test patch")
    for path, text in oracle.test_files.items():
        sandbox.write_file(path, text.encode())


def changes_the_build(diff: str) -> bool:
    """Whether a diff changes a file that says how a product is built."""
    return any(posixpath.basename(path) in BUILD_FILES for path in touched_files(diff))


def installs_a_copy(prepare: str, workdir: str) -> bool:
    """Whether shell commands install the workspace by copying it, as `pip install .` does."""
    commands = re.split(r"[\n;&|]+", prepare)
    return any(_copies([word.strip("'\"") for word in command.split()], workdir) for command in commands)


def _copies(words: list[str], workdir: str) -> bool:
    if "install" not in words:
        return False
    place = words.index("install")
    tool, arguments = words[:place], words[place:]
    if "setup.py" in tool:
        return True
    if not any(posixpath.basename(word).startswith("pip") for word in tool):
        return False
    pairs = itertools.pairwise(arguments)
    return any(
        re.match(rf"\.(?:$|/|\[)|/testbed|{re.escape(workdir)}", word)
        and option not in NOT_PRODUCTS
        and not re.fullmatch(r"-\w*e", option)
        for option, word in pairs
    )


# --- preparation ------------------------------------------------------------------------------------------------------

STATE = "declare -p; declare -f; printf 'cd %q\\n' \"$PWD\"; set +o"
MARK = "swe_gym_mark"
PREPARATION = f"""\
exec 3>&1 1>&2
IFS= read -r {MARK}
{{prepare}}
{{{{ printf '%s\\n' "${MARK}"; {{unset}}{STATE}; printf '%s\\n' "${MARK}"; }}}} >&3
"""
"""Prints its state alone to standard output, between two marks that only the shell knows. No other process can change
the state, because it is on no disk."""

OFFLINE = {"PIP_RETRIES": "0"}
"""Set during a preparation without network: pip gives up at once, not after eight seconds a package."""


def run_preparation(prepare: str, task: Task, sandbox: Sandbox) -> bytes:
    """Run commands, end the processes that they left, and return shell commands that restore their state.

    Raises:
        GradingError: The commands ended the shell, or left processes that cannot be ended.
        SandboxError: The sandbox failed.
    """
    if not prepare.strip():
        return b""
    hurry = OFFLINE if sandbox.capabilities.network == "none" else {}
    unset = f"unset {' '.join(hurry)}; " if hurry else ""  # the tests do not see them
    mark = secrets.token_hex(16)
    folder = name_folder(sandbox)
    path = f"{folder}/before.sh"
    sandbox.write_file(path, PREPARATION.format(prepare=prepare, unset=unset).encode())
    result = sandbox.exec(
        ["bash", path],
        stdin=f"{mark}\n".encode(),
        timeout=task.oracle.timeout,
        env={**steady_env(sandbox), **hurry},
        max_output=MAX_LOG,
    )
    if not sandbox.end_processes():
        raise GradingError(f"task {task.task_id}: its eval_script left processes that cannot be ended")
    sandbox.exec(["rm", "-rf", "--", folder])  # it may hold the hidden tests unchanged
    parts = result.stdout.split(f"{mark}\n".encode())
    if len(parts) != 3:
        raise GradingError(
            f"task {task.task_id}: its eval_script did not reach the tests ({result.describe()}): "
            f"{result.error_text[-2000:].strip()}"
        )
    return re.sub(rb"(?m)^declare -- %s=.*\n" % MARK.encode(), b"", parts[1])


def restore(state: bytes, sandbox: Sandbox) -> str:
    """Return the shell line that restores a state; empty for an empty state."""
    if not state:
        return ""
    path = f"{name_folder(sandbox)}/state"
    sandbox.write_file(path, state)
    return f". {shlex.quote(path)} 2>/dev/null\n"
