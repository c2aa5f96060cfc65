"""The ids under which Gymnasium finds the environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode

from ..errors import UsageError, unknown_name
from ..spaces import AnyEnv
from ..tasks import CATALOG

if TYPE_CHECKING:
    from ..types import Json, JsonObject  # with pydantic, which is imported late

ENV_IDS = {
    f"SWE/{entry.family}-v0": f"swe_gym.envs.families:{entry.family}Env" for entry in CATALOG.values() if entry.family
}
"""Environment id -> entry point."""

# `nondeterministic` stays False: the environment itself adds no randomness, so the same task, seed and actions give the
# same bytes. A command that reads a clock or random numbers differs between runs because the policy asked for that; a
# task with flaky tests fails `swe-gym validate`.


class MakeArguments(dict[str, Any]):
    """Arguments in a spec that leave `wrappers` and `vector_kwargs` of `gymnasium.make_vec` to our entry point.

    `make_vec` takes both out of the arguments by `pop` and refuses them for environments with a vector entry point.
    """

    def pop(self, name: str, *default: object) -> Any:
        """Remove and return an argument; `wrappers` and `vector_kwargs` stay if our entry point gets them."""
        value = super().pop(name, *default)
        if name == "vectorization_mode":
            self._ours = value in (None, "vector_entry_point", VectorizeMode.VECTOR_ENTRY_POINT)
        if name in ("wrappers", "vector_kwargs") and value and getattr(self, "_ours", False):
            self[name] = value
            return type(value)()
        return value

    def copy(self) -> MakeArguments:
        """Return a copy of this kind."""
        return MakeArguments(self)


def register_families() -> None:
    """Register the family ids with Gymnasium. Idempotent."""
    _insert([_spec(env_id, entry_point) for env_id, entry_point in ENV_IDS.items()])


def register_tasks(
    source: str, ids: Sequence[str] | None = None, *, prefix: str | None = None, **source_options: Json
) -> list[str]:
    """Register each task under an id of its own: `"{prefix}/{task_id}-v0"`.

    The specs go directly into Gymnasium's registry, because `gymnasium.register` scans the whole registry for each.

    Args:
        source: The task source, as in `SweEnv`.
        ids: The task ids, as a list; None registers all tasks of the source.
        prefix: The namespace; None is "SWE-" and the source's name. It may hold letters, digits, "_" and "-".
        **source_options: Arguments of the source.

    Returns:
        The new ids, in the order of the tasks.

    Raises:
        UsageError: The prefix or `ids` is invalid, or another environment has one of the ids.
    """
    from ..tasks import load_source  # here, so that `import swe_gym` stays light
    from .arguments import json_native

    prefix = f"SWE-{source}" if prefix is None else prefix
    if not re.fullmatch(r"[A-Za-z0-9_-]+", prefix):
        raise UsageError(f"invalid prefix {prefix!r}: it may hold letters, digits, '_' and '-'; pass another prefix=")
    if isinstance(ids, str):
        raise UsageError(f"ids must be a list of task ids, not {ids!r}: write ids=[{ids!r}]")
    options = json_native(source_options=source_options)["source_options"]
    names = load_source(source, **options).ids() if ids is None else ids
    specs = [
        _spec(
            f"{prefix}/{task_id}-v0",
            "swe_gym.envs.swe_env:SweEnv",
            {"source": source, "source_options": dict(options), "task_id": task_id},
        )
        for task_id in names
    ]
    _insert(specs)
    return [spec.id for spec in specs]


def make_env(env_id: str, **arguments: Json) -> AnyEnv:
    """Make a registered environment; nothing is started.

    Raises:
        UsageError: The id or an argument is unknown.
    """
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **arguments)
    except gymnasium.error.UnregisteredEnv:
        raise unknown_name("environment", env_id, [one for one in gymnasium.registry if "SWE" in one]) from None
    except (gymnasium.error.Error, TypeError) as error:
        reason = str(error).partition(" was raised from")[0]  # Gymnasium appends the arguments, secrets included
        raise UsageError(f"{env_id!r} cannot be made with these options: {reason}") from None


def _spec(env_id: str, entry_point: str, arguments: JsonObject | None = None) -> EnvSpec:
    """Return the spec of one environment, which `gymnasium.make_vec` accepts too."""
    _, _, name = entry_point.partition(":")
    many = f"swe_gym.vector.families:{name}"
    return EnvSpec(env_id, entry_point=entry_point, vector_entry_point=many, kwargs=MakeArguments(arguments or {}))


def _insert(specs: Sequence[EnvSpec]) -> None:
    """Register all specs or, if another environment has one of the ids, none."""
    for spec in specs:
        known = gymnasium.registry.get(spec.id)
        if known is not None and (known.entry_point, known.kwargs) != (spec.entry_point, spec.kwargs):
            raise UsageError(f"environment id {spec.id!r} is taken: pass another prefix=")
    gymnasium.registry.update({spec.id: spec for spec in specs})
