"""How rollouts and vector environments use a Ray cluster: they connect, set up processes on nodes and see failures."""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import ray

from .errors import UsageError

CALL_TIMEOUT = 10.0
"""Seconds of a call that only Ray answers."""

MOST_SAID = 500
"""Characters of an error of Ray that are kept."""

VARIABLES = ("OPENAI_", "E2B_", "TENCENTCLOUD_", "HF_TOKEN")
"""Prefixes of environment variables that nodes get from the driver, unless they have their own."""


class Setup(NamedTuple):
    """What a process on a node takes over from the driver.

    Attributes:
        version: Version of swe_gym.
        folder: Working folder. Relative paths mean the same on a node if it has this folder.
        path: Search path of modules. A node uses those of its folders that it has, after its own.
        variables: Environment variables. They may hold keys.
    """

    version: str
    folder: str
    path: list[str]
    variables: dict[str, str]

    @classmethod
    def of_this_process(cls) -> "Setup":
        """Return the setup of the driver."""
        variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        return cls(version("swe-gym"), os.getcwd(), sys.path, variables)

    def apply(self) -> None:
        """Set up this process.

        Raises:
            UsageError: Another version of swe_gym is installed here.
        """
        if self.version != (here := version("swe-gym")):
            raise UsageError(f"a node has swe_gym {here}, but the driver has {self.version}: install the same version")
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [entry for entry in self.path if entry not in sys.path and Path(entry).is_dir()]
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)


def connect(address: str = "") -> bool:
    """Connect this program to a Ray cluster. Returns False if it was connected before.

    Args:
        address: Address of the cluster. If empty, RAY_ADDRESS, else the cluster on this machine; if there is none, Ray
            starts one.

    Raises:
        UsageError: The cluster cannot be reached.
    """
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS", "")
    try:
        _check_reachable(address)
        dashboard = None if address else False
        ray.init(address or None, include_dashboard=dashboard, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise UsageError(f"cannot connect to the Ray cluster {address or 'on this machine'}: {error}") from error
    return True


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nobody answers at "host:port": Ray tries for minutes, and no signal but SIGKILL ends it."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and not address.startswith("ray://"):
        socket.create_connection((host.strip("[]"), int(port)), CALL_TIMEOUT).close()


@contextlib.contextmanager
def losses(lost: Callable[[str, str], Exception]) -> Iterator[None]:
    """Raise `lost(message, kind)` for every failure of Ray. Errors of an actor's own code are raised as they are."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
        raise lost(" ".join(str(error).split())[:MOST_SAID], type(error).__name__) from error
