"""Rules of `.gitignore` files, compared with what git itself says."""

import subprocess
from pathlib import Path

import pytest

from swe_gym.guests.gitignore import LONGEST_PATH, Rules

PATHS = "a a.pyc b/a b/a.pyc b/c/d build/x x/build/y docs/a/b/z f[1] #h sp !not deep/er/and/deeper/x.log".split()
FILES = [
    "*.pyc\n",
    "/a\n",
    "build/\n",
    "b/**/d\n!a\n",
    "**/build\n",
    "docs/**\n",
    "docs/**/z\n",
    "f\\[1\\]\n",
    "f[[]1]\n",
    "\\#h\n# comment\n",
    "\\!not\n",
    "sp \n",
    "[ab]\n",
    "[!ab]\n",
    "?\n",
    "*\n!*.pyc\n!*/\n",
    "*.log\r\n",
]


@pytest.mark.parametrize("text", FILES)
def test_the_rules_agree_with_git(tmp_path: Path, text: str) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / ".gitignore").write_bytes(text.encode())
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-o", "-z", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    rules = Rules("", text)

    def ignored(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        return any(rules.ignore(folder, True) for folder in above) or rules.ignore(path, False)

    assert {path for path in PATHS if not ignored(path)} == set(listed.split("\0")) - {"", ".gitignore"}


def test_the_deepest_file_decides() -> None:
    above = Rules("", "*.log\n")
    below = Rules("folder", "!kept.log\n", above)
    assert below.ignore("folder/other.log", False)
    assert not below.ignore("folder/kept.log", False)
    assert not Rules("", "*a*b*c*d*\n").ignore("abcd", False)
    assert not Rules("", "[z-a]\n").ignore("z", False)
    assert not above.ignore("x" * LONGEST_PATH + ".log", False)
