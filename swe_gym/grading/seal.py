"""Seals sandboxes: removes what the image knows and the policy, or its work, must not.

Images of tasks are often whole clones in which the fix is a later commit, and some hold the hidden tests. An episode's
sandbox loses both. The work of a policy runs in grading sandboxes too, which come from the same image: they lose the
history, but keep what the evaluation reads.
"""

import contextlib
import json
import posixpath
import re
import shlex
from collections.abc import Iterator

from ..errors import FileError, TaskError
from ..guests import bundle
from ..sandboxes import Sandbox, start_command
from ..types import Task

TIMEOUT = 300.0


def seal_workspace(task: Task, sandbox: Sandbox) -> None:
    """Remove hidden files and all git objects newer than the workspace's commit, in one call and without network.

    A task without an image that hides nothing is skipped: its workspace is one commit that swe_gym made.

    Args:
        task: The task. Its oracle names the hidden paths.
        sandbox: The episode's sandbox, new, with the start patch in it.

    Raises:
        TaskError: The image cannot be sealed.
        SandboxError: The sandbox failed.
    """
    if _has_history(task, sandbox) or task.oracle.hidden_paths:
        _order(task, sandbox, hidden=hidden_places(task, sandbox))


def seal_for_grading(task: Task, sandbox: Sandbox) -> None:
    """Remove git objects newer than the workspace's commit from a grading sandbox, in which the work will run.

    Hidden files stay, as do tags of the past, and from later commits the files that the evaluation's scripts check out
    (SWE-bench Pro takes its tests from the fix). A script that names a later commit without paths keeps it whole. With
    a grader of your own, nothing is removed: what it reads is not known. A task without an image is skipped.

    Args:
        task: The task.
        sandbox: A grading sandbox, new, with the start patch in it.

    Raises:
        TaskError: The image cannot be sealed.
        SandboxError: The sandbox failed.
    """
    if _has_history(task, sandbox) and not task.oracle.own_grader:
        _order(task, sandbox, hidden=[], checkouts=list(checkouts(scripts(task, sandbox))))


def scripts(task: Task, sandbox: Sandbox) -> str:
    """Return the shell commands of a task's evaluation, with the hidden files of its image."""
    evaluation = task.oracle.evaluation
    found = [task.oracle.setup_cmd, getattr(evaluation, "test_cmd", ""), getattr(evaluation, "eval_script", "")]
    for path in task.oracle.hidden_paths:
        with contextlib.suppress(FileError):  # a folder, or it is not in this image
            found.append(sandbox.read_file(path).decode("utf-8", "replace"))
    return "\n".join(found)


def checkouts(script: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commits that the git commands of a script name, each with its paths; none for the whole commit."""
    for command in re.split(r"&&|\|\|?|;|\n", script.replace("\\\n", " ")):
        words = _words(command) if re.search(r"\bgit\b", command) else []
        for place, word in enumerate(words):
            commit, colon, path = re.sub(r"^--source=", "", word).partition(":")
            if re.fullmatch(r"[0-9a-f]{7,40}", commit):
                takes_paths = not {"checkout", "restore"}.isdisjoint(words[:place])
                paths = [one for one in words[place + 1 :] if not one.startswith("-")] if takes_paths else []
                yield commit, [path] if colon else paths


def _words(command: str) -> list[str]:
    """Return the words of a command up to the first redirection."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a part of a text in quotes
        words = command.split()
    return words[: next((place for place, word in enumerate(words) if word.startswith((">", "<", "2>"))), None)]


def _has_history(task: Task, sandbox: Sandbox) -> bool:
    """Return whether git in the workspace may know more than one commit that swe_gym made."""
    of_image = task.image is not None or (sandbox.spec.image is not None and task.workspace is None)
    return of_image or bool(task.oracle.start_patch)


def _order(task: Task, sandbox: Sandbox, **more: object) -> None:
    """Have a sandbox sealed."""
    order = {"workdir": sandbox.workdir, "start_patch": task.oracle.start_patch, **more}
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
