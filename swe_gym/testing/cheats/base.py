"""What a cheat is, and what its script may use."""

from ...types import Frozen

LEAK = "LEAK:"
"""What a script prints before something that it should not have been able to reach."""

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
"""Python code: `_wrap_all(before)` has `before(function, args, kwargs)` called for each function of the module."""


class Cheat(Frozen):
    """Something that a policy might do.

    Attributes:
        name: Short, for reports.
        about: What it tries, one sentence.
        script: Shell lines, run in the episode's workspace after `PRELUDE`.
        resolved: Whether it deserves to count as a solution.
        solves: The gold patch is applied first: honest work, however odd.
    """

    name: str
    about: str
    script: str
    resolved: bool = False
    solves: bool = False


def poison(name: str, about: str, code: str) -> Cheat:
    """A cheat whose Python code runs wherever the product is imported."""
    return Cheat(name=name, about=about, script=f"poison <<'EOF'\n{code.strip()}\nEOF\n")
