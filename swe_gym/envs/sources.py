"""Task sources that environments share while any of them is alive."""

from __future__ import annotations

import json
import os
import threading
import weakref

from ..errors import UsageError
from ..tasks import SOURCES, DatasetSource, TaskSource, check_hub, load_source
from ..types import JsonObject

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
