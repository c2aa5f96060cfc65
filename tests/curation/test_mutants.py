"""Tasks by mutation: the bugs, what they show, and whole tasks of a small repository."""

import ast
import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_gym.curation.mutants import (
    LEVELS,
    MutantOptions,
    Project,
    Trial,
    TrialOrder,
    TrialResult,
    _find_lines,
    _Trials,
    _TrialWork,
    draw_bugs,
    find_places,
    make_mutants,
    make_tasks,
    open_commit,
    run_trials,
    strip_temporary,
    take_out,
    why_unfit,
    write_issue,
)
from swe_gym.curation.mutation import KINDS, Mutation, draw_mutations, find_mutations, mutate, spread_mutations
from swe_gym.curation.new_task import BuildOptions
from swe_gym.curation.validation import MeteredGroup
from swe_gym.envs import SandboxGroup
from swe_gym.errors import TaskError, UsageError
from swe_gym.grading.counter import TextEdit
from swe_gym.grading.diff import touched_files
from swe_gym.guests import bundle
from swe_gym.tasks import TaskRecord
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


@pytest.mark.slow
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


def test_kinds_that_tests_rarely_find_come_every_other_turn_and_last_alone() -> None:
    places = [("m.py", ("f",), kind) for kind in ("default", "number") for _ in range(4)]
    found = [Mutation(*place, (TextEdit(9 * at, 9 * at + 1, "x"),)) for at, place in enumerate(places)]
    kinds = [one.kind.partition("+")[0] for one in draw_mutations(found, 0, seldom=("default",))]
    assert kinds == "default number number default number number default default".split()


def test_mutations_are_spread_over_functions() -> None:
    found = [Mutation("m.py", (name,), str(at), ()) for at, name in enumerate("aabacb")]
    assert [one.kind for one in spread_mutations(found)] == ["0", "2", "4", "1", "5", "3"]


def test_a_missing_message_is_no_bug() -> None:
    found = find_mutations({"m.py": b"def f(a):\n    return a.g(1, help='Two words', b='word')\n"})
    assert [one.edits[0].text for one in found if one.kind == "keyword"] == [""]


# --- what failing tests show ----------------------------------------------------------------------------------------

SHOP = """\
TAX = 0.5


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


def observe(folder: Path, runner: str, *arguments: str, inside: str = "", **order: Any) -> list[Any]:
    program = folder.with_name(f"{folder.name}-program")
    program.mkdir(exist_ok=True)
    (program / "observe.py").write_text(bundle("observe"))
    (program / "order.json").write_text(json.dumps({"runner": runner, "folder": str(folder), **order}))
    command = [sys.executable, str(program / "observe.py"), *arguments]
    done = subprocess.run(
        command, cwd=folder / inside, check=False, capture_output=True, timeout=120, env={"PYTHONPATH": str(folder)}
    )
    assert (program / "found.json").exists(), done.stderr.decode()
    return [json.loads(line) for line in (program / "found.json").read_text().splitlines()]


def try_bugs(folder: Path, runner: str, bugs: Sequence[tuple[str, Sequence[str]]], **limits: Any) -> list[Any]:
    """Try texts of `shop.py`, each with some tests."""
    words = ["-p", "no:cacheprovider", "-x", "test_shop.py"] if runner == "pytest" else ["test_shop"]
    order = [{"path": "shop.py", "text": text, "tests": tests} for text, tests in bugs]
    return observe(folder, runner, *words, bugs=order, **{"seconds": 20, "clock": 60, "most": 99, "show": 99, **limits})


SHOWN = {
    "items = [2, 2]\n    assert shop.price(items, rate=RATE) == 5.0": (
        "import shop\n\nRATE = 0.25\nitems = [2, 2]\nshop.price(items, rate=RATE)",
        "3.0",
        "5.0",
    ),
    "result = shop.price([4], rate=0.0)\n    assert result == RATE * 20": (
        "import shop\n\nresult = shop.price([4], rate=0.0)\nresult",
        "4.0",
        "5.0",
    ),
    "basket = Basket()\n    assert basket\n    basket.add(1)\n    assert basket.items == []": (
        "from shop import Basket\n\nbasket = Basket()\nbasket.add(1)\nbasket.items",
        "[1]",
        "[]",
    ),
    "one = Basket().add(1)\n    assert not one.items": (
        "from shop import Basket\n\none = Basket().add(1)\nnot one.items",
        "False",
        "a true value",
    ),
    "found = Basket()\n    found.items.append(7)\n    assert found.items.pop() == 8": (
        "from shop import Basket\n\nfound = Basket()\nfound.items.append(7)\nfound.items.pop()",
        "7",
        "8",
    ),
    "numbers = None\n    shop.price(numbers)": (
        "import shop\n\nnumbers = None\nshop.price(numbers)",
        "TypeError: 'NoneType' object is not iterable",
        None,
    ),
    "next(iter([]))": ("next(iter([]))", "StopIteration", None),
    "exit(3)": ("exit(3)", "SystemExit: 3", None),
}
NOT_SHOWN = {
    "assert make().items == [1]": "AssertionError",  # needs a function of the test file
    "assert repr(object()) == 'a'": "AssertionError",  # differs each time
    "for one in [1, 2]:\n        assert shop.price([one]) == 0": "AssertionError",
    "shop.price(tmp_path)": "TypeError",
    "for one in [4]:\n        assert one\n    assert shop.price([one]) == 6": "AssertionError",  # tells an assertion
}


@pytest.mark.slow
def test_a_failing_test_shows_code_that_fails_without_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    bodies = [*SHOWN, *NOT_SHOWN]
    tests = [f"\n\ndef test_{number}(tmp_path):\n    {body}\n" for number, body in enumerate(bodies)]
    (tmp_path / "test_shop.py").write_text(TESTS + "".join(tests))
    names = [f"test_shop.py::test_{number}" for number in range(len(bodies))]
    names += [f"test_shop.py::PriceTest::test_{name}" for name in ("tax", "none", "basket", "empty")]
    (found,) = try_bugs(tmp_path, "pytest", [(SHOP, names)])
    notes = found["shown"]
    assert {*notes} == {*found["failing"]}
    shown = {bodies[int(test.rpartition("_")[2])]: note for test, note in notes.items() if test[-1].isdigit()}
    for body, expected in SHOWN.items():
        assert (shown[body]["code"], shown[body]["given"], shown[body].get("expected")) == expected
    for body, error in NOT_SHOWN.items():
        assert ("code" in shown[body], shown[body]["error"]) == (False, error)
    assert {test.rpartition("::")[2] for test in notes} - {f"test_{one}" for one in range(len(bodies))} == {"test_tax"}


def test_unittest_shows_the_same(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    names = ["test_shop.PriceTest.test_tax", "test_shop.PriceTest.test_none"]
    (found,) = try_bugs(tmp_path, "unittest", [(SHOP, names)])
    assert found["failing"] == [*found["shown"]] == names[:1]
    assert found["shown"]["test_shop.PriceTest.test_tax"] == {
        "error": "AssertionError",
        "message": "3.0 != 5.0",
        "code": "import shop\n\nRATE = 0.25\nitems = [2, 2]\nshop.price(items, rate=RATE)",
        "given": "3.0",
        "expected": "5.0",
    }


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_lines_that_each_test_runs_are_found(runner: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "inside").mkdir()
    text = TESTS.replace("shop.price(items, rate=RATE)", "5.0")
    (tmp_path / "inside" / "test_shop.py").write_text(text)
    words = {"pytest": ["-p", "no:cacheprovider", "test_shop.py"], "unittest": ["test_shop"]}
    (found,) = observe(tmp_path, runner, *words[runner], inside="inside")
    tests = [re.split(r"::|\.", test)[-1] for test in found["tests"]]
    lines = {
        SHOP.splitlines()[int(line) - 1].strip(): {tests[test] for test in found["sets"][number]}
        for line, number in found["lines"]["shop.py"].items()
    }
    assert lines == {
        "def price(items, rate=0.5):": {"test_none"},
        "total = sum(items)": {"test_none"},
        "if not items:": {"test_none"},
        'raise ValueError("no items")': {"test_none"},
        "def add(self, *items):": {"test_basket"},
        "self.items.extend(items)": {"test_basket"},
        "return self": {"test_basket"},
        "def __init__(self):": {"test_basket", "test_empty"},
        "self.items = []": {"test_basket", "test_empty"},
    }


def test_lines_of_a_mutation_are_those_of_the_statements_that_it_changes() -> None:
    text = """\
def f(a, b=1):
    if a < 2:
        a.b = (
            b + 1)
        if b:
            a.go()
    elif b == 3:
        return 3
    return a
"""
    lines: dict[str, set[tuple[int, ...]]] = {}
    for one in find_mutations({"m.py": text.encode()}):
        lines.setdefault(one.kind, set()).add(tuple(sorted(one.lines)))
    assert lines["comparison"] == {(2,), (7,)}
    assert lines["arithmetic"] == lines["effect"] == {(3, 4)}
    assert lines["default"] == {(1,)}
    assert lines["missing-branch"] == {(6,), (8,)}
    assert lines["missing-function"] == {(2, 3, 4, 5, 6, 7, 8, 9)}


FIXED = SHOP.replace("total - total", "total + total")


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_bugs_are_tried_one_after_the_other_from_the_same_state(runner: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FIXED)
    (tmp_path / "test_shop.py").write_text(TESTS)
    names = [f"test_shop.PriceTest.test_{name}" for name in ("basket", "empty", "none", "tax")]
    if runner == "pytest":
        names = [name.replace(".", ".py::", 1).replace("PriceTest.", "PriceTest::") for name in names]
    bugs = {
        SHOP: names[3:],
        FIXED.replace("    total = sum(items)", "    while True: pass"): "hung",
        FIXED.replace("    total = sum(items)", "    import os; os._exit(0)"): "died",
        FIXED.replace("    total = sum(items)", "    raise MemoryError"): "memory",
        FIXED.replace("def price", "1 / 0\n\n\ndef price"): "many",
        FIXED.replace("self.items = []", "open('left', 'x').close(); self.items = []"): names[1:2],
        FIXED.replace("items.extend", "items.append"): names[:1],
        FIXED: [],
    }
    found = try_bugs(tmp_path, runner, [(text, names) for text in bugs], seconds=1.5, most=3)
    assert [one.get("error", one.get("failing")) for one in found] == [*bugs.values()]
    assert (tmp_path / "shop.py").read_text() == FIXED
    assert not (tmp_path / "left").exists()
    assert all(one["seconds"] > 0 for one in found)


def test_what_a_bug_shows_changes_nothing_for_the_tests_that_follow(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        SHOP + "\n\nSOLD = []\n\n\ndef sell(one):\n    SOLD.append(one)\n    return len(SOLD)\n"
    )
    tests = (("a", "assert shop.sell(1) == 2"), ("b", "assert shop.sell(1) == 2"))
    functions = [f"def test_{name}():\n    {body}\n" for name, body in tests]
    (tmp_path / "test_shop.py").write_text("import shop\n\n\n" + "\n\n".join(functions))
    text, names = (tmp_path / "shop.py").read_text(), [f"test_shop.py::test_{name}" for name, _ in tests]
    (found,) = try_bugs(tmp_path, "pytest", [(text, names)])
    assert found["failing"] == names[:1]


def test_a_bug_that_changes_a_file_of_the_project_ends_the_order(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FIXED)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "names").write_text("a")
    bugs = [
        FIXED.replace("self.items = []", f"open({name!r}, 'w').close(); self.items = []")
        for name in ("data/new", "data/names")
    ]
    names = ["test_shop.py::PriceTest::test_empty"]
    found = try_bugs(tmp_path, "pytest", [(text, names) for text in (*bugs, FIXED)])
    assert len(found) == len(bugs)
    assert not (tmp_path / "data" / "new").exists()


@pytest.mark.sample(every=2)
@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_tests_that_wait_for_ever_end_by_the_clock(runner: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FIXED)
    (tmp_path / "test_shop.py").write_text(TESTS)
    name = {"pytest": "test_shop.py::PriceTest::test_tax", "unittest": "test_shop.PriceTest.test_tax"}[runner]
    text = FIXED.replace("    total = sum(items)", "    import threading; threading.Event().wait()")
    (found,) = try_bugs(tmp_path, runner, [(text, [name])], clock=1.5)
    assert found["error"] == "hung"


# --- whole tasks ----------------------------------------------------------------------------------------------------

COMMAND = "python -m unittest discover -s tests -t ."


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("shops") / "shop"
    (folder / "tests").mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP.replace("total - total", "total + total"))
    (folder / "tests" / "__init__.py").write_text("")
    (folder / "tests" / "test_shop.py").write_text(TESTS)
    for name in ("lost.py", "tests/test_lost.py"):
        (folder / name).symlink_to("nowhere.py")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=All"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    return open_commit(str(folder), COMMAND, "HEAD", BuildOptions(runs=1))


def test_bugs_whose_tests_cannot_all_be_hidden_come_last(project: Project) -> None:
    shown = {test for test in project.passing if test.endswith("test_tax")}
    bugs = [*draw_bugs(project._replace(mentioned={"test_tax"}), 0)]
    last = [not shown.isdisjoint(bug.trial.tests) for bug in bugs]
    assert last == sorted(last)
    assert {*last} == {False, True}


def test_no_issue_tells_file_line_test_or_a_hard_one_the_function(project: Project) -> None:
    bugs = [*draw_bugs(project, 0)][:16]
    order = TrialOrder(tuple(bug.trial for bug in bugs), project.seconds, project.clock, project.most)
    with SandboxGroup(project.base, "local", {}) as group:
        found = [(bug.mutation, one) for bug, one in zip(bugs, run_trials(group, order), strict=True) if one.failing]
    assert len(found) > 4
    for (mutation, one), level in itertools.product(found, LEVELS):
        text = write_issue(project, mutation, one, level)
        words = {*re.findall(r"\w+", text)}
        assert not words & {"py", "line", "test_shop", *(name for test in one.failing for name in test.split(".")[1:])}
        assert level != "hard" or text.startswith("The bug is in") or mutation.names[-1] not in words


@pytest.mark.parametrize(
    ("message", "stripped"),
    [
        ("invalid mode: '/tmp/tmp3xm7al77/todos.json'", "invalid mode: 'todos.json'"),
        ("/tmp/tmp3xm7al77/a/b.txt: no such file, in /tmp/tmp3xm7al77", "a/b.txt: no such file, in /tmp"),
        ("no file /tmp/pytest-of-root/pytest-3/test_load0/x.ini", "no file x.ini"),
        ("not a folder: '/tmp/pytest-of-root/pytest-3/test_load0'", "not a folder: '/tmp'"),
        ("3.0 != 5.0", "3.0 != 5.0"),
    ],
)
def test_an_issue_names_no_temporary_folder(message: str, stripped: str) -> None:
    assert strip_temporary(message) == stripped


def test_no_issue_shows_a_result_in_a_temporary_folder(project: Project) -> None:
    bug = next(iter(draw_bugs(project, 0)))
    notes = {"code": "save()", "given": "'/tmp/tmp3xm7al77/a'", "expected": "'/tmp/tmp3xm7al77/b'"}
    found = TrialResult(failing=("tests.test_shop.Test.test_a",), observed={"tests.test_shop.Test.test_a": notes})
    assert "tmp3xm7al77" not in write_issue(project, bug.mutation, found, "medium")


def test_tasks_are_valid_hide_the_tests_that_find_their_bugs_and_are_resumed(project: Project, tmp_path: Path) -> None:
    record = tmp_path / "records.jsonl"
    assert project.base.oracle.timeout == BuildOptions().test_timeout  # nothing measured: equal seeds make equal tasks
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
        assert task.problem_statement.startswith(("shop has a bug. This code", "Something in shop", "The bug is in `"))
    write_tasks(tasks, tmp_path / "tasks.jsonl")
    other = project._replace(version="2")
    for task in tasks:
        ((path, names, tests),) = find_places(project, task)
        assert (path, tests) == ("shop.py", task.oracle.fail_to_pass)
        assert names in {("price",), ("Basket", "__init__"), ("Basket", "add")}
    assert not [place for task in tasks for place in find_places(other, task)]
    costs = [json.loads(line) for line in record.read_text().splitlines()]
    assert all(0 < cost["cpu_seconds"] < 60 for cost in costs)
    sizes = {cost["task_id"]: cost["bytes"] for cost in costs}
    assert all(sizes[task.task_id] == len(task.model_dump_json()) for task in tasks)
    lines = len(record.read_text().splitlines())
    source = FileSource(str(tmp_path / "tasks.jsonl"))
    assert [*make_tasks(project, options, map(source.get, source.ids()))] == tasks
    assert len(record.read_text().splitlines()) == lines  # nothing was tried again


def test_costs_are_counted_once_and_not_known_if_a_sandbox_does_not_tell(project: Project) -> None:
    with MeteredGroup(project.base, "local", {}) as group:
        sandbox = group.open()
        sandbox.exec("true")
        group.drop(sandbox).result()
        used = group.used
        group.drop(sandbox)
        assert group.used == used
    order = TrialOrder((Trial("shop.py", SHOP, project.passing[:1]),), project.seconds, project.clock, 1)
    job = _Trials(_TrialWork(project.base, order, "local"), 0, 1)
    job._group.used = None
    job.run()
    assert [(one.error, one.cost) for one in job.outcome] == [("", None)]


def test_lines_that_take_too_long_to_note_are_an_error(project: Project) -> None:
    oracle = project.base.oracle.model_copy(update={"timeout": 0.01})
    with (
        SandboxGroup(project.base.model_copy(update={"oracle": oracle}), "local", {}) as group,
        pytest.raises(TaskError, match="while each line that they run was noted"),
    ):
        _find_lines(group, project.passing)


@pytest.mark.slow
def test_the_command_keeps_what_is_finished_when_it_is_terminated_and_resumes(project: Project, tmp_path: Path) -> None:
    record, output = tmp_path / "bugs.records.jsonl", tmp_path / "bugs.jsonl"
    folder = str(project.base.workspace.url)  # type: ignore[union-attr]  # of a commit
    words = ["tasks", "new", str(output), "--mutate", folder, "HEAD", "3", "--tests", COMMAND, "--workers", "1"]
    with subprocess.Popen([sys.executable, "-m", "swe_gym", *words], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not valid_lines(record):
            assert process.poll() is None
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    before = valid_lines(record)
    done = subprocess.run(
        [sys.executable, "-m", "swe_gym", *words], capture_output=True, text=True, check=True, timeout=300
    )
    assert f"new tasks in {output} (3 in all)" in done.stdout.replace("\n", " ")
    lines = valid_lines(record)
    assert len(lines) == len({json.loads(line)["task_id"] for line in lines}) >= 3
    assert lines[: len(before)] == before  # nothing was validated twice


def valid_lines(record: Path) -> list[str]:
    lines = record.read_text().splitlines(keepends=True) if record.exists() else []
    return [line for line in lines if line.endswith("\n") and json.loads(line)["status"] == "valid"]


CLASSES = """\
import pytest


class A:
    X = 1

    def test_a(self):
        pass

    @pytest.mark.parametrize(
        "x", [1]
    )
    def test_b(self, x):
        pass  # last

    async def test_c(self): pass


class B:
    def test_a(self):
        pass


def test_d():
    pass
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_hidden_tests_leave_nothing_but_what_python_needs(end: str) -> None:
    hidden = [("A", "test_a"), ("A", "test_b"), ("A", "test_c"), ("B", "test_a"), ("test_d",)]
    left = take_out("tests/test_x.py", CLASSES.replace("\n", end).encode(), hidden).decode().split()
    assert left == "import pytest class A: X = 1 class B: pass".split()


@pytest.mark.parametrize(
    "text",
    [
        "if 1:\n    def test_d(): pass\nelse:\n    def test_d(): pass\n",
        "def test_d(): pass\n\n\ndef test_d(): pass\n",
        "x = 1; y = 2\nclass A: test_d = 1\n",
    ],
)
def test_a_test_that_cannot_be_hidden_alone_is_refused(text: str) -> None:
    with pytest.raises(TaskError, match="cannot be hidden"):
        take_out("tests/test_x.py", text.encode(), [("test_d",)])


def test_hidden_tests_that_pass_with_the_bug_and_others_that_fail_make_a_task_invalid() -> None:
    good = TaskRecord(task_id="a", status="valid", backend="local")
    assert why_unfit(good) == ""
    wrong = good.model_copy(update={"wrong": {"t.test_a": "passed without work"}})
    assert why_unfit(wrong) == "t.test_a is hidden and passes with the bug"
    assert "t.test_b fails too, and is not hidden" in why_unfit(good.model_copy(update={"broken": ("t.test_b",)}))


def test_a_project_without_passing_tests_is_refused(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        open_commit(str(tmp_path / "missing"), COMMAND, "HEAD", BuildOptions(runs=1))
    folder = str(project.base.workspace.url)  # type: ignore[union-attr]  # of a commit
    with pytest.raises(TaskError, match=r"no test of shop [0-9a-f]{12} passes"):
        open_commit(folder, COMMAND.replace("-s tests", "-s tests -k nothing"), "HEAD", BuildOptions(runs=1))


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1: count=0"):
        make_mutants("sqlparse", "0.5.3", count=0)


@pytest.mark.parametrize("name", ["Packaging", "typing_extensions"])
def test_a_package_that_pip_brings_along_is_refused(name: str) -> None:
    with pytest.raises(TaskError, match="pip brings a copy"):
        make_mutants(name, "1.0")
