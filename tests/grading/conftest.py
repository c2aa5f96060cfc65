"""Two small tasks: a unittest one with its sources in src/, a pytest one whose run collects everything."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_gym.grading.diff import file_diff
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FolderWorkspace, Oracle, Task

OpenBox = Callable[[Task], Sandbox]

PRICES = """\
def total(prices):
    return sum(prices[1:])


def cheapest(prices):
    return min(prices)
"""
SHOP = {
    "src/shop/__init__.py": '"""A shop."""\n',
    "src/shop/prices.py": PRICES,
    "tests/__init__.py": "",
    "tests/test_shop.py": "import unittest\n\nimport shop\n\n\nclass TestShop(unittest.TestCase):\n"
    "    def test_import(self):\n        self.assertTrue(shop.__doc__)\n",
}
SHOP_TEST = """\
import json
import unittest

from shop import prices


class TestTotal(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(json.dumps(prices.total([1, 2])), "3")

    def test_parts(self):
        for values, total in (([1], 1), ([1, 2], 3)):
            with self.subTest(values=values):
                self.assertIs(type(prices.total(values)), int)
                self.assertEqual(prices.total(values), total)


class TestCheapest(unittest.TestCase):
    def test_cheapest(self):
        self.assertEqual(repr(prices.cheapest([2, 1])), "1")
"""

CASES = """\
def title(text):
    return text.upper()


def lower(text):
    return text.lower()
"""
VISIBLE_TEST = """\
from words import cases


def test_lower(text):
    assert cases.lower('AB') == 'ab'
"""
HIDDEN_TEST = """\
import pytest

from words import cases


def test_title(text):
    assert repr(cases.title(text)) == "'Ab Cd'"


@pytest.mark.parametrize("given", ["a b", "[x]", "\\u00e9 \\n::"])
def test_titles(given):
    assert type(cases.title(given)) is str
    assert str.__eq__(cases.title(given), given.title()) is True


def test_lower(text):
    assert repr(cases.lower('AB')) == "'ab'"
"""
WORDS = {
    "pyproject.toml": '[project]\nname = "words"\n\n[tool.pytest.ini_options]\naddopts = "-p no:cacheprovider"\n'
    'markers = ["slow"]\n',
    "setup.cfg": "[metadata]\nname = words\n",
    "words/__init__.py": "from words.cases import title\n",
    "words/cases.py": CASES,
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef text():\n    return 'ab cd'\n",
    "tests/test_cases.py": VISIBLE_TEST,
}


def diff(path: str, old: str, new: str) -> str:
    return file_diff(path, old.encode(), new.encode(), 0o100644, 0o100644)


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def shop_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return Task(
        task_id="shop",
        problem_statement="total leaves out the first price",
        workspace=FolderWorkspace(path=str(write_files(tmp_path_factory.mktemp("shop"), SHOP))),
        env={"PYTHONPATH": "{workdir}/src"},
        oracle=Oracle(
            gold_patch=diff("src/shop/prices.py", PRICES, PRICES.replace("[1:]", "")),
            test_files={"tests/test_prices.py": SHOP_TEST},
            test_cmd="python -m unittest discover -s tests",
            fail_to_pass=("test_prices.TestTotal.test_sum", "test_prices.TestTotal.test_parts"),
            pass_to_pass=("test_prices.TestCheapest.test_cheapest",),
            timeout=60,
        ),
    )


@pytest.fixture(scope="session")
def words_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return Task(
        task_id="words",
        problem_statement="title makes capitals of everything",
        workspace=FolderWorkspace(path=str(write_files(tmp_path_factory.mktemp("words"), WORDS))),
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the environment is ours, and its plugins are slow to load
        oracle=Oracle(
            gold_patch=diff("words/cases.py", CASES, CASES.replace("upper", "title")),
            test_patch=diff("tests/test_cases.py", VISIBLE_TEST, HIDDEN_TEST),
            test_paths=("tests/*",),
            test_cmd="python -m pytest",
            fail_to_pass=("tests/test_cases.py::test_title", "tests/test_cases.py::test_titles[a b]"),
            pass_to_pass=("tests/test_cases.py::test_lower",),
            timeout=60,
        ),
    )


@pytest.fixture(scope="session")
def tasks(shop_task: Task, words_task: Task) -> dict[str, Task]:
    return {"shop": shop_task, "words": words_task}


@pytest.fixture(scope="session")
def open_box() -> OpenBox:
    """Opens a local sandbox of a task, with the Python that runs these tests."""

    def open_task(task: Task) -> Sandbox:
        spec = SandboxSpec(workspace=task.workspace, env=task.env, options={"python_prefix": sys.prefix})
        return open_sandbox(spec)

    return open_task
