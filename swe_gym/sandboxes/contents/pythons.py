"""Pythons for sandboxes: environments of tasks, installed once, and a copy for images that have none."""

import functools
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...cache import build_once, digest
from ...commands import run_command
from ...errors import MissingInterpreter, SandboxStartError, TaskError
from ...guard import TemporaryFolder
from ...guests import bundle
from ...index import pip_command
from ...types import PythonEnv

_PROBE = """\
import importlib.util, json, sys
print(json.dumps({
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "base_prefix": sys.base_prefix,
    "version": "%d.%d.%d" % sys.version_info[:3],
    "has_ensurepip": importlib.util.find_spec("ensurepip") is not None,
}))
"""
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")

ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
"""The kernel's name of a machine -> the name in images."""


@dataclass(frozen=True)
class PreparedPython:
    """A Python environment on this machine, complete and byte-compiled.

    Attributes:
        prefix: Virtual environment; its `bin` goes first on the PATH. A sandbox must see it at this path.
        base_prefix: Installation that it uses. A sandbox must see it too.
        version: Version of the interpreter, such as "3.9.18".
    """

    prefix: Path
    base_prefix: Path
    version: str


@dataclass(frozen=True)
class Interpreter:
    """A Python installation and its properties."""

    executable: str
    base_prefix: str
    version: str
    has_ensurepip: bool


def prepare_python(env: PythonEnv, *, timeout: float) -> PreparedPython:
    """Return the virtual environment for `env`; create it and install with pip if it is not in the cache.

    Equal requirements on the same interpreter share one. Without requirements it is empty and lacks even pip.
    Installing a requirement from source runs that package's build code on this machine, outside any sandbox.

    Args:
        env: Version of Python, and requirements.
        timeout: Seconds that it may take.

    Raises:
        MissingInterpreter: That version of Python is not installed here.
        TaskError: pip cannot install the requirements; the message ends with pip's output.
        SandboxStartError: The time was up, or the file system failed.
    """
    deadline = time.monotonic() + timeout
    interpreter = find_interpreter(env.version, timeout=timeout)
    key = digest(os.path.realpath(interpreter.executable), interpreter.version, env.requirements, env.no_deps)

    def build(prefix: Path) -> None:
        _make_venv(interpreter, prefix, with_pip=bool(env.requirements), deadline=deadline)
        if env.requirements:
            _install(interpreter, prefix, env, deadline)

    prefix = build_once("pythons", key, build, deadline=deadline)
    return PreparedPython(prefix, Path(interpreter.base_prefix), interpreter.version)


def find_interpreter(version: str, *, timeout: float) -> Interpreter:
    """Find an installed Python: the running one if it fits, else from the PATH, pyenv's or uv's folders.

    Args:
        version: "3.9" or "3.9.18"; empty is the running one.
        timeout: Seconds that the search may take.

    Raises:
        MissingInterpreter: No such version is installed.
        SandboxStartError: The time was up, or the file system failed.
    """
    if version and not _VERSION.fullmatch(version):
        raise TaskError(f"invalid version of Python: {version!r}; write '3.9' or '3.9.18'")
    deadline = time.monotonic() + timeout
    for candidate in _candidates(version):
        interpreter = _probe(candidate, deadline)
        if interpreter and (interpreter.version + ".").startswith(f"{version}." if version else ""):
            return interpreter
    raise MissingInterpreter(
        f"Python {version} is not installed: no python{_minor(version)} on the PATH or in the folders of pyenv "
        f"and uv. Install it: 'uv python install {version}' or 'pyenv install {version}'"
    )


def _candidates(version: str) -> Iterator[str]:
    running = "{}.{}.{}".format(*sys.version_info)
    if (running + ".").startswith(f"{version}." if version else ""):
        yield sys.executable
    if not version:
        return
    name = f"python{_minor(version)}"
    for folder in os.get_exec_path():
        # pyenv has shims for all of its versions, whether they work or not.
        found = None if folder.endswith("/shims") else shutil.which(name, path=folder)
        if found:
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or "~/.local/share/uv/python").expanduser()
    for pattern, parent in ((f"{version}*", pyenv), (f"cpython-{version}*", uv)):
        for installation in sorted(parent.glob(pattern), reverse=True):
            yield str(installation / "bin" / name)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _probe(candidate: str, deadline: float) -> Interpreter | None:
    """Run an executable to learn its properties. The answer is cached until the file changes."""
    try:
        real = os.path.realpath(candidate)
        status = os.stat(real)
    except FileNotFoundError:
        return None

    def ask(folder: Path) -> None:
        result = run_command([candidate, "-I", "-c", _PROBE], deadline=deadline)
        (folder / "answer.json").write_bytes(b"null" if result.returncode else result.stdout)

    key = digest(candidate, real, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    answer = json.loads((build_once("interpreters", key, ask, deadline=deadline) / "answer.json").read_text())
    return Interpreter(**answer) if answer and os.path.exists(answer["executable"]) else None


# --- making one -----------------------------------------------------------------------------------------


def _make_venv(interpreter: Interpreter, prefix: Path, *, with_pip: bool, deadline: float) -> None:
    """Create a virtual environment, with the interpreter's own pip if it has one."""
    own_pip = with_pip and interpreter.has_ensurepip
    arguments = ["-I", "-m", "venv", *([] if own_pip else ["--without-pip"]), str(prefix)]
    failure = f"Python {interpreter.version} cannot create a virtual environment"
    run_command([interpreter.executable, *arguments], deadline=deadline, env=pip_environment(), failure=failure)


def _install(interpreter: Interpreter, prefix: Path, env: PythonEnv, deadline: float) -> None:
    requirements = prefix / "requirements.txt"
    requirements.write_text("".join(f"{line}\n" for line in env.requirements), encoding="utf-8")
    python = str(prefix / "bin" / "python")
    pip = [python, "-I", "-m", "pip"] if interpreter.has_ensurepip else [*pip_command(), "--python", python]
    options = ["--quiet", "--compile", "--progress-bar=off", *(["--no-deps"] if env.no_deps else [])]
    command = [*pip, "install", *options, "--requirement", str(requirements)]
    failure = f"pip cannot install the requirements for Python {interpreter.version}"
    run_command(command, deadline=deadline, env=pip_environment(), failure=failure)


def pip_environment() -> dict[str, str]:
    """Return our environment with the user's pip configuration, without variables that redirect an install."""
    misleading = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_PYTHON"}
    kept = {name: value for name, value in os.environ.items() if name not in misleading}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_REQUIRE_VIRTUALENV": "0"}


def list_installed(python: PreparedPython, *, timeout: float) -> tuple[str, ...]:
    """List the packages of an environment as pinned requirement lines, without pip and its own tools.

    Raises:
        TaskError: pip failed.
        SandboxStartError: The time was up.
    """
    folders = [f"--path={folder}" for folder in python.prefix.glob("lib*/python*/site-packages")]
    command = [*pip_command(), "freeze", "--exclude=pip", "--exclude=setuptools", "--exclude=wheel", *folders]
    failure, deadline = f"pip cannot list the packages of {python.prefix}", time.monotonic() + timeout
    try:
        result = run_command(command, deadline=deadline, env=pip_environment(), failure=failure)
    except TimeoutError as error:
        raise SandboxStartError(str(error), reason="timeout", retryable=True) from error
    return tuple(result.stdout.decode("utf-8", "replace").split("\n")[:-1])


PORTABLE_FOLDER = "/opt/swe-gym-python"
"""Its folder in the container. No PATH has it, so commands find only the image's programs."""

PACK_SECONDS = 60.0


def packing_program(folder: str = PORTABLE_FOLDER) -> str:
    """Return the program that fills a folder, to be used at `PORTABLE_FOLDER`, with the Python that runs it."""
    return f"{bundle('pack_python')}\n\npack_python({folder!r}, {PORTABLE_FOLDER!r})\n"


def why_not_portable(architecture: str) -> str:
    """Return why this machine's Python cannot run in an image of this architecture, or an empty text."""
    system, machine = platform.system(), platform.machine()
    ours = ARCHITECTURES.get(machine, machine)
    return "" if (system, ours) == ("Linux", architecture) else f"this machine's is for {system} on {ours}"


@functools.cache
def pack_portable_python() -> bytes:
    """Return this machine's Python as a tar archive for the root of a container.

    Raises:
        SandboxStartError: Packing failed.
    """
    with TemporaryFolder("swe-gym-python-") as folder:
        command = [sys.executable, "-I", "-S", "-c", packing_program(str(folder.path))]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PACK_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            detail = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace")
            text = "cannot pack this machine's Python for images without one"
            raise SandboxStartError(text, reason="setup", detail=detail or str(error)) from error
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as packed:
            packed.add(folder.path, PORTABLE_FOLDER.lstrip("/"), filter=_readable_to_all)
        return buffer.getvalue()


def _readable_to_all(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode |= 0o555 if member.isdir() else 0o444
    return member
