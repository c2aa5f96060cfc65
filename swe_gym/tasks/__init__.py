"""Task sources: the table of those that ship with the package, and a function that opens one."""

import inspect
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import SweGymError, UsageError, unknown_name, wrong_fields
from ..registry import Registry, parameters_of
from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .base import ShuffledOrder as ShuffledOrder
    from .base import TaskSource as TaskSource
    from .base import changed_lines as changed_lines
    from .base import split_by_repository as split_by_repository
    from .dataset import DatasetSource as DatasetSource
    from .exporters import TASK_EXPORTERS as TASK_EXPORTERS
    from .exporters import by_image as by_image
    from .file import HUB as HUB
    from .file import is_place_of_tasks as is_place_of_tasks
    from .file import write_tasks as write_tasks
    from .hub import check_hub as check_hub
    from .hub import push_files as push_files
    from .local import LocalSource as LocalSource
    from .micro import expert_calls as expert_calls
    from .record import TaskRecord as TaskRecord
    from .record import digest as digest
    from .record import doubt as doubt
    from .record import read_rates as read_rates
    from .record import read_records as read_records

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


class CatalogEntry(NamedTuple):
    """One task source.

    Attributes:
        target: Its class, as "module:Class".
        family: Name of its environment id `SWE/{family}-v0`; empty if it has none.
        about: First line of that environment's documentation, for a source of a dataset. The environment's class is
            made from it; other families have one in `swe_gym.envs.families`.
    """

    target: str
    family: str = ""
    about: str = ""


CATALOG = {
    "toy": CatalogEntry("swe_gym.tasks.toy:ToySource", "Toy"),
    "micro": CatalogEntry("swe_gym.tasks.micro:MicroSource", "Micro"),
    "file": CatalogEntry("swe_gym.tasks.file:FileSource", "Tasks"),
    "local": CatalogEntry("swe_gym.tasks.local:LocalSource", "Local"),
    "debug_gym": CatalogEntry(
        "swe_gym.tasks.debug_gym:DebugGymSource", "DebugGym", "debug-gym's rows; `path` is required."
    ),
    "graph_planner": CatalogEntry(
        "swe_gym.tasks.graph_planner:GraphPlannerSource",
        "GraphPlanner",
        "Graph Planner's JSON lines and parquet files; `path` is required.",
    ),
    "harbor": CatalogEntry("swe_gym.tasks.harbor:HarborSource", "Harbor", "Harbor's task folders; `path` is required."),
    "multi_swe_bench": CatalogEntry(
        "swe_gym.tasks.multi_swe_bench:MultiSWEBenchSource",
        "MultiSWEBench",
        "Multi-SWE-bench and Multi-SWE-RL: pull requests of seven languages.",
    ),
    "r2e": CatalogEntry(
        "swe_gym.tasks.r2e:R2ESource",
        "R2E",
        "R2E-Gym: commits of Python repositories. Each test must end as it did after the commit.",
    ),
    "swe_bench_live": CatalogEntry(
        "swe_gym.tasks.swebench:SWEBenchLiveSource",
        "SWEBenchLive",
        "SWE-bench-Live: recent issues, newer than the models under evaluation.",
    ),
    "swe_bench_pro": CatalogEntry(
        "swe_gym.tasks.swe_bench_pro:SWEBenchProSource",
        "SWEBenchPro",
        "SWE-bench Pro: long tasks, judged by scripts in their rows.",
    ),
    "swe_rebench": CatalogEntry(
        "swe_gym.tasks.swe_rebench:SWERebenchSource",
        "SWERebench",
        "SWE-rebench V1 and V2: issues of thousands of repositories, in V2 of twenty languages.",
    ),
    "swebench": CatalogEntry(
        "swe_gym.tasks.swebench:SWEBenchSource",
        "SWEBench",
        "SWE-bench in any edition: GitHub issues, and the tests of the pull requests that fixed them.",
    ),
    "swebench-verified": CatalogEntry("swe_gym.tasks.swebench:SWEBenchSource"),
    "swebench-lite": CatalogEntry("swe_gym.tasks.swebench:SWEBenchLite"),
    "swebench-full": CatalogEntry("swe_gym.tasks.swebench:SWEBenchFull"),
    "swebench-multilingual": CatalogEntry("swe_gym.tasks.swebench:SWEBenchMultilingual"),
    "swebench-multimodal": CatalogEntry("swe_gym.tasks.swebench:SWEBenchMultimodal"),
    "swegym": CatalogEntry(
        "swe_gym.tasks.swebench:SWEGymSource",
        "SWEGym",
        "SWE-Gym: issues of eleven Python repositories that SWE-bench does not cover.",
    ),
    "swesmith": CatalogEntry(
        "swe_gym.tasks.swesmith:SWESmithSource", "SWESmith", "SWE-smith: working repositories with a bug inserted."
    ),
}
"""Name -> entry."""

SOURCES = Registry[Callable[..., "TaskSource"]](
    "task source", {name: entry.target for name, entry in CATALOG.items()}, group="swe_gym.sources"
)


def load_source(name: str, **arguments: object) -> "TaskSource":
    """Open a task source.

    Args:
        name: A name of `SOURCES`, or "module:Class".
        **arguments: Arguments of the source.

    Raises:
        UsageError: The source is unknown, or does not accept these arguments.
        TaskError: The source's data is broken.
    """
    check_source(name, arguments)
    kind = SOURCES.load(name)
    try:
        return kind(**arguments)
    except SweGymError:
        raise
    except Exception:
        for one in parameters_of(kind):
            if one.name in arguments:
                _check_type(name, one, arguments[one.name])
        raise


def check_source(name: str, arguments: Iterable[str]) -> None:
    """Check the name of a source and the names of its arguments, without opening it.

    Raises:
        UsageError: The source is unknown, does not accept an argument, or requires a missing one.
    """
    given = set(arguments)
    parameters = parameters_of(SOURCES.load(name))
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    known = [one.name for one in named]
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for argument in sorted(given.difference(known)):
            raise unknown_name(f"option of task source {name!r}:", argument, known)
    for one in named:
        if one.default is one.empty and one.name not in given:
            raise UsageError(f"task source {name!r} requires the argument {one.name!r}")


def _check_type(name: str, parameter: inspect.Parameter, value: object) -> None:
    """Refuse an argument of the wrong type, unless the source does not tell it."""
    if parameter.annotation is parameter.empty or isinstance(parameter.annotation, str):
        return
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # imported late, like all that doors name

    adapter: TypeAdapter[object] = TypeAdapter(parameter.annotation, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_python(os.fspath(value) if isinstance(value, os.PathLike) else value, strict=True)
    except ValidationError as error:
        raise UsageError(f"option {parameter.name!r} of task source {name!r}: {wrong_fields(error)}") from None
