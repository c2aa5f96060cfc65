"""What an image knows and a policy must not: removed from the episode's sandbox before a policy sees it.

Images of tasks are often whole clones in which the fix is a later commit, and some hold the hidden tests. The sandbox
that judges comes from the same image and keeps all of it, so nothing has to be put back.
"""

from __future__ import annotations

import json
import posixpath

from ..errors import TaskError
from ..guests import bundle
from ..sandboxes.base import Sandbox
from ..sandboxes.container import start_command
from ..types import Task
from .patch import apply_diff

TIMEOUT = 300.0


def apply_start(task: Task, sandbox: Sandbox) -> None:
    """Make what the image or workspace holds the state that the task starts from; for most tasks it is.

    Raises:
        TaskError: The oracle's `start_patch` does not apply.
        SandboxError: The sandbox failed.
    """
    apply_diff(sandbox, task.oracle.start_patch, what=f"task {task.task_id}: the start patch")


def seal(task: Task, sandbox: Sandbox) -> None:
    """Remove hidden files and all of git that is newer than the workspace's commit, in one call and without network.

    A task whose files come from a workspace and not from an image, and that hides nothing, costs nothing: such a
    workspace is one commit that we made.

    Args:
        task: The task; its oracle says what is hidden.
        sandbox: New, with the start patch in it. In sandboxes that judge, nothing is sealed.

    Raises:
        TaskError: The image cannot be sealed.
        SandboxError: The sandbox failed.
    """
    oracle = task.oracle
    of_image = task.image is not None or (sandbox.spec.image is not None and task.workspace is None)
    if not (of_image or oracle.hidden_paths or oracle.start_patch):
        return
    order = {
        "workdir": sandbox.workdir,
        "hidden": hidden_places(task, sandbox),
        "start_patch": oracle.start_patch,
    }
    result = sandbox.exec(start_command(bundle("seal")), stdin=json.dumps(order).encode(), timeout=TIMEOUT, merge=True)
    if not result.ok:
        said = result.text[-2000:].strip()
        raise TaskError(f"task {task.task_id}: its sandbox cannot be sealed ({result.describe()}): {said}")


def hidden_places(task: Task, sandbox: Sandbox) -> list[str]:
    """Where in a sandbox the hidden files and folders are, absolute.

    Raises:
        TaskError: The workspace itself would be hidden.
    """
    places = [sandbox.resolve(path) for path in task.oracle.hidden_paths]
    for place in places:
        if posixpath.commonpath([place, sandbox.workdir]) == place:
            raise TaskError(f"task {task.task_id}: hidden_paths must not hold the workspace or a folder above it")
    return places
