"""Write a task: a folder with a bug, hidden tests and a gold patch, in a file that SWE/Tasks-v0 reads."""

import argparse
import tempfile
from pathlib import Path

import gymnasium

from swe_gym import GoldPolicy, Oracle, Task, play
from swe_gym.tasks.file import write_tasks
from swe_gym.types import FolderWorkspace

CODE = "def mean(values):\n    return sum(values) / len(values)\n"
HIDDEN_TEST = """\
import unittest
from stats import mean

class TestMean(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(repr(mean([1, 2, 3])), "2.0")

    def test_empty(self):
        self.assertIsNone(mean([]))
"""
GOLD = """\
--- a/stats.py
+++ b/stats.py
@@ -1,2 +1,4 @@
 def mean(values):
+    if not values:
+        return None
     return sum(values) / len(values)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "stats")
        repository.mkdir()
        (repository / "stats.py").write_text(CODE)
        task = Task(
            task_id="mean-of-nothing",
            problem_statement="`mean([])` raises ZeroDivisionError. It should return None.",
            workspace=FolderWorkspace(path=str(repository)),
            oracle=Oracle(
                gold_patch=GOLD,
                test_files={"tests/__init__.py": "", "tests/test_stats.py": HIDDEN_TEST},
                test_paths=("tests/*",),
                test_cmd="python -m unittest discover -s tests -t .",
                fail_to_pass=("tests.test_stats.TestMean.test_empty",),
                pass_to_pass=("tests.test_stats.TestMean.test_mean",),
            ),
        )
        path = Path(folder, "tasks.jsonl")
        write_tasks([task], path)
        with gymnasium.make("SWE/Tasks-v0", path=str(path)) as env:
            trajectory = play(env, GoldPolicy(env))
        print(trajectory.task_id, trajectory.outcome, trajectory.reward)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
