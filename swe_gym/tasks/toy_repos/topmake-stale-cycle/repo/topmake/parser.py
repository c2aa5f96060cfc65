"""Buildfiles."""

import re
from typing import Dict, NamedTuple, Tuple

from .errors import BuildfileError

_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")
_USE = re.compile(r"\$\(([A-Za-z_]\w*)\)")


class Rule(NamedTuple):
    """A target, what it needs, and the commands that make it."""

    target: str
    needs: Tuple[str, ...]
    recipe: Tuple[str, ...]


class Buildfile(NamedTuple):
    """The rules by target, in the order of the file."""

    rules: Dict[str, Rule]


def parse(text):
    """Read the text of a Buildfile.

    Raises:
        BuildfileError: A line makes no sense.
    """
    variables = {}
    rules = {}
    current = None
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.partition("#")[0].rstrip()
        if not content:
            continue
        if content.startswith(" "):
            raise BuildfileError(number, "recipes begin with a tab, not with blanks")
        content = _expand(content, variables, number)
        if content.startswith("\t"):
            if current is None:
                raise BuildfileError(number, "a recipe without a target")
            rule = rules[current]
            rules[current] = rule._replace(recipe=rule.recipe + (content.strip(),))
            continue
        match = _VARIABLE.fullmatch(content)
        if match:
            variables[match.group(1)] = match.group(2)
            continue
        target, colon, needs = content.partition(":")
        current = target.strip()
        if not colon or not current:
            raise BuildfileError(number, "expected 'target: needs', 'NAME = value' or a recipe")
        if current in rules:
            raise BuildfileError(number, "there are two rules for {!r}".format(current))
        rules[current] = Rule(current, tuple(needs.split()), ())
    return Buildfile(rules)


def _expand(content, variables, number):
    def value(match):
        name = match.group(1)
        if name not in variables:
            raise BuildfileError(number, "there is no variable {!r}".format(name))
        return variables[name]

    return _USE.sub(value, content)
