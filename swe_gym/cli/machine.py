"""Checks of this machine that all commands share which run episodes: extras, and where they write."""

from pathlib import Path

from ..cache import check_room
from ..rollout.executors import EXECUTORS
from ..rollout.policies import POLICIES
from ..sandboxes import load_backend


def check_machine(
    folder: Path | None,
    *,
    what: str = "the run folder",
    fix: str = "choose another folder: --output",
    backend: str = "",
    policy: str = "",
    executor: str = "threads",
) -> None:
    """Check that the extras of a run are installed, and that results have a place.

    Args:
        folder: Folder of the results; None if nothing is written.
        what: What the folder is, for messages.
        fix: What to do if it cannot be used, for messages.
        backend: Backend of the sandboxes; empty if it is not known yet.
        policy: Policy; empty if there is none.
        executor: Where episodes run.

    Raises:
        UsageError: A name is unknown, or a folder cannot be written to or has no room.
        MissingDependency: An extra is not installed.
    """
    EXECUTORS.load(executor)
    if policy:
        POLICIES.load(policy)
    if backend:
        load_backend(backend)
    if folder is not None:
        check_room(folder, what, fix)
