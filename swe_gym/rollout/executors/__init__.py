"""Executors of a pool by name, and `open_executor`."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

from ...errors import unknown_name
from ...registry import Registry, parameters_of
from ...types import Json, JsonMapping
from ..pool import Executor

__all__ = ["EXECUTORS", "ON_THIS_MACHINE", "named_variables", "open_executor"]

EXECUTORS = Registry[Callable[..., Executor]](
    "executor",
    {
        "threads": "swe_gym.rollout.pool:Threads",
        "process": "swe_gym.rollout.executors.nodes:process_executor",
        "ray": "swe_gym.rollout.executors.ray_nodes:ray_executor [ray]",
    },
    group="swe_gym.executors",
)
"""Name -> class or function whose arguments are the executor's options."""

ON_THIS_MACHINE = ("threads", "process")
"""Executors that run jobs on this machine."""

OF_KEYS = ("api_key_env", "api_key_variable")
"""Options that name the environment variable of a key."""


@contextlib.contextmanager
def open_executor(
    name: str, options: JsonMapping | None = None, config: Json = None, *, workers: float = 1
) -> Iterator[Executor]:
    """Make an executor, and close it at the end of the block.

    Args:
        name: "threads", "process", "ray", a dotted path "module:Class" or the name of an entry point.
        options: The executor's options.
        config: Configuration of the episodes. An executor with the option `variables` also gets the names of the keys
            in it.
        workers: Jobs that run at once. An executor with the argument `workers` gets it.

    Raises:
        UsageError: The executor or an option is unknown or invalid, or its cluster cannot be reached.
        MissingDependency: The executor needs an extra that is not installed.
    """
    make = EXECUTORS.load(name)
    known = [one.name for one in parameters_of(make)]
    for option in options or {}:
        if option not in known or option == "workers":
            raise unknown_name(f"option of executor {name!r}:", option, [one for one in known if one != "workers"])
    given = dict(options or {})
    if "workers" in known:
        given["workers"] = workers
    if "variables" in known:
        given["variables"] = [*given.get("variables", ()), *filter(os.environ.__contains__, named_variables(config))]
    executor = make(**given)
    try:
        yield executor
    finally:
        if hasattr(executor, "close"):
            executor.close()


def named_variables(config: Json) -> list[str]:
    """Return the environment variables that a configuration names as those of keys, at any depth, sorted."""
    if isinstance(config, Mapping):
        named = {str(config[option]) for option in OF_KEYS if config.get(option)}
        return sorted(named.union(*map(named_variables, config.values())))
    return sorted({name for part in config for name in named_variables(part)}) if isinstance(config, list) else []
