"""Pin the newest version of agents from the npm registry, in this checkout: `python .ci/bump_agents.py [NAME...]`.

Without names, all of them. It prints what changed. Kits of Python packages are pinned by hand: see the head of their
file of requirements.
"""

import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from swe_gym.gateway.agents import AGENTS, make_agent
from swe_gym.gateway.kits import NodeKit, NpmKit

TABLE = Path("docs/agents.md")


def npm(*arguments: str) -> str:
    """Run npm and return its output."""
    return subprocess.run(["npm", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def replace(path: Path, old: str, new: str) -> None:
    """Replace a text that a file holds once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def write_lock(path: Path, package: str, version: str) -> None:
    """Write npm's lock file for a version of a package."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "package.json").write_text(json.dumps({"name": "kit", "dependencies": {package: version}}))
        npm("install", "--package-lock-only", "--ignore-scripts", "--save-exact", "--prefix", folder)
        path.write_bytes((Path(folder) / "package-lock.json").read_bytes())


def bump(name: str) -> None:
    """Pin the newest version of an agent."""
    kind, kit = AGENTS.load(name), make_agent(name).kit
    assert isinstance(kit, NpmKit)
    package = kit.package.format(arch="x64")
    new = npm("view", package, "version")
    if new == kind.version:
        return
    sys.stdout.write(f"{name}: {kind.version} -> {new}\n")
    replace(Path(inspect.getfile(kind)), f'version = "{kind.version}"', f'version = "{new}"')
    row = next(line for line in TABLE.read_text().splitlines() if line.startswith(f"| `{name}`"))
    replace(TABLE, row, row.replace(f"| {kind.version} |", f"| {new} |"))
    if isinstance(kit, NodeKit) and kit.lock:
        write_lock(Path(kit.lock), package, new)


def main() -> None:
    """Pin them."""
    on_npm = [name for name in set(AGENTS) - {"command"} if isinstance(make_agent(name).kit, NpmKit)]
    for name in sys.argv[1:] or sorted(on_npm):
        bump(name)


if __name__ == "__main__":
    main()
