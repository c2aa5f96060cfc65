"""A real browser, where there is one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import chromium
import pytest
from viewer_parts import TIMEOUT, Pages

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def tab() -> Iterator["Page"]:
    """The tab that the tests of a module share, because a new one costs the browser more than most tests do."""
    if problem := chromium.problem():
        pytest.skip(problem)
    with chromium.browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT)
        yield page


@pytest.fixture
def pages(tab: "Page") -> Iterator[Pages]:
    pages = Pages(tab)
    yield pages
    pages.close()
