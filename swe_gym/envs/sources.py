"""Task sources, shared by the environments that ask for the same one while any of them lives."""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import Any

from ..tasks import TaskSource, load_source

# A file of 25,000 tasks is read once for 300 environments. References are weak: when the last environment
# is gone so is the source, and a file that was changed since is read anew.
_shared: weakref.WeakValueDictionary[str, TaskSource] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_source(name: str, options: dict[str, Any]) -> TaskSource:
    """The task source of that name and these options, loaded unless another environment holds it.

    Raises:
        UsageError: No such source, or it does not take these arguments.
        TaskError: The source's data are broken.
    """
    key = json.dumps([name, options, os.getcwd()], sort_keys=True)  # options may hold relative paths
    with _lock:
        source = _shared.get(key)
        if source is None:
            source = load_source(name, **options)
            _shared[key] = source
        return source
