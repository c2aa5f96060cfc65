"""Names whose targets are imported when they are first used: in registries, and at the doors of packages.

A registry maps the names of backends, task sources, tools, graders, rewards and so on to `"module:attribute"`. Wherever
a name works, a dotted path (`"my_package.my_module:MyBackend"`) and an entry point of the registry's group
(`[project.entry-points."swe_gym.backends"]`) work too.
"""

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from .errors import MissingDependency, UsageError, unknown_name
from .syntax import parse

T_co = TypeVar("T_co", covariant=True)


def parameters_of(target: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a class or function. A class that accepts `**options` passes them to its base class."""
    bases = inspect.getmro(target)[:-1] if inspect.isclass(target) else ()
    kinds: list[Callable[..., object]] = [kind for kind in bases if "__init__" in vars(kind)]
    found: dict[str, inspect.Parameter] = {}
    for kind in kinds or [target]:
        own = inspect.signature(kind).parameters
        found = {**own, **found}
        if not any(one.kind is one.VAR_KEYWORD for one in own.values()):
            return [one for one in found.values() if one.kind is not one.VAR_KEYWORD]
    return list(found.values())


class Registry(Mapping[str, str], Generic[T_co]):
    """A mapping `name -> "module:attribute"` whose targets are imported on demand.

    Args:
        kind: Kind of the entries, singular, for messages: "backend".
        table: The names that ship with the package. A target that needs an extra names it, as entry points do:
            "module:attribute [extra]".
        group: Entry-point group through which other packages add names.
    """

    def __init__(self, kind: str, table: Mapping[str, str], *, group: str) -> None:
        self.kind = kind
        self.group = group
        parts = {name: target.rstrip("]").split(" [") for name, target in table.items()}
        self._table = {name: target for name, (target, *_) in parts.items()}
        self._extras = {name: extra[0] for name, (_, *extra) in parts.items() if extra}

    def __getitem__(self, name: str) -> str:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def names(self) -> list[str]:
        """Return the names that ship with the package, and those of entry points."""
        return list(dict.fromkeys([*self._table, *(point.name for point in entry_points(group=self.group))]))

    def load(self, name: str) -> T_co:
        """Import and return the target of a name.

        Raises:
            UsageError: The name is unknown, or the dotted path cannot be imported.
            MissingDependency: The target needs an extra that is not installed.
        """
        target = self._table.get(name) or (name if ":" in name else self._plugin(name))
        module, _, attribute = target.partition(":")
        try:
            loaded: T_co = getattr(importlib.import_module(module), attribute)
            return loaded
        except ImportError as error:
            if name in self._extras:
                raise MissingDependency(
                    f"{self.kind} {name!r} needs the extra {self._extras[name]!r}: "
                    f"pip install 'swe-gym[{self._extras[name]}]' ({error})"
                ) from error
            fix = ". Install it, or add its folder to PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
            raise UsageError(f"{self.kind} {name!r}: cannot import {module!r}: {error}{fix}") from error
        except AttributeError as error:
            raise UsageError(f"{self.kind} {name!r}: {module!r} has no {attribute!r}") from error

    def _plugin(self, name: str) -> str:
        plugins = {point.name: point.value for point in entry_points(group=self.group)}
        if name not in plugins:
            raise unknown_name(self.kind, name, {*self._table, *plugins})
        return plugins[name]


@functools.cache
def homes(package: str) -> dict[str, str]:
    """Return public name -> module, as the `if TYPE_CHECKING:` block of a package's `__init__` imports them."""
    file = sys.modules[package].__file__
    assert file is not None
    body = parse(Path(file).read_text(encoding="utf-8")).body
    blocks = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    nodes = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom) and node.level]
    return {alias.asname or alias.name: f".{node.module}" for node in nodes for alias in node.names}


def load(package: str, name: str) -> object:
    """Import a public name of a package, and keep it there. `__getattr__` of the package calls it.

    Raises:
        AttributeError: The package has no such name.
    """
    if name.startswith("__") or name not in homes(package):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(homes(package)[name], package), name)
    setattr(sys.modules[package], name, value)
    return value
