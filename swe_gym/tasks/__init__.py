"""Task sources: a registry of them, and a function that opens one."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..door import load as _load
from ..errors import UsageError, unknown_name
from ..registry import Registry, parameters_of
from .catalog import CATALOG as CATALOG

if TYPE_CHECKING:  # read by `door`: a name is imported when it is first used
    from .base import TaskSource as TaskSource
    from .catalog import ENV_IDS as ENV_IDS
    from .choice import ShuffledOrder as ShuffledOrder
    from .choice import changed_lines as changed_lines
    from .choice import split_by_repository as split_by_repository
    from .dataset import DatasetSource as DatasetSource
    from .exporters import TASK_EXPORTERS as TASK_EXPORTERS
    from .exporters import by_image as by_image
    from .file import HUB as HUB
    from .file import FileSource as FileSource
    from .file import is_place_of_tasks as is_place_of_tasks
    from .file import write_tasks as write_tasks
    from .hub import check_hub as check_hub
    from .hub import push_files as push_files
    from .local import LocalSource as LocalSource
    from .micro import expert_calls as expert_calls
    from .record import TaskRecord as TaskRecord
    from .record import digest as digest
    from .record import doubt as doubt
    from .record import read_records as read_records

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


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
