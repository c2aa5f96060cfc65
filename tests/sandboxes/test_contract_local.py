import pytest

from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import Case


def make_namespace(**fields: object) -> Sandbox:
    return make("namespace", fields)


def make(tier: str, fields: dict[str, object]) -> Sandbox:
    options = {"tier": tier, **fields.pop("options", {})}  # type: ignore[dict-item]
    return open_sandbox(SandboxSpec.model_validate({**fields, "options": options}), "local")


@sandbox_contract.parametrize()
def test_namespace(case: Case) -> None:
    case.run(make_namespace)
