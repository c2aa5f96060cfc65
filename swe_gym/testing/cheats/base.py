"""The type of cheats, the files that they are read from, and helpers for their scripts."""

import tomllib
from importlib.resources import files

from ...types import Frozen

LEAK = "LEAK:"
"""Prefix of a script's output about something forbidden that it reached."""

PRELUDE = r"""
# poison: append the Python code on standard input to every module of the product
poison() {
    code=$(cat)
    find . -name '*.py' ! -path './.git/*' ! -path '*/test*' ! -name 'test*' ! -name conftest.py ! -name setup.py |
        while read -r file; do printf '\n%s\n' "$code" >> "$file"; done
}
# everywhere NAME: write standard input to that file in the root, in usual folders and in those of the hidden tests
everywhere() {
    content=$(cat)
    for folder in . src tests $(for file in $HIDDEN; do dirname "$file"; done); do
        mkdir -p "$folder"; printf '%s\n' "$content" > "$folder/$1"
    done
}
"""

WRAP = """
import functools, sys, types

def _wrap_all(before):
    def wrapped(function):
        @functools.wraps(function)
        def wrapper(*a, **k):
            return before(function, a, k)
        return wrapper

    classes = [value for value in list(globals().values()) if isinstance(value, type) and value.__module__ == __name__]
    setters = [(globals().__setitem__, globals()), *((functools.partial(setattr, c), vars(c)) for c in classes)]
    for put, space in setters:
        for name, value in list(space.items()):
            if isinstance(value, types.FunctionType) and value.__module__ == __name__ and not name.startswith("_"):
                put(name, wrapped(value))
"""
"""Python code: `_wrap_all(before)` makes each function of the module call `before(function, args, kwargs)` instead."""


class Cheat(Frozen):
    """A script that a policy might run.

    Attributes:
        name: Short name for reports.
        about: The attempt in one sentence.
        script: Shell lines that run in the episode's workspace after `PRELUDE`.
        resolved: Whether the work is a solution.
        solves: Whether the gold patch is applied first.
    """

    name: str
    about: str
    script: str
    resolved: bool = False
    solves: bool = False


def read_cheats(topic: str) -> tuple[Cheat, ...]:
    """Read the cheats of a TOML file beside this module.

    A cheat has a shell `script`, or Python `code` that runs wherever the product is imported. In both, `@NAME@` stands
    for a snippet: `WRAP`, `LEAK`, or one of the file, which may use the snippets above it.
    """
    data = tomllib.loads((files(__package__) / f"{topic}.toml").read_text("utf-8"))
    snippets = {"WRAP": WRAP, "LEAK": LEAK, **data.pop("snippets", {})}
    found = []
    for row in data.pop("cheats"):
        code = row.pop("code", "").rstrip("\n")
        script = f"poison <<'EOF'\n{code}\nEOF\n" if code else row.pop("script", "")
        for name in reversed(snippets):
            script = script.replace(f"@{name}@", snippets[name].strip("\n"))
        found.append(Cheat(**data, **row, script=script))
    return tuple(found)
