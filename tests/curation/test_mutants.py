"""Tasks by mutation: the bugs, what they show, and whole tasks of a small repository."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.mutants import MutantOptions, Project, make_tasks, open_commit
from swe_gym.curation.mutation import KINDS, draw_mutations, find_mutations, mutate
from swe_gym.curation.new_task import BuildOptions
from swe_gym.errors import TaskError, UsageError
from swe_gym.grading.diff import touched_files
from swe_gym.guests import bundle
from swe_gym.tasks.file import FileSource, write_tasks

# --- mutations ------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "comparison": ("if a < b: pass", "if a <= b: pass"),
    "arithmetic": ("return (a  +  b)  # sum", "return (a  -  b)  # sum"),
    "connective": ("return a and b", "return a or b"),
    "condition": ("if not a.b(): return 1", "if a.b(): return 1"),
    "number": ("return a[7:]", "return a[8:]"),
    "truth": ("return f(a, b=True)", "return f(a, b=False)"),
    "bound": ("return a[:b]", "return a[:b + 1]"),
    "result": ("return a if b else None", "return a"),
    "jump": ("for c in a:\n        break", "for c in a:\n        continue"),
    "effect": ("a.b = 1\n    return a", "return a"),
    "arguments": ("return f(a, b)", "return f(b, a)"),
    "keyword": ("return f(a, key=b)", "return f(a)"),
    "missing-branch": ("if a:\n        return b\n    return a", "return a"),
    "missing-function": ('"""Do."""\n    c = 1\n    return c', '"""Do."""\n    raise NotImplementedError'),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_mutation_changes_its_own_characters_only(kind: str) -> None:
    before, after = (f"# caf\u00e9\ndef f(a, b):\n    {body}\n" for body in EXAMPLES[kind])
    made = [
        mutate(before.encode(), one).decode() for one in find_mutations({"m.py": before.encode()}) if one.kind == kind
    ]
    assert after in made


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("await", "async def f(a):\n    return await a\n", "async def f(a):\n    return a\n"),
        ("default", "def f(a=True):\n    return a\n", "def f(a=False):\n    return a\n"),
        ("missing-parameter", "def f(a, *, b=1):\n    return a, b, b\n", "def f(a, *, b=1):\n    return a, 1, 1\n"),
    ],
)
def test_a_mutation_of_a_signature(kind: str, before: str, after: str) -> None:
    made = [
        mutate(before.encode(), one).decode() for one in find_mutations({"m.py": before.encode()}) if one.kind == kind
    ]
    assert made == [after]


def test_every_kind_has_an_example() -> None:
    assert {*EXAMPLES, "await", "default", "missing-parameter"} == {*KINDS}


def test_real_code_stays_python_and_layout_stays() -> None:
    files = {path.name: path.read_bytes() for path in Path(json.__file__).parent.glob("*.py")}
    found = find_mutations(files)
    assert len(found) > 300
    for mutation in [*draw_mutations(found, seed=3)][::9]:
        before, after = files[mutation.path], mutate(files[mutation.path], mutation)
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
        kept = min(edit.start for edit in mutation.edits), len(before) - max(edit.end for edit in mutation.edits)
        assert (before[: kept[0]], before[len(before) - kept[1] :]) == (after[: kept[0]], after[len(after) - kept[1] :])


def test_equal_seeds_draw_equal_mutations_of_all_kinds_in_turn() -> None:
    files = {"a.py": b"def f(a, b=1):\n    if a < b:\n        return a + b\n    return a and b\n"}
    found = find_mutations(files)
    first, again, other = ([*draw_mutations(found, seed)] for seed in (1, 1, 2))
    assert first == again != other
    kinds = [mutation.kind.partition("+")[0] for mutation in first]
    assert len({*kinds[: len({*kinds})]}) == len({*kinds})


# --- what failing tests show ----------------------------------------------------------------------------------------

SHOP = """\
def price(items, rate=0.5):
    \"\"\"Return the price of items, tax included.

    More words.
    \"\"\"
    total = sum(items)
    if not items:
        raise ValueError("no items")
    return total - total * rate


class Basket:
    def __init__(self):
        self.items = []

    def add(self, *items):
        self.items.extend(items)
        return self
"""

TESTS = """\
import unittest

import shop
from shop import Basket

RATE = 0.25


def make():
    return Basket()


class PriceTest(unittest.TestCase):
    def test_tax(self):
        items = [2, 2]
        self.assertEqual(shop.price(items, rate=RATE), 5.0)

    def test_none(self):
        with self.assertRaises(ValueError):
            shop.price([])

    def test_basket(self):
        basket = Basket()
        basket.add(1)
        self.assertEqual(basket.items, [1])

    def test_empty(self):
        self.assertEqual(Basket().items, [])
"""


def observe(folder: Path, what: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", bundle("observe"), what, "found.json", *arguments]
    subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=120, env={"PYTHONPATH": "."})
    return json.loads((folder / "found.json").read_text())


def test_a_failing_test_shows_code_that_runs_without_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(
        TESTS
        + "\n\ndef test_sum():\n    assert shop.price([4], rate=0.0) == RATE * 20\n"
        + "\n\ndef test_raises():\n    numbers = None\n    shop.price(numbers)\n"
        + "\n\ndef test_made():\n    assert make().items == [1]\n"
        + "\n\ndef test_truth():\n    one = Basket().add(1)\n    assert not one.items\n"
    )
    notes = observe(tmp_path, "failures", "-p", "no:cacheprovider", "test_shop.py")
    shown = {test.rpartition("::")[2]: note for test, note in notes.items()}
    assert shown["test_tax"]["code"] == "import shop\n\nitems = [2, 2]\nRATE = 0.25\nshop.price(items, rate=RATE)"
    assert (shown["test_tax"]["given"], shown["test_tax"]["expected"]) == ("3.0", "5.0")
    assert (shown["test_sum"]["given"], shown["test_sum"]["expected"]) == ("4.0", "5.0")
    assert shown["test_raises"]["code"] == "import shop\n\nnumbers = None\nshop.price(numbers)"
    assert shown["test_raises"]["given"].startswith("TypeError: ")
    assert "code" not in shown["test_made"]  # it needs a function of the test file
    assert shown["test_truth"]["code"].endswith("one = Basket().add(1)\none.items")
    assert shown["test_truth"]["expected"] == "a false value"
    assert "test_none" not in shown


def test_functions_that_tests_call_are_found(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text("import shop\n\n\ndef test_a():\n    shop.Basket()\n")
    found = observe(tmp_path, "functions", "-p", "no:cacheprovider", "test_shop.py")
    assert found["shop.py"] == [SHOP.splitlines().index("    def __init__(self):") + 1]


# --- whole tasks ----------------------------------------------------------------------------------------------------

COMMAND = "python -m unittest discover -s tests -t ."


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("shops") / "shop"
    (folder / "tests").mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP.replace("total - total", "total + total"))
    (folder / "tests" / "__init__.py").write_text("")
    (folder / "tests" / "test_shop.py").write_text(TESTS)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=All"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    return open_commit(str(folder), COMMAND, "HEAD", BuildOptions(runs=1))


def test_tasks_are_valid_hide_the_tests_that_find_their_bugs_and_are_resumed(project: Project, tmp_path: Path) -> None:
    record = tmp_path / "records.jsonl"
    options = MutantOptions(count=2, workers=2, record=str(record))
    tasks = [*make_tasks(project, options)]
    assert len({task.task_id for task in tasks}) == 2
    for task in tasks:
        oracle = task.oracle
        assert {*oracle.fail_to_pass, *oracle.pass_to_pass} == {*project.passing}
        assert touched_files(oracle.gold_patch) == {"shop.py"}
        assert touched_files(oracle.test_patch) == {"tests/test_shop.py"}
        for test in oracle.fail_to_pass:
            assert f"-    def {test.rpartition('.')[2]}(self):" in oracle.start_patch
            assert test.rpartition(".")[2] not in task.problem_statement
        assert "shop.py" not in task.problem_statement
    write_tasks(tasks, tmp_path / "tasks.jsonl")
    lines = len(record.read_text().splitlines())
    source = FileSource(str(tmp_path / "tasks.jsonl"))
    assert [*make_tasks(project, options, map(source.get, source.ids()))] == tasks
    assert len(record.read_text().splitlines()) == lines  # nothing was tried again


def test_a_project_without_passing_tests_is_refused(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        open_commit(str(tmp_path / "missing"), COMMAND, "HEAD", BuildOptions(runs=1))
    folder = str(project.base.workspace.url)  # type: ignore[union-attr]  # of a commit
    with pytest.raises(TaskError, match="no test of shop HEAD passes"):
        open_commit(folder, COMMAND.replace("-s tests", "-s tests -k nothing"), "HEAD", BuildOptions(runs=1))


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        MutantOptions(count=0)
