"""The contract on a real engine, with the image SWE_GYM_TEST_IMAGE and with a copy of it without Python."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from contract_parts import OF_THE_FILES, parametrize_contract

from swe_gym.sandboxes import Sandbox, SandboxSpec, as_user, open_sandbox
from swe_gym.sandboxes.contents.pythons import PORTABLE_FOLDER
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case
from swe_gym.testing.sandbox_contract.case import eventually

DEVIATIONS = {
    "disk_limit_of_many_files": "the engine's storage driver limits only the size of each file",
    "mounts_are_not_shared": "the folder is one volume for all policies' sandboxes; those that grade have none",
}

WITH_RUNNERS_PYTHON = {"PATH": f"{PORTABLE_FOLDER}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""Cases need Python, so only here commands may find the runner's copied Python."""

MORE_PYTHON = ["shared_memory", "own_loopback", "servers_live_until_close"]
"""Cases that need modules that the copied Python lacks."""

COSTLY = ["slow", "threads", "hostile", "thousands_of_files"]
"""Cases that do not depend on the image."""


@sandbox_contract.parametrize(DEVIATIONS)
def test_docker(case: Case, docker_image: str) -> None:
    def make(**fields: object) -> Sandbox:
        spec = SandboxSpec.model_validate({"image": docker_image, **fields})
        return open_sandbox(spec, "docker")

    case.run(make)


TOPICS = ["commands", "files", "trees", "terminals", "output"]
OF_A_USER = {"places_to_work_in": "the user nobody has no home folder"}


@pytest.mark.slow
@parametrize_contract(*OF_THE_FILES, deviations=OF_A_USER, only=TOPICS, exclude=COSTLY)
def test_a_sandbox_as_a_user_sees_it(case: Case, docker_image: str) -> None:
    def make(**fields: object) -> Sandbox:
        sandbox = open_sandbox(SandboxSpec.model_validate({"image": docker_image, **fields}), "docker")
        assert sandbox.exec("chown -hR nobody .").ok
        return as_user(sandbox, "nobody")

    case.run(make)


@pytest.fixture(scope="module")
def image_without_python(docker_image: str) -> Iterator[str]:
    import docker

    name = f"swe-gym/test-{os.getpid()}"
    with closing(docker.APIClient(version="auto")) as engine:
        command = "rm -rf /usr/bin/python* /usr/local/bin/python* /usr/lib/python3*"
        container = engine.create_container(docker_image, ["sh", "-c", command], network_disabled=True)["Id"]
        engine.start(container)
        assert engine.wait(container, timeout=60)["StatusCode"] == 0
        engine.commit(container, name, "without-python")
        engine.remove_container(container)
        yield f"{name}:without-python"
        users = {"ancestor": f"{name}:without-python"}
        eventually(lambda: not engine.containers(all=True, filters=users), 60, "nothing uses the image")
        engine.remove_image(f"{name}:without-python")


@pytest.mark.sample(every=3)
@parametrize_contract(*OF_THE_FILES, only=["commands", "files", "trees"], exclude=[*MORE_PYTHON, *COSTLY])
def test_an_image_without_python(case: Case, image_without_python: str) -> None:
    def make(**fields: object) -> Sandbox:
        env = {**WITH_RUNNERS_PYTHON, **dict(fields.pop("env", {}))}  # type: ignore[call-overload]  # a dictionary in all cases
        spec = SandboxSpec.model_validate({"image": image_without_python, "env": env, **fields})
        return open_sandbox(spec, "docker")

    case.run(make)
