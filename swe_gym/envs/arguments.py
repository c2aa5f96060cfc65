"""The arguments of an environment: their checks before anything is started, and task sources that they share."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import NoReturn

import gymnasium
from gymnasium import logger

from ..actions import require_shell, resolve_format
from ..errors import MissingDependency, UsageError, unknown_name
from ..grading import CounterOptions
from ..registry import parameters_of
from ..sandboxes import SandboxSpec, load_backend, make_spec
from ..tasks import SOURCES, DatasetSource, TaskSource, check_hub, load_source
from ..types import Json, JsonMapping, JsonObject, ToolSpec

KINDS: dict[str, type | tuple[type, ...]] = {
    "source": str,
    "source_options": dict,
    "task_id": (str, NoneType),
    "backend": str,
    "sandbox_options": dict,
    "tools": (str, list),
    "action_format": str,
    "reward": str,
    "counter": str,
    "record": (str, NoneType),
}
"""JSON types of the arguments that are not checked elsewhere."""

WORDS = {str: "text", dict: "a dictionary", list: "a list", NoneType: "None"}


def warn_of_time_limit(steps: int | None = None) -> None:
    """Warn of a limit in steps that ends episodes without a grade.

    Args:
        steps: The limit. None: the one that `gymnasium.make` was given, if it is making an environment now. It wraps
            the environment and tells it nothing, so it is asked for its own argument.
    """
    frame = sys._getframe()
    while steps is None and (frame := frame.f_back):  # type: ignore[assignment]
        if frame.f_code is gymnasium.make.__code__:
            steps = frame.f_locals["max_episode_steps"] or getattr(
                frame.f_locals.get("env_spec"), "max_episode_steps", None
            )
            break
    if steps is not None and steps > 0:
        logger.warn(
            f"max_episode_steps={steps} truncates an episode without grading it, so that it has no reward: use "
            f"max_turns={steps}, which grades the work."
        )


_SAME_IN_JSON = frozenset((str, bool, float, type(None)))  # an int may be too long for JSON


def json_native(**arguments: Json) -> JsonObject:
    """Return a copy of the arguments in plain JSON: tuples become lists.

    Raises:
        UsageError: An argument is not JSON, such as a `Path` or an object.
    """
    for name, value in arguments.items():
        if type(value) in _SAME_IN_JSON:
            continue
        try:
            arguments[name] = json.loads(json.dumps(value, default=_refuse))
        except (TypeError, ValueError) as error:
            raise UsageError(f"argument {name!r} must be plain JSON (text, number, list, dict): {error}") from error
    return arguments


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{value!r} is not" + (", give it as str(...)" if isinstance(value, os.PathLike) else ""))


class UnknownArgument(UsageError, TypeError):
    """A constructor got an argument that it does not have. Libraries that try arguments expect Python's own error."""


def check_known(kind: type, base: type, unknown: Iterable[str]) -> None:
    """Refuse arguments that a class does not have. A subclass of `base` with a constructor of its own has its source.

    Raises:
        UnknownArgument: There is one; the message suggests the nearest.
    """
    for name in unknown:
        known = {one.name for one in parameters_of(kind) if one.kind is not one.VAR_KEYWORD}
        if kind is not base:
            known -= {"source", "source_options"} - set(inspect.signature(kind).parameters)
        said = str(unknown_name("argument", name, known)).removeprefix(f"unknown argument {name!r}")
        raise UnknownArgument(f"{kind.__name__}.__init__() got an unexpected keyword argument {name!r}{said}")


def check_arguments(arguments: JsonMapping, render_modes: Sequence[str]) -> None:
    """Check the arguments of `SweEnv`, except those that `check_source` and `check_format` check.

    Raises:
        UsageError: An argument has the wrong type or value.
    """
    for name, kind in KINDS.items():
        if not isinstance(arguments[name], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise UsageError(f"{name} must be {' or '.join(WORDS[one] for one in kinds)}, not {arguments[name]!r}")
    record, render_mode = arguments["record"], arguments["render_mode"]
    if record is not None and not Path(record).is_file():
        raise UsageError(f"there is no record file {record}: `swe-gym validate --record {record}` writes one")
    CounterOptions(arguments["counter"], arguments["judge_runs"])  # checks its arguments
    alarm = arguments["alarm_reward"]
    if isinstance(alarm, bool) or not isinstance(alarm, int | float) or not -math.inf < alarm <= 0:
        raise UsageError(f"alarm_reward must be a number of at most 0, not {alarm!r}")
    _check_limits(arguments)
    if render_mode is not None and render_mode not in render_modes:
        raise unknown_name("render mode", render_mode, render_modes)
    if render_mode == "rgb_array" and importlib.util.find_spec("PIL") is None:
        raise MissingDependency("render mode 'rgb_array' needs Pillow: pip install 'swe-gym[render]'")
    check_sandbox(arguments["backend"], arguments["sandbox_options"])


def _check_limits(arguments: JsonMapping) -> None:
    for name in ("max_turns", "time_limit", "max_observation", "max_invalid"):
        value = arguments[name]
        kinds, whole = ((int, float), "") if name == "time_limit" else ((int,), "whole ")
        if name == "max_invalid" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            raise UsageError(f"{name} must be a positive {whole}number, not {value!r}")


def check_format(name: str, tools: Sequence[ToolSpec]) -> None:
    """Raise `UsageError` for an unknown action format, or one that cannot call any of these tools."""
    if resolve_format(name) == "bash":
        require_shell(tools)


def check_sandbox(backend: str, options: JsonObject) -> None:
    """Raise `UsageError` for an unknown backend or invalid options. No sandbox is started."""
    load_backend(backend).for_spec(make_spec(SandboxSpec(), options))


# A file of 25,000 tasks is read once for 300 environments. References are weak: the source is freed with its last
# environment, so a changed file is read again.
_shared: weakref.WeakValueDictionary[str, TaskSource] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_early(name: str, options: JsonObject, task_id: str | None) -> TaskSource | None:
    """Open a source that needs no download, and check the id of a task; None if it may need one.

    Raises:
        UsageError: A file, folder, argument or task does not exist.
        MissingDependency: Reading the tasks needs an extra that is not installed.
        TaskError: The source's data is broken.
    """
    kind = SOURCES.load(name)
    of_hub = isinstance(kind, type) and issubclass(kind, DatasetSource)
    if name in SOURCES and (not of_hub or options.get("path") is not None):
        source = shared_source(name, options)
        if task_id is not None and task_id not in source.ids():
            source.get(task_id)  # raises the error
        return source
    if isinstance(kind, type) and issubclass(kind, DatasetSource):
        if not kind.dataset and not options.get("dataset"):
            raise UsageError(f"task source {name!r} requires the argument 'path'")
        check_hub()
    return None


def shared_source(name: str, options: JsonObject) -> TaskSource:
    """Return the task source with this name and these options. It is opened unless another environment holds it.

    Raises:
        UsageError: The source is unknown, or does not accept these arguments.
        TaskError: The source's data is broken.
    """
    key = json.dumps([name, options, os.getcwd()], sort_keys=True)  # options may hold relative paths
    with _lock:
        source = _shared.get(key)
        if source is None:
            source = load_source(name, **options)
            _shared[key] = source
        return source
