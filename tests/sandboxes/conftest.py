"""Engines that a machine may lack."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from swe_gym.cache import cache_folder
from swe_gym.errors import SweGymError
from swe_gym.sandboxes.images import ImageStore
from swe_gym.sandboxes.images.sources import ImageName, engine_source

if TYPE_CHECKING:
    import docker


@pytest.fixture(scope="session")
def kubernetes_problem() -> str:
    """Why no real cluster can be used on this machine; empty where one can."""
    missing = [name for name in ("KUBECONFIG", "SWE_GYM_TEST_IMAGE") if not os.environ.get(name)]
    if missing:
        return f"no cluster to test on: set {' and '.join(missing)}"
    try:
        from swe_gym.sandboxes.kubernetes import KubernetesSandbox
    except ImportError as error:
        return str(error)
    return "; ".join(finding.detail for finding in KubernetesSandbox.diagnose({}) if not finding.works)


@pytest.fixture(scope="session")
def kubernetes(kubernetes_problem: str) -> None:
    """Skips the test without a cluster; `SWE_GYM_REQUIRE=kubernetes` makes that a failure of another test."""
    if kubernetes_problem:
        pytest.skip(kubernetes_problem)


@pytest.fixture(scope="session")
def docker_problem() -> str:
    """Why no Docker engine can be used on this machine; empty where one can."""
    if not (image := os.environ.get("SWE_GYM_TEST_IMAGE")):
        return "no image to test Docker with: set SWE_GYM_TEST_IMAGE to one with Python, git and bash"
    try:
        from swe_gym.sandboxes.docker.engine import connect
        from swe_gym.sandboxes.docker.images import find_image

        engine = connect(None, timeout=30)
        try:
            return "" if find_image(engine, image) else f"the Docker engine has no image {image!r}"
        finally:
            engine.close()
    except (ImportError, SweGymError) as error:
        return str(error)


@pytest.fixture(scope="session")
def docker_image(docker_problem: str) -> str:
    """The image to test with. Skips without an engine; `SWE_GYM_REQUIRE=docker` makes that another test's failure."""
    if docker_problem:
        pytest.skip(docker_problem)
    return os.environ["SWE_GYM_TEST_IMAGE"]


@pytest.fixture
def engine(docker_image: str) -> "Iterator[docker.APIClient]":
    """A client of the engine that has `docker_image`."""
    import docker

    assert docker_image
    with closing(docker.APIClient(version="auto")) as client:
        yield client


@pytest.fixture(scope="session")
def import_image() -> Callable[[str], str]:
    """Copies an image of the engine into the store of local sandboxes, once for all processes of a test run."""

    def copy(image: str) -> str:
        store = ImageStore()
        cache_folder().mkdir(parents=True, exist_ok=True)
        with (cache_folder() / "import-image.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if store.find(image) is None:
                with engine_source(image, cache_folder()) as source:
                    store.add(ImageName.parse(image), source, deadline=time.monotonic() + 600)
        return image

    return copy


@pytest.fixture(scope="session")
def stored_image(docker_image: str, import_image: Callable[[str], str]) -> str:
    """The engine's test image in the store of local sandboxes."""
    return import_image(docker_image)
