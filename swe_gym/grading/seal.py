"""Seals an episode's sandbox: removes from it what the image knows and the policy must not.

Images of tasks are often whole clones in which the fix is a later commit, and some hold the hidden tests. The grading
sandboxes come from the same image and are not sealed, so nothing has to be restored.
"""

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
    """Apply the oracle's `start_patch`, which most tasks do not have.

    Raises:
        TaskError: The patch does not apply.
        SandboxError: The sandbox failed.
    """
    apply_diff(sandbox, task.oracle.start_patch, what=f"task {task.task_id}: the start patch")


def seal(task: Task, sandbox: Sandbox) -> None:
    """Remove hidden files and all git objects newer than the workspace's commit, in one call and without network.

    A task without an image that hides nothing is skipped: its workspace is one commit that swe_gym made.

    Args:
        task: The task. Its oracle names the hidden paths.
        sandbox: The episode's sandbox, new, with the start patch in it. Grading sandboxes are not sealed.

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
    """Return the absolute paths of hidden files and folders in a sandbox.

    Raises:
        TaskError: A hidden path holds the workspace.
    """
    places = [sandbox.resolve(path) for path in task.oracle.hidden_paths]
    for place in places:
        if posixpath.commonpath([place, sandbox.workdir]) == place:
            raise TaskError(f"task {task.task_id}: hidden_paths must not contain the workspace or a folder above it")
    return places
