"""Sandboxes, in which code runs: the table of backends, and one function that opens any of them."""

from collections.abc import Callable

from pydantic import ValidationError

from ..errors import UsageError, unknown_name, wrong_fields
from ..registry import Registry
from ..types import JsonObject
from .base import Pty, Sandbox, SandboxSpec
from .forward import Connection, Forward

__all__ = ["BACKENDS", "Connection", "Forward", "Pty", "Sandbox", "SandboxSpec", "make_spec", "open_sandbox"]

BACKENDS = Registry[Callable[[SandboxSpec], Sandbox]](
    "backend",
    {
        "local": "swe_gym.sandboxes.local:make_sandbox",
        "fake": "swe_gym.sandboxes.fake:FakeSandbox",
        "docker": "swe_gym.sandboxes.docker:DockerSandbox",
        "kubernetes": "swe_gym.sandboxes.kubernetes:KubernetesSandbox",
        "e2b": "swe_gym.sandboxes.e2b:E2BSandbox",
        "ags": "swe_gym.sandboxes.e2b:AGSSandbox",
    },
    extras={"docker": "docker", "kubernetes": "kubernetes", "e2b": "e2b", "ags": "ags"},
    group="swe_gym.backends",
)


def open_sandbox(spec: SandboxSpec, backend: str = "local") -> Sandbox:
    """Start a sandbox. The caller closes it.

    Args:
        spec: Description of the sandbox.
        backend: Name in `BACKENDS`, dotted path "module:Class", or name of an entry point.

    Raises:
        UsageError: The backend or one of its options is unknown.
        SandboxStartError: The sandbox did not start.
    """
    return BACKENDS.load(backend)(spec).start()


def make_spec(base: SandboxSpec, options: JsonObject) -> SandboxSpec:
    """Return `base` with a user's `sandbox_options`: fields of the spec, with the backend's own under "options".

    Raises:
        UsageError: A name is not a field of `SandboxSpec` (the message lists them), or a value is invalid.
    """
    for name in options:
        if name not in SandboxSpec.model_fields:
            unknown = unknown_name("sandbox option", name, SandboxSpec.model_fields)
            raise UsageError(f"{unknown} Options of a backend belong under `options`.")
    try:
        return SandboxSpec.model_validate({**base.model_dump(), **options})
    except ValidationError as error:
        raise UsageError(f"sandbox options: {wrong_fields(error)}") from error
