"""Sandboxes, in which code runs: the table of backends, and one function that opens any of them.

    from swe_gym.sandboxes import SandboxSpec, open_sandbox

    with open_sandbox(SandboxSpec()) as sandbox:
        print(sandbox.exec("python --version").text)

This package knows nothing of tasks, tools, grading and environments.
"""

from typing import TYPE_CHECKING

from ..errors import UsageError
from ..registry import Registry
from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .base import Pty as Pty
    from .base import Sandbox as Sandbox
    from .container import default_image as default_image
    from .container import start_command as start_command
    from .container import write_tar as write_tar
    from .gates import gate as gate
    from .pool import WarmPool as WarmPool
    from .pool import WarmSandbox as WarmSandbox
    from .types import ISOLATION_LEVELS as ISOLATION_LEVELS
    from .types import Connection as Connection
    from .types import Finding as Finding
    from .types import Forward as Forward
    from .types import SandboxSpec as SandboxSpec
    from .types import Snapshot as Snapshot
    from .types import make_spec as make_spec
    from .types import parse_options as parse_options
    from .user_sandbox import as_user as as_user
    from .user_sandbox import find_identity as find_identity

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


BACKENDS = Registry["type[Sandbox]"](
    "backend",
    {
        "local": "swe_gym.sandboxes.local:LocalSandbox",
        "docker": "swe_gym.sandboxes.docker:DockerSandbox [docker]",
        "kubernetes": "swe_gym.sandboxes.kubernetes:KubernetesSandbox [kubernetes]",
        "e2b": "swe_gym.sandboxes.e2b:E2BSandbox [e2b]",
        "ags": "swe_gym.sandboxes.e2b:AGSSandbox [ags]",
        "fake": "swe_gym.sandboxes.fake:FakeSandbox",
    },
    group="swe_gym.backends",
)


def load_backend(name: str) -> "type[Sandbox]":
    """Return the class of a backend, whose class methods tell what it can do and what works.

    Args:
        name: Name in `BACKENDS`, dotted path "module:Class", or name of an entry point.

    Raises:
        UsageError: The backend is unknown, or not a subclass of `Sandbox`.
        MissingDependency: It needs an extra that is not installed.
    """
    from .base import Sandbox

    found: object = BACKENDS.load(name)
    if not (isinstance(found, type) and issubclass(found, Sandbox)):
        raise UsageError(f"backend {name!r} is not a subclass of swe_gym.sandboxes.Sandbox: {found!r}")
    return found


def open_sandbox(spec: "SandboxSpec", backend: str = "local") -> "Sandbox":
    """Start a sandbox. The caller closes it.

    Args:
        spec: Description of the sandbox.
        backend: Name in `BACKENDS`, dotted path "module:Class", or name of an entry point.

    Raises:
        UsageError: The backend or one of its options is unknown.
        SandboxStartError: The sandbox did not start.
    """
    return load_backend(backend).for_spec(spec).start()


def default_backend(*, images: bool) -> str:
    """Return the backend for tasks whose user names none: "docker" if they need images, else "local"."""
    return "docker" if images else "local"
