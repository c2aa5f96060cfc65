"""The contract in local sandboxes from a real image, which a Docker engine hands over."""

import fcntl
import time

import pytest

from swe_gym.cache import cache_folder
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.images import ImageStore
from swe_gym.sandboxes.images.names import ImageName
from swe_gym.sandboxes.images.sources import engine_source
from swe_gym.sandboxes.local import problem
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case


@pytest.fixture(scope="session")
def stored_image(docker_image: str) -> str:
    """The engine's test image, in the store that all processes of a test run share."""
    store = ImageStore()
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "test-image.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if store.find(docker_image) is None:
            with engine_source(docker_image, cache_folder()) as source:
                store.add(ImageName.parse(docker_image), source, deadline=time.monotonic() + 600)
    return docker_image


@sandbox_contract.parametrize()
def test_image(case: Case, stored_image: str) -> None:
    if problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {problem('namespace')}")

    def make(**fields: object) -> Sandbox:
        return open_sandbox(SandboxSpec.model_validate({"image": stored_image, **fields}), "local")

    case.run(make)
