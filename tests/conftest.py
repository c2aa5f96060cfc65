"""Fixtures that most tests use."""

import collections
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from swe_gym.errors import SweGymError
from swe_gym.index import find_sdists
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.types import FolderWorkspace, Oracle, Task

GOLD = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""

HIDDEN = """import unittest
from calc import add


class AddTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_nothing(self):
        self.assertEqual(add(2, 0), 2)
"""

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore both, and so would clients
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Set how many examples a test has that sets no number of its own: a run without slow tests has few."""
    usual = "25" if "not slow" in config.option.markexpr else "100"
    examples = int(os.environ.get("SWE_GYM_EXAMPLES", usual))
    hypothesis.settings.register_profile("untimed", deadline=None, max_examples=examples)  # no test measures time
    hypothesis.settings.load_profile("untimed")


def pytest_xdist_auto_num_workers() -> int:
    """Run two processes per core: most tests wait for sandboxes."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: a fifth of the time would go there, and all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what `sample` leaves out: of N cases of a test, the first of each `every` stay; with `-k`, all."""
    seen: collections.Counter[tuple[Path, str]] = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("sample")
        left_out = any(item.get_closest_marker(name) for name in ("slow", "thorough"))
        if mark and not config.option.keyword and isinstance(item, pytest.Function) and not left_out:
            place = item.path, item.originalname
            if seen[place] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            seen[place] += 1


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of every later collection of garbage."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests build their caches in a folder of their own, never in the user's; all processes of a run share it."""
    patch = pytest.MonkeyPatch()
    if "SWE_GYM_TEST_CACHE" not in os.environ:
        own = tmp_path_factory.getbasetemp()
        patch.setenv("SWE_GYM_CACHE", str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def index_problem() -> str:
    """Why the package index cannot be used on this machine; empty where it can."""
    try:
        find_sdists("pathspec", timeout=60)
    except SweGymError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def _network_or_skip(request: pytest.FixtureRequest) -> None:
    """Tests marked `network` are skipped without it; see `test_machine.py` for runs that may not skip them."""
    if request.node.get_closest_marker("network") and (problem := request.getfixturevalue("index_problem")):
        pytest.skip(problem)


@pytest.fixture
def sandbox_factory(tmp_path: Path) -> Iterator[Callable[..., Sandbox]]:
    """Opens local sandboxes over a folder of `files` (path -> text or bytes); closes them after the test."""
    opened: list[Sandbox] = []

    def make(files: dict[str, str | bytes] | None = None, backend: str = "local", **fields: object) -> Sandbox:
        folder = tmp_path / f"workspace{len(opened)}"
        folder.mkdir()
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        spec = SandboxSpec.model_validate({"workspace": FolderWorkspace(path=str(folder)), **fields})
        opened.append(open_sandbox(spec, backend))
        return opened[-1]

    yield make
    for sandbox in opened:
        sandbox.close()


@pytest.fixture
def adder(tmp_path: Path) -> Task:
    """A valid task."""
    folder = tmp_path / "adder"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    oracle = Oracle(
        gold_patch=GOLD,
        test_files={"tests/test_add.py": HIDDEN, "tests/__init__.py": ""},
        test_paths=("tests/*",),
        test_cmd="python -m unittest tests.test_add",
        fail_to_pass=("tests.test_add.AddTest.test_add",),
        pass_to_pass=("tests.test_add.AddTest.test_nothing",),
    )
    return Task(
        task_id="adder", problem_statement="Sums are wrong.", workspace=FolderWorkspace(path=str(folder)), oracle=oracle
    )
