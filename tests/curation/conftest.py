"""A small task that is valid."""

from pathlib import Path

import pytest

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
