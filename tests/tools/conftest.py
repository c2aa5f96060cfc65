"""Fixtures of the tests of tools."""

from collections.abc import Callable

import pytest

from swe_gym.sandboxes import Sandbox
from swe_gym.tools import ToolContext


@pytest.fixture
def context_for(sandbox_factory: Callable[..., Sandbox]) -> Callable[..., ToolContext]:
    """Return a function that makes a tool context in a real sandbox with `files` (path -> text or bytes)."""

    def make(files: dict[str, str | bytes] | None = None, **fields: object) -> ToolContext:
        return ToolContext(sandbox_factory(files), **fields)

    return make
