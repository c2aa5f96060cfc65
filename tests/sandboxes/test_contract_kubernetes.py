"""The contract on the real cluster of KUBECONFIG, with the image SWE_GYM_TEST_IMAGE on its nodes."""

import os

import pytest
from contract_parts import OF_THE_RUNNER, OF_THE_WALLS, OF_THE_WAY, parametrize_contract

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing.sandbox_contract import Case

NO_PROCESS_LIMIT = "pods have no process limit; the node's podPidsLimit may be absent"
KERNEL_FILES = "the API masks no path in /proc"
DEVIATIONS = {
    "modes_of_kernel_files_are_not_shared": KERNEL_FILES,
    "counters_of_the_kernel_are_closed": KERNEL_FILES,
    "tables_of_the_kernel_are_closed": KERNEL_FILES,
    "own_loopback_ipv6": "a cluster without IPv6 gives none to its pods",
    "process_limit": NO_PROCESS_LIMIT,
    "process_limits_are_apart": NO_PROCESS_LIMIT,
    "fork_bomb": NO_PROCESS_LIMIT,
    "disk_limit_of_many_files": "the node evicts a pod that exceeds its limit, up to two minutes later",
}


def test_the_required_cluster_works(kubernetes_problem: str) -> None:
    assert "kubernetes" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") or kubernetes_problem == ""


def make(**fields: object) -> Sandbox:
    spec = SandboxSpec.model_validate(fields)
    options = {"default_image": os.environ["SWE_GYM_TEST_IMAGE"], "image_pull_policy": "Never", **spec.options}
    return open_sandbox(spec.model_copy(update={"options": options}), "kubernetes")


OF_MANY_PODS = ("closing_at_any_moment", "modes_of_kernel_files_are_not_shared")
"""Cases that start a dozen pods for what one channel or one deviation of the API shows on other backends too."""


@pytest.mark.usefixtures("kubernetes")
@pytest.mark.sample(every=3)
@parametrize_contract(*OF_THE_WAY, *OF_THE_WALLS, thorough=(*OF_THE_RUNNER, *OF_MANY_PODS), deviations=DEVIATIONS)
def test_contract(case: Case) -> None:
    case.run(make)
