"""The contract in local sandboxes from a real image, which a Docker engine hands over."""

import pytest

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.sandboxes.local import problem
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case


@sandbox_contract.parametrize()
def test_image(case: Case, stored_image: str) -> None:
    if problem("namespace"):
        pytest.skip(f"no tier namespace on this machine: {problem('namespace')}")

    def make(**fields: object) -> Sandbox:
        return open_sandbox(SandboxSpec.model_validate({"image": stored_image, **fields}), "local")

    case.run(make)
