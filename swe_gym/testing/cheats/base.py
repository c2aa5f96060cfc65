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
