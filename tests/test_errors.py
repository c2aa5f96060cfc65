"""Errors can be copied and pickled."""

import copy
import pickle
from collections.abc import Callable

import pytest

from swe_gym import errors
from swe_gym.errors import PolicyError, SandboxLost, SandboxStartError, SweGymError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SweGymError)]
TOLD = [
    SandboxLost("gone", reason="oom", retryable=False, detail="the end of a log"),
    SandboxStartError("no image", reason="image", detail="pull access denied"),
    PolicyError("too many requests", reason="rate_limit", retryable=True),
]


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
@pytest.mark.parametrize("error", [*(kind("text") for kind in KINDS), *TOLD], ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_a_copy(error: SweGymError, again: Callable[[SweGymError], SweGymError]) -> None:
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
