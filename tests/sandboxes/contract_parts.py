"""Which cases of the contract each backend meets at each run of the tests; the others are for a thorough run."""

from collections.abc import Collection, Mapping

import pytest

from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import EXERCISED

OPERATIONS = tuple({case.name for case in EXERCISED.values()})
"""Cases that together use each operation of the runner. Every backend has its own way to carry them."""

OF_THE_WAY = ("life", "backend", "output", "threads", "large_environment", "long_shell_line")
"""Cases that depend on how requests reach the runner, and how sandboxes open and close."""

OF_THE_WALLS = ("isolation", "channels", "limits", "hostile", "network", "workspace")
"""Cases that depend on what encloses the sandbox."""

OF_THE_FILES = ("files", "trees", "places_to_work_in", "absolute_temporary_paths", "shared_memory", "git_works")
"""Cases that depend on the root file system and on who works in it."""


OF_THE_RUNNER = ("deadlines", "terminals")
"""Cases whose hostile commands the runner alone keeps from what they try, wherever it has processes of its own."""


def parametrize_contract(
    *always: str,
    thorough: Collection[str] = (),
    deviations: Mapping[str, str] | None = None,
    only: Collection[str] = (),
    exclude: Collection[str] = (),
) -> pytest.MarkDecorator:
    """As `sandbox_contract.parametrize`; what is not in `always`, the same runner promises on any backend.

    Cases in `thorough` are not among `always`. Those of `OPERATIONS` always are.
    """
    chosen = {case.name for case in sandbox_contract.cases(always, thorough)}.union(OPERATIONS)
    mark = sandbox_contract.parametrize(deviations, only=only, exclude=exclude)
    names, params = mark.args
    rest = [
        param
        if param.id in chosen
        else pytest.param(*param.values, id=param.id, marks=[*param.marks, pytest.mark.thorough])
        for param in params
    ]
    return pytest.mark.parametrize(names, rest)
