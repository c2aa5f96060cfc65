"""Task sources, shared by all environments with the same source."""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import Any

from ..tasks import TaskSource, load_source

# A file of 25,000 tasks is read once for 300 environments. References are weak: the source goes with the last
# environment, and a changed file is read again.
_shared: weakref.WeakValueDictionary[str, TaskSource] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_source(name: str, options: dict[str, Any]) -> TaskSource:
    """Return a task source, loaded unless another environment holds it.

    Raises:
        UsageError: The source is unknown or does not take these options.
        TaskError: The source's data are invalid.
    """
    key = json.dumps([name, options, os.getcwd()], sort_keys=True)  # options may hold relative paths
    with _lock:
        source = _shared.get(key)
        if source is None:
            source = load_source(name, **options)
            _shared[key] = source
        return source
