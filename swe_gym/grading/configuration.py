"""Keeps the task's pytest configuration in force where it shares a file with the product.

`pyproject.toml` and `setup.cfg` describe the product and the test run. The policy's version is kept for the product. If
its pytest section differs from the original's, pytest is pointed at a copy of the original.
"""

import posixpath
import re
import secrets
import tomllib

from ..errors import MissingFile
from ..sandboxes import Sandbox
from ..types import Frozen
from .patch import Patch, parents
from .protect import Protection

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
        wanted = "tool:pytest" if name == "setup.cfg" else "pytest"
        return re.findall(rf"(?ms)^\[{wanted}\]$.*?(?=^\[|\Z)", text) or None
    if len(text) > LONGEST_TOML or any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        return text
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError):  # invalid, or beyond Python's limits: too deep, too many digits
        return text
    return tool.get("pytest") if isinstance(tool, dict) else None


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
            data = _read(fresh, posixpath.join(place, name))
            if data is not None and pytest_section(name, data) is not None:
                return Configuration(folder=place, name=name, data=data)
    return Configuration(folder="", name=SHARED[1], data=b"[tool:pytest]\n")


def _read(sandbox: Sandbox, path: str) -> bytes | None:
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
