"""Kits: what an agent needs in a sandbox. Each is built once on this machine, cached, and mounted read-only at `PLACE`.

A kit touches neither the task's Python nor its PATH. A Python kit brings its own interpreter and shared libraries, so
the image may have another Python or none.
"""

import abc
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from ..cache import build_once, digest, file_sha256, find_entry
from ..commands import run_command
from ..errors import MissingDependency, SandboxStartError, TaskError
from ..guests import bundle
from ..index import pip_command
from ..sandboxes.contents import find_interpreter, pip_environment
from ..types import Frozen, JsonObject

PLACE = "/opt/swe-gym-agent"
"""Path of the kit in a sandbox."""

BUILD_SECONDS = 1800.0
ABOUT = "kit.json"

NPM_NAMES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}
"""Name of an architecture in Python -> in npm packages."""

NODE_PACKAGE, NODE = "node-linux-{arch}", "22.23.3"
"""npm package of Node.js for `NodeKit`, and its version. It runs on glibc 2.28 and newer."""

SITE = """\
import os, site, sys
home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.executable = home + "/python3"
site.addsitedir(home + "/site")
"""


class Kit(Frozen, abc.ABC):
    """A recipe for a kit. Everything that the content depends on is a field, with exact versions."""

    @property
    def spec(self) -> JsonObject:
        """The recipe as plain JSON. Equal recipes share one kit."""
        return {"kind": type(self).__name__, "machine": platform.machine(), **self.model_dump(mode="json")}

    @abc.abstractmethod
    def build(self, folder: Path, deadline: float) -> None:
        """Fill an empty folder, by `deadline` (of `time.monotonic`). The content must work at any path."""


class NpmKit(Kit):
    """A package of the npm registry with a native program, which needs no Node.js to run.

    Attributes:
        package: Name, with `{arch}` for "x64" or "arm64".
        version: Exact version, in which `{arch}` is replaced too.
    """

    package: str
    version: str

    @property
    def path(self) -> str:
        """Folder of the package in the kit."""
        return f"node_modules/{self._fill(self.package)}"

    @staticmethod
    def _fill(text: str) -> str:
        machine = platform.machine()
        return text.format(arch=NPM_NAMES.get(machine, machine))

    @property
    def packages(self) -> list[str]:
        """Names and versions of the packages to install, as npm takes them."""
        return [f"{self._fill(self.package)}@{self._fill(self.version)}"]

    def build(self, folder: Path, deadline: float) -> None:
        """See `Kit.build`. Scripts of the packages are not run."""
        self._npm(["install", "--no-save", *self.packages], folder, deadline)

    def _npm(self, command: list[str], folder: Path, deadline: float) -> None:
        options = "--ignore-scripts --no-audit --no-fund --loglevel=error".split()
        argv = ["npm", *command, "--prefix", str(folder), *options]
        names = " and ".join(self.packages)
        try:
            run_command(argv, deadline=deadline, failure=f"npm cannot install {names}")
        except FileNotFoundError as error:
            raise MissingDependency(f"npm is missing, which installs {names}: install Node.js with npm") from error


class NodeKit(NpmKit):
    """A package of the npm registry that is a JavaScript program, and Node.js to run it, which needs glibc.

    Attributes:
        script: Path of the program in the package.
        node: Version of Node.js.
        lock: npm's lock file, which pins its dependencies; empty if the package bundles them.
        sha256: Digest of that file.
    """

    script: str
    node: str = NODE
    lock: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, lock: Path, package: str, script: str) -> "NodeKit":
        """Make the recipe for a package with a lock file."""
        version = json.loads(lock.read_bytes())["packages"][""]["dependencies"][package]
        return cls(package=package, version=version, script=script, lock=str(lock), sha256=file_sha256(lock))

    @property
    def spec(self) -> JsonObject:
        """See `Kit.spec`. The path of the lock file does not matter."""
        unlocked = {name: value for name, value in super().spec.items() if name not in ("lock", "sha256")}
        return {**unlocked, "sha256": self.sha256} if self.lock else unlocked

    @property
    def argv(self) -> tuple[str, str]:
        """Node.js and the program, as paths in the kit."""
        return f"node_modules/{self._fill(NODE_PACKAGE)}/bin/node", f"{self.path}/{self.script}"

    @property
    def packages(self) -> list[str]:
        """See `NpmKit.packages`. A lock file installs the package itself."""
        return [*([] if self.lock else super().packages), f"{self._fill(NODE_PACKAGE)}@{self.node}"]

    def build(self, folder: Path, deadline: float) -> None:
        """See `NpmKit.build`. Programs become executable, which some packages leave to their install scripts."""
        if self.lock:
            locked = Path(self.lock).read_bytes()
            (folder / "package-lock.json").write_bytes(locked)
            (folder / "package.json").write_text(json.dumps(json.loads(locked)["packages"][""]))
            self._npm(["ci", "--omit=optional"], folder, deadline)
        super().build(folder, deadline)
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and _is_program(path):
                path.chmod(path.stat().st_mode | 0o111)


class PythonKit(Kit):
    """Packages of the Python package index, with an interpreter of this machine.

    Attributes:
        requirements: File of this package with every package that is installed, pinned.
        sha256: Digest of that file.
        python: Version of the interpreter, such as "3.12"; empty is the running one.
    """

    requirements: str
    sha256: str
    python: str = ""

    @classmethod
    def of(cls, requirements: Path, python: str = "") -> "PythonKit":
        """Make the recipe for a file of requirements."""
        return cls(requirements=str(requirements), sha256=file_sha256(requirements), python=python)

    @property
    def spec(self) -> JsonObject:
        """See `Kit.spec`. The path of the file does not matter."""
        version = self.python or "{}.{}".format(*sys.version_info)
        return {**super().spec, "requirements": "", "python": version}

    def build(self, folder: Path, deadline: float) -> None:
        """See `Kit.build`. Only wheels are installed, so no build code runs on this machine."""
        interpreter = find_interpreter(self.python, timeout=deadline - time.monotonic())
        site, python = folder / "site", folder / "python3"
        pip = [*pip_command(), "--python", interpreter.executable, "install", "--quiet", "--progress-bar=off"]
        options = ["--no-deps", "--only-binary=:all:", "--target", str(site), "--requirement", self.requirements]
        failure = f"pip cannot install {Path(self.requirements).name}"
        run_command([*pip, *options], deadline=deadline, env=pip_environment(), failure=failure)
        shutil.rmtree(site / "bin", ignore_errors=True)  # their first line names this machine's Python
        pack = f"{bundle('pack_python')}\n\npack_python({str(folder)!r}, '${{0%/*}}', {str(site)!r})\n"
        failure = f"cannot copy Python {interpreter.version} from {interpreter.base_prefix}"
        run_command([interpreter.executable, "-I", "-S", "-c", pack], deadline=deadline, failure=failure)
        (library,) = folder.glob("lib/python*")
        (library / "sitecustomize.py").write_text(SITE)
        run_command([python, "-I", "-m", "compileall", "-q", library], deadline=deadline, failure=failure)


def find_kit(kit: Kit) -> Path | None:
    """Return the folder of a kit; None if it is not built."""
    return find_entry("kits", digest(kit.spec))


def build_kit(kit: Kit, *, timeout: float = BUILD_SECONDS) -> Path:
    """Return the folder of a kit; build it unless the cache holds it.

    Args:
        kit: The recipe.
        timeout: Seconds that it may take, waiting for another process that builds it included.

    Raises:
        SandboxStartError: A registry failed, or the time is over.
        MissingDependency: This machine lacks npm or pip.
        MissingInterpreter: This machine lacks the version of Python.
    """
    deadline = time.monotonic() + timeout

    def build(folder: Path) -> None:
        kit.build(folder, deadline)
        size = _open_to_all(folder)
        (folder / ABOUT).write_text(json.dumps({"spec": kit.spec, "bytes": size}))

    try:
        return build_once("kits", digest(kit.spec), build, deadline=deadline)
    except TaskError as error:
        raise SandboxStartError("the agent's kit was not built", reason="setup", detail=str(error)) from error


def kit_bytes(folder: Path) -> int:
    """Return the size of a built kit in bytes."""
    size: int = json.loads((folder / ABOUT).read_text())["bytes"]
    return size


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _open_to_all(folder: Path) -> int:
    """Let every user of a sandbox read a kit, and return its size."""
    size = 0
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(where, name)
            if not os.path.islink(path):
                status = os.lstat(path)
                os.chmod(path, status.st_mode | (0o555 if name in folders else 0o444))
                size += status.st_size
    return size
