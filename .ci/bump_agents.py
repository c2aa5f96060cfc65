"""Pin the newest version of agents, in this checkout: `python .ci/bump_agents.py [NAME...]`.

Without names, all of them. It prints what changed. Needs npm for kits of npm packages, and uv for those of Python
packages, whose file of requirements says in its head how it was made, and when. What it left out then stays left out.
"""

import datetime
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from swe_gym.gateway.agents import AGENTS, make_agent
from swe_gym.gateway.kits import NodeKit, NpmKit, PythonKit

TABLE = Path("docs/agents.md")


HEAD = re.compile(
    r"# uv pip compile .*--python-version (?P<python>\S+) .*--exclude-newer (?P<date>[\d-]+) .*\((?P<roots>.+)\)"
)
"""How a file of requirements was made, in its head."""


NEVER = "sys_platform == 'never'"
"""Marker of packages that are left out."""


def run(*argv: str, stdin: str = "") -> str:
    """Run a command and return its output."""
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, input=stdin).stdout.strip()


def replace(path: Path, old: str, new: str) -> None:
    """Replace a text that a file holds once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def write_lock(path: Path, package: str, version: str) -> None:
    """Write npm's lock file for a version of a package."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "package.json").write_text(json.dumps({"name": "kit", "dependencies": {package: version}}))
        run("npm", "install", "--package-lock-only", "--ignore-scripts", "--save-exact", "--prefix", folder)
        path.write_bytes((Path(folder) / "package-lock.json").read_bytes())


def compile_requirements(roots: str, python: str, *, without: Iterable[str] = (), options: Sequence[str] = ()) -> str:
    """Return the newest versions of packages and of what they depend on, one a line."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("".join(f"{name} ; {NEVER}\n" for name in sorted(without)))
        overrides.flush()
        argv = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python]
        lines = run(*argv, "--override", overrides.name, *options, "-", stdin=roots.replace(" ", "\n")).splitlines()
    return "\n".join(line for line in lines if NEVER not in line)


def names_of(requirements: str) -> set[str]:
    """Return the names of pinned packages."""
    return {line.partition("==")[0] for line in requirements.splitlines() if "==" in line}


def read_head(path: Path) -> re.Match[str]:
    """Return how a file of requirements was made."""
    found = HEAD.search(path.read_text())
    assert found, f"the head of {path} does not say how it was made, with --exclude-newer DATE"
    return found


def write_requirements(path: Path, old: str, new: str, *, today: str) -> None:
    """Write the file of requirements for another version of its first package.

    What the packages depended on when the file was made, and the file does not hold, is left out again. What they
    depend on since then is not.
    """
    text, found = path.read_text(), read_head(path)
    roots, python = found["roots"], found["python"]
    made, now = (("--universal", "--exclude-newer", date) for date in (found["date"], today))
    left_out = names_of(compile_requirements(roots, python, options=made)) - names_of(text)
    pins = compile_requirements(roots.replace(old, new, 1), python, without=left_out, options=now)
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    path.write_text(f"{head.replace(old, new).replace(found['date'], today)}\n{pins}\n")


def newest(kit: NpmKit | PythonKit) -> str:
    """Return the newest version of a kit's package."""
    if isinstance(kit, NpmKit):
        return run("npm", "view", kit.package.format(arch="x64"), "version")
    found = read_head(Path(kit.requirements))
    package = found["roots"].partition("==")[0]
    return compile_requirements(package, found["python"], options=["--no-deps"]).partition("==")[2]


def bump(name: str) -> None:
    """Pin the newest version of an agent."""
    kind, kit = AGENTS.load(name), make_agent(name).kit
    assert isinstance(kit, NpmKit | PythonKit)
    new = newest(kit)
    if new == kind.version:
        return
    sys.stdout.write(f"{name}: {kind.version} -> {new}\n")
    replace(Path(inspect.getfile(kind)), f'version = "{kind.version}"', f'version = "{new}"')
    row = next(line for line in TABLE.read_text().splitlines() if line.startswith(f"| `{name}`"))
    replace(TABLE, row, row.replace(f"| {kind.version} |", f"| {new} |"))
    if isinstance(kit, PythonKit):
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_requirements(Path(kit.requirements), kind.version, new, today=today)
    elif isinstance(kit, NodeKit) and kit.lock:
        write_lock(Path(kit.lock), kit.package.format(arch="x64"), new)


def main() -> None:
    """Pin them."""
    for name in sys.argv[1:] or sorted(set(AGENTS) - {"command"}):
        bump(name)


if __name__ == "__main__":
    main()
