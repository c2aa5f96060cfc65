"""The contract on a real cluster: the one of KUBECONFIG, with the image of SWE_GYM_TEST_IMAGE on its nodes."""

import os

import pytest

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case

NO_LIMIT_OF_PROCESSES = "a pod has no limit of processes: the node's podPidsLimit is the limit, and may be absent"
DEVIATIONS = {
    "process_limit": NO_LIMIT_OF_PROCESSES,
    "process_limits_are_apart": NO_LIMIT_OF_PROCESSES,
    "fork_bomb": NO_LIMIT_OF_PROCESSES,
    "disk_limit_of_many_files": "the node evicts a pod that has taken too much, up to two minutes later",
}


def test_the_cluster_that_is_required_can_be_used(kubernetes_problem: str) -> None:
    assert "kubernetes" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") or kubernetes_problem == ""


def make(**fields: object) -> Sandbox:
    spec = SandboxSpec.model_validate(fields)
    options = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "Never", **spec.options}
    return open_sandbox(spec.model_copy(update={"options": options}), "kubernetes")


@pytest.mark.usefixtures("kubernetes")
@sandbox_contract.parametrize(DEVIATIONS)
def test_contract(case: Case) -> None:
    case.run(make, slack=10.0)
