"""Task sources: a registry of them, and a function that opens one."""

from collections.abc import Callable, Iterable

from ..errors import UsageError, unknown_name
from ..registry import Registry, parameters_of
from .base import TaskSource

__all__ = ["SOURCES", "TaskSource", "check_source", "load_source"]

SOURCES = Registry[Callable[..., TaskSource]](
    "task source",
    {
        "toy": "swe_gym.tasks.toy:ToySource",
        "micro": "swe_gym.tasks.micro:MicroSource",
        "file": "swe_gym.tasks.file:FileSource",
        "local": "swe_gym.tasks.local:LocalSource",
        "debug_gym": "swe_gym.tasks.debug_gym:DebugGymSource",
        "graph_planner": "swe_gym.tasks.graph_planner:GraphPlannerSource",
        "harbor": "swe_gym.tasks.harbor:HarborSource",
        "multi_swe_bench": "swe_gym.tasks.multi_swe_bench:MultiSWEBenchSource",
        "r2e": "swe_gym.tasks.r2e:R2ESource",
        "swe_bench_live": "swe_gym.tasks.swe_bench_live:SWEBenchLiveSource",
        "swe_bench_pro": "swe_gym.tasks.swe_bench_pro:SWEBenchProSource",
        "swe_rebench": "swe_gym.tasks.swe_rebench:SWERebenchSource",
        "swebench": "swe_gym.tasks.swebench:SWEBenchSource",
        "swebench-verified": "swe_gym.tasks.swebench:SWEBenchSource",
        "swebench-lite": "swe_gym.tasks.swebench:SWEBenchLite",
        "swebench-full": "swe_gym.tasks.swebench:SWEBenchFull",
        "swebench-multilingual": "swe_gym.tasks.swebench:SWEBenchMultilingual",
        "swebench-multimodal": "swe_gym.tasks.swebench:SWEBenchMultimodal",
        "swegym": "swe_gym.tasks.swegym:SWEGymSource",
        "swesmith": "swe_gym.tasks.swesmith:SWESmithSource",
    },
    group="swe_gym.sources",
)


def load_source(name: str, **arguments: object) -> TaskSource:
    """Open a task source.

    Args:
        name: A name of `SOURCES`, or "module:Class".
        **arguments: Arguments of the source.

    Raises:
        UsageError: The source is unknown, or does not accept these arguments.
        TaskError: The source's data is broken.
    """
    check_source(name, arguments)
    return SOURCES.load(name)(**arguments)


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
