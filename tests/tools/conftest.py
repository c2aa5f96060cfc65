"""What the tests of tools share."""

from collections.abc import Callable

import pytest

from swe_gym.sandboxes import Sandbox
from swe_gym.tools import ToolContext


@pytest.fixture
def context_for(sandbox_factory: Callable[..., Sandbox]) -> Callable[..., ToolContext]:
    """Makes the context of tools in a real sandbox over `files` (path -> text or bytes)."""

    def make(files: dict[str, str | bytes] | None = None, **fields: object) -> ToolContext:
        return ToolContext(sandbox_factory(files), **fields)

    return make
