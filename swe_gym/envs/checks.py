"""What can be said about an environment's arguments before anything is started."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from ..actions.render import require_shell, resolve_format
from ..errors import UsageError
from ..sandboxes import BACKENDS, SandboxSpec, make_spec
from ..types import ToolSpec

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
"""What kind of JSON an argument is, where what takes it counts on that."""

WORDS = {str: "text", dict: "a dictionary", list: "a list", NoneType: "None"}


def json_native(**arguments: Any) -> dict[str, Any]:
    """The arguments as JSON gives them back: tuples become lists, nothing is shared with the caller.

    Raises:
        UsageError: One of them is more than JSON can say, such as a `Path` or an object.
    """
    for name, value in arguments.items():
        try:
            arguments[name] = json.loads(json.dumps(value, default=_refuse))
        except (TypeError, ValueError) as error:
            raise UsageError(f"argument {name!r} must be plain JSON (text, number, list, dict): {error}") from error
    return arguments


def _refuse(value: object) -> Any:
    raise TypeError(f"{value!r} is not" + (", give it as str(...)" if isinstance(value, os.PathLike) else ""))


def check_kinds(arguments: Mapping[str, Any]) -> None:
    """Names must be text and options dictionaries, or the messages of who takes them would lead nowhere."""
    for name, kind in KINDS.items():
        if not isinstance(arguments[name], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise UsageError(f"{name} must be {' or '.join(WORDS[one] for one in kinds)}, not {arguments[name]!r}")


def check_limits(**limits: float) -> None:
    """Each must be a positive, finite number; all but `time_limit` whole ones."""
    for name, value in limits.items():
        kinds = (int, float) if name == "time_limit" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            whole = "" if name == "time_limit" else "whole "
            raise UsageError(f"{name} must be a positive {whole}number, not {value!r}")


def check_format(name: str, tools: Sequence[ToolSpec]) -> None:
    """The action format must be one that `actions` knows, and that can carry a call of these tools."""
    if resolve_format(name) == "bash":
        require_shell(tools)


def check_record(path: str | None) -> None:
    """The record file must be there: without it every task would be called not validated."""
    if path is not None and not Path(path).is_file():
        raise UsageError(f"there is no record file {path}: `swe-gym validate --record {path}` writes one")


def check_sandbox(backend: str, options: dict[str, Any]) -> None:
    """The backend must exist and take these options. A sandbox object is made for that, and never started."""
    BACKENDS.load(backend)(make_spec(SandboxSpec(), options))
