"""Checks of this machine that all commands share which run episodes: extras, and where they write."""

import os
import shutil
from pathlib import Path

from ..cache import cache_folder
from ..errors import UsageError
from ..rollout.executors import EXECUTORS
from ..rollout.policies import POLICIES
from ..sandboxes import BACKENDS

FREE_MB = 100
"""MiB that must be free for results and sandboxes."""


def check_machine(
    folder: Path | None,
    *,
    what: str = "the run folder",
    fix: str = "choose another folder: --output",
    backend: str = "",
    policy: str = "",
    executor: str = "threads",
) -> None:
    """Check that the extras of a run are installed, and that results and sandboxes have a place.

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
        BACKENDS.load(backend)
    if folder is not None:
        check_room(folder, what, fix)
    if backend == "local":
        check_room(cache_folder(), "the cache", "set SWE_GYM_CACHE to a writable folder with more space")


def check_room(folder: Path, what: str, fix: str) -> None:
    """Check that a folder can be written to, and that its disk has some room.

    Raises:
        UsageError: It cannot, or has not.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"{what} cannot be written: {there} is not a folder. Fix: {fix}")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{what} cannot be written: {there} is read-only. Fix: {fix}")
    if (free := shutil.disk_usage(there).free >> 20) < FREE_MB:
        raise UsageError(f"{what} has no room: {free} MiB are free in {there}, less than {FREE_MB}. Fix: {fix}")
