"""Tables of names: how backends, task sources, tools, graders and rewards are found.

A table maps a name to `"module:attribute"`, so nothing is imported before it is asked for. Beside the
names of a table, a dotted path (`"my_package.my_module:MyBackend"`) and an entry point of the table's group
(`[project.entry-points."swe_gym.backends"]`) work wherever a name does.
"""

import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from .errors import MissingDependency, UsageError, unknown_name


class Registry(Mapping[str, str]):
    """A table `name -> "module:attribute"` whose targets are imported on demand.

    Args:
        kind: What the table holds, singular, for messages: "backend".
        table: The names that ship with the package.
        extras: For names that need an optional dependency, the extra that installs it.
        group: The entry-point group through which other packages add names.
    """

    def __init__(
        self, kind: str, table: Mapping[str, str], *, group: str, extras: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.group = group
        self._table = dict(table)
        self._extras = dict(extras or {})

    def __getitem__(self, name: str) -> str:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def load(self, name: str) -> Any:
        """Import and return what `name` stands for.

        Raises:
            UsageError: No such name, or the dotted path leads nowhere.
            MissingDependency: The target needs an extra that is not installed.
        """
        target = self._table.get(name) or (name if ":" in name else self._plugin(name))
        module, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            if name in self._extras:
                raise MissingDependency(
                    f"{self.kind} {name!r} needs the extra {self._extras[name]!r}: "
                    f"pip install 'swe-gym[{self._extras[name]}]' ({error})"
                ) from error
            raise UsageError(f"{self.kind} {name!r}: cannot import {module!r}: {error}") from error
        except AttributeError as error:
            raise UsageError(f"{self.kind} {name!r}: {module!r} has no {attribute!r}") from error

    def _plugin(self, name: str) -> str:
        plugins = {point.name: point.value for point in entry_points(group=self.group)}
        if name not in plugins:
            raise unknown_name(self.kind, name, {*self._table, *plugins})
        return plugins[name]
