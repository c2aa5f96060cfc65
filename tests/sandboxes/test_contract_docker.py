"""The contract on a real engine, with the image that SWE_GYM_TEST_IMAGE names."""

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case

DEVIATIONS = {
    "disk_limit_of_many_files": "the engine's storage driver caps no disk here; the size of each file is limited",
}


@sandbox_contract.parametrize(DEVIATIONS)
def test_docker(case: Case, docker_image: str) -> None:
    def make(**fields: object) -> Sandbox:
        spec = SandboxSpec.model_validate({"image": docker_image, **fields})
        return open_sandbox(spec, "swe_gym.sandboxes.docker:DockerSandbox")

    case.run(make)
