"""Executors of a pool by name, and `open_executor`."""

import contextlib
from collections.abc import Callable, Iterator

from ...errors import unknown_name
from ...registry import Registry, parameters_of
from ...types import JsonMapping
from ..pool import Executor

__all__ = ["EXECUTORS", "open_executor"]

EXECUTORS = Registry[Callable[..., Executor]](
    "executor",
    {"threads": "swe_gym.rollout.pool:Threads", "ray": "swe_gym.rollout.executors.ray:ray_executor"},
    extras={"ray": "ray"},
    group="swe_gym.executors",
)
"""Name -> class or function whose arguments are the executor's options."""


@contextlib.contextmanager
def open_executor(name: str, options: JsonMapping | None = None) -> Iterator[Executor]:
    """Make an executor, and close it at the end of the block.

    Args:
        name: "threads", "ray", a dotted path "module:Class" or the name of an entry point.
        options: The executor's options.

    Raises:
        UsageError: The executor or an option is unknown or invalid, or its cluster cannot be reached.
        MissingDependency: The executor needs an extra that is not installed.
    """
    make = EXECUTORS.load(name)
    known = [one.name for one in parameters_of(make)]
    for option in options or {}:
        if option not in known:
            raise unknown_name(f"option of executor {name!r}:", option, known)
    executor = make(**(options or {}))
    try:
        yield executor
    finally:
        if hasattr(executor, "close"):
            executor.close()
