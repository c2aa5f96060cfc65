"""Audits: planted defects are found, each by its kind, and a sound task has none."""

import datetime
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from swe_gym.cli.common import TaskSubset
from swe_gym.curation import AuditRecord, audit_tasks, read_audits, repair_task
from swe_gym.curation.audit import Ends, Findings, Stability
from swe_gym.curation.audit_checks import find_asked, find_in_history, quoted_share
from swe_gym.curation.audit_variants import ChangedFile, break_hunk, make_variants, split_sections
from swe_gym.curation.hardening import (
    NOTES,
    Copy,
    Original,
    choose_tests,
    find_originals,
    make_copies,
    put_tests,
    read_notes,
    write_notes,
    write_tests,
)
from swe_gym.errors import GradingError, TaskError, UsageError
from swe_gym.grading.conditions import surround_plan
from swe_gym.grading.counter import Source, TextEdit
from swe_gym.grading.diff import file_diff
from swe_gym.grading.plan import read_plan
from swe_gym.guests import bundle
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.tasks import digest
from swe_gym.types import FilesWorkspace, FolderWorkspace, JsonObject, Oracle, SandboxNeeds, Task, TestCommand

MODE = 0o100644
PREFIX = sys.prefix

OLD = 'OLD = 1\n\n\ndef f(x=None):\n    """Add one."""\n    return None\n'

GOLD = '''OLD = 1


def f(x=None):
    """Add one."""
    if x is None:
        raise ValueError("a number, please")
    return abs(x) + 1


def twice(x):
    return 2 * x


def nobody_asks_for_this_one(first, second, third):
    return first + second + third
'''

ISSUE = """f returns nothing. We also need

def nobody_asks_for_this_one(first, second, third):
    return first + second + third
"""

TESTS = """import datetime, os, platform, signal, socket, time, unittest
import m

class T(unittest.TestCase):
    seen = []
    def test_value(self):
        self.assertEqual(m.f(1), 2)
    def test_negative(self):
        self.assertEqual(m.f(-4), 5)
    def test_message(self):
        with self.assertRaisesRegex(ValueError, "^a number, please$"):
            m.f()
    def test_name(self):
        self.assertEqual(m.twice(4), 8)
    def test_old(self):
        self.assertEqual(m.OLD, 1)
    def test_hash_seed(self):
        self.assertEqual(os.environ["PYTHONHASHSEED"], "0")
    def test_zone(self):
        self.assertEqual(time.strftime("%z", time.localtime(1)), "+0000")
    def test_clock(self):
        self.assertLess(datetime.date.today(), datetime.date.fromisoformat("SOON"))
    def test_file_time(self):
        open("new.txt", "w").close()
        self.assertLess(time.time() - os.stat("new.txt").st_mtime, 600)
    def test_order_first(self):
        self.seen.append(1)
    def test_order_second(self):
        self.assertEqual(self.seen, [1])
    def test_load(self):
        stops = []
        signal.signal(signal.SIGCONT, lambda *_: stops.append(1))
        end = time.monotonic() + 0.3
        while time.monotonic() < end and not stops:
            pass
        self.assertEqual(stops, [])
    def test_folder(self):
        self.assertTrue(os.getcwd().endswith("/testbed"))
    def test_locale(self):
        with open("data.txt") as file:
            self.assertEqual(file.read(), "\\u00e9")
    def test_user(self):
        self.assertNotEqual(os.environ.get("USER"), "somebody")
    def test_host(self):
        self.assertNotEqual(platform.node(), "another-machine")
    def test_network(self):
        self.assertGreater(len(socket.if_nameindex()), 1)
"""

UNSTABLE = {
    "test_hash_seed": "hash seed",
    "test_zone": "zone",
    "test_clock": "clock",
    "test_order_second": "order",
    "test_load": "load",
    "test_folder": "folder",
    "test_locale": "locale",
    "test_user": "user",
    "test_host": "host",
    "test_network": "network",
}


def make_folder(folder: Path) -> Path:
    """A project with a copy of the solution, and a git repository within it that also holds it."""
    files = {"m.py": OLD, "data.txt": "é", "notes/m.orig": GOLD, "old/m.py": GOLD}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "a"]
    for command in (["init", "-q"], ["add", "m.py"], commit, ["rm", "-q", "m.py"]):
        subprocess.run(["git", *command], cwd=folder / "old", check=True)
    return folder


def name(test: str) -> str:
    return f"test_m.T.{test}"


def make_task(gold: str, tests: str, issue: str, starting: list[str], keeping: list[str], **fields: object) -> Task:
    return Task.model_validate(
        {
            "task_id": "planted",
            "problem_statement": issue,
            "workspace": FilesWorkspace(files={"m.py": OLD, "data.txt": "é"}),
            "env": {"PYTHONDONTWRITEBYTECODE": "1"},
            "oracle": Oracle(
                gold_patch=file_diff("m.py", OLD.encode(), gold.encode(), MODE, MODE),
                test_files={"test_m.py": tests},
                test_cmd="python -m unittest test_m",
                fail_to_pass=tuple(map(name, starting)),
                pass_to_pass=tuple(map(name, keeping)),
                timeout=30.0,
            ),
            **fields,
        }
    )


def planted(folder: Path) -> Task:
    soon = datetime.date.today() + datetime.timedelta(days=100)
    return make_task(
        GOLD,
        TESTS.replace("SOON", soon.isoformat()),
        ISSUE,
        ["test_value", "test_negative", "test_message", "test_name", "test_old"],
        ["test_file_time", "test_order_first", *UNSTABLE],
        workspace=FolderWorkspace(path=str(folder)),
        needs=SandboxNeeds(network="egress"),
    )


def of(task: Task) -> TaskSubset:
    return TaskSubset([task.task_id], lambda _: task)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return planted(make_folder(tmp_path_factory.mktemp("planted")))


@pytest.fixture(scope="module")
def found(task: Task) -> AuditRecord:
    (record,) = audit_tasks(of(task), variants=6)
    return record


def test_every_condition_names_the_test_that_it_breaks(found: AuditRecord) -> None:
    assert (found.status, found.reason) == ("audited", "")
    assert found.unstable == {name(test): (condition,) for test, condition in UNSTABLE.items()}
    assert found.conditions == dict.fromkeys(UNSTABLE.values(), "changed")
    assert found.flaky == ()
    assert found.not_tried == {
        f"clock of {name('test_file_time')}": "it compares the clock with other times, as those of files"
    }


def test_other_defects_are_found_by_their_kinds(found: AuditRecord) -> None:
    """The history is that of a repository that lies in the workspace."""
    others = [(finding.kind, finding.what) for finding in found.findings if finding.kind != "unstable"]
    assert others == [
        ("copy", "notes/m.orig holds lines of the gold patch"),
        ("history", "m.py with the gold patch is in a git repository of the workspace"),
        ("network", "the policy has network access: egress"),
        ("unasked name", "tests want 'twice', which neither the issue nor the repository mentions"),
        ("unasked message", "tests want 'a number, please', which neither the issue nor the repository mentions"),
        ("quoted patch", "the issue quotes 67% of the gold patch's long lines"),
        ("passes without work", name("test_old")),
        ("weak", "no test notices that a function of m.py does nothing"),
    ]


def test_what_no_test_asks_for_is_shown(found: AuditRecord) -> None:
    assert found.strength is not None
    assert 0 < found.strength < 1
    assert "-    return first + second + third\n+    return None\n" in "".join(one.diff for one in found.escaped)


def test_the_repaired_task_has_no_unstable_test(task: Task, found: AuditRecord) -> None:
    repaired = repair_task(task, found)
    assert repaired is not None
    assert repaired.oracle.fail_to_pass == task.oracle.fail_to_pass
    assert repaired.oracle.pass_to_pass == (name("test_file_time"), name("test_order_first"))
    lost = found.model_copy(update={"flaky": task.oracle.fail_to_pass})
    assert repair_task(task, lost) is None


SOUND = """import pytest
import m

@pytest.mark.parametrize("given", [1, -1])
def test_value(given):
    assert m.f(given) == 2

def test_none():
    with pytest.raises(ValueError):
        m.f()
"""


QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def sound() -> Task:
    gold = GOLD.partition("\n\n\ndef twice")[0] + "\n"
    task = make_task(gold, SOUND, "f returns nothing, and must raise ValueError without a number.", [], [], env=QUICK)
    lists = {"fail_to_pass": tuple(f"test_m.py::{test}" for test in ("test_value[1]", "test_value[-1]", "test_none"))}
    command = {"test_cmd": "python -m pytest -q -p no:cacheprovider"}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update={**lists, **command})})


def test_other_sandbox_options_make_another_audit(tmp_path: Path) -> None:
    task, record = sound(), tmp_path / "audits.jsonl"
    skipped = task.model_copy(update={"oracle": task.oracle.model_copy(update={"gold_patch": ""})})
    for network, lines in (("none", 1), ("none", 1), ("egress", 2)):
        (found,) = audit_tasks(of(skipped), record=record, sandbox_options={"network": network, "token": "s3cret"})
        assert (found.status, found.sandbox_options) == ("skipped", {"network": network})
        assert len(record.read_text().splitlines()) == lines


@pytest.mark.slow
def test_a_sound_task_has_no_finding_and_is_not_audited_again(tmp_path: Path) -> None:
    record, options = tmp_path / "audits.jsonl", {"sandbox_options": {"options": {"python_prefix": PREFIX}}}
    seen: list[AuditRecord] = []
    (first,) = audit_tasks(of(sound()), variants=3, record=record, on_record=seen.append, **options)
    assert (first.status, first.reason, first.findings) == ("audited", "", ())
    assert (first.killed, first.tried, first.strength, first.functions) == (3, 3, 1.0, 2)
    assert set(first.conditions.values()) == {"same", "not tried: no run has a network"}
    assert repair_task(sound(), first) == sound()
    assert seen == read_audits(record) == [first]
    (again,) = audit_tasks(of(sound()), variants=3, record=record, **options)
    assert again == first
    record.write_text("{}\n")
    with pytest.raises(UsageError, match=r"audits.jsonl, line 1 is not an audit: "):
        read_audits(record)


CLIP = """

def clip(value, low=0, high=10):
    if value < low:
        return low
    return high if value > high else value
"""

WEAK = """import unittest
import m


class T(unittest.TestCase):
    def setUp(self):
        self.high = 10

    def test_clip(self):
        found = m.clip(5)
        self.assertEqual(found, 5)
        self.assertTrue(m.clip(12, high=self.high))
"""


def clip_task(tests: str, command: str, *starting: str) -> Task:
    task = make_task(OLD + CLIP, tests, "clip(value, low=0, high=10) is missing", [], [], env=QUICK)
    changed = {"evaluation": TestCommand(test_cmd=command), "fail_to_pass": starting}
    return task.model_copy(update={"oracle": task.oracle.model_copy(update=changed)})


@pytest.mark.slow
def test_missing_tests_are_written_and_validated(tmp_path: Path) -> None:
    """One wrong solution is as right as gold: none rejects it."""
    task, record = clip_task(WEAK, "python -m unittest test_m", name("test_clip")), tmp_path / "audits.jsonl"
    (found,) = audit_tasks(of(task), harden=True, variants=4, record=record)
    assert found.added is not None
    assert (found.strength, found.added.strength) == (0.5, 0.75)
    assert found.added.tests == (name("test_clip_variation_1"),)
    assert [(one.kind, one.rejected_by) for one in found.escaped] == [
        ("comparison", ""),
        ("default", name("test_clip_variation_1")),
    ]
    hardened = repair_task(task, found)
    assert hardened is not None
    assert hardened.oracle.fail_to_pass == (name("test_clip"), *found.added.fail_to_pass)
    text = hardened.oracle.test_files["test_m.py"]
    assert text.startswith(WEAK)
    assert "    def test_clip_variation_1(self):\n" in text
    assert audit_tasks(of(task), harden=True, variants=4, record=record) == [found]
    (without,) = audit_tasks(of(task), variants=4, record=record)
    assert (without.runs, without.added, without.harden) == (found.runs, None, False)
    assert repair_task(task, without) == task
    with pytest.raises(UsageError, match="nothing is isolated: choose another tier"):
        audit_tasks(of(task), harden=True, sandbox_options={"options": {"tier": "process"}})


COPIED = """import pytest
import m
from m import clip


class TestClip:
  def test_compared(self, monkeypatch):
    '''Say why.'''
    monkeypatch.setattr("shutil.rmtree", print)
    found = [clip(one) for one in (
      1, "ab",
    )]
    assert sorted(
      found
    ) == [
      1, 2,
    ], "a message"
    assert clip(3) is None
    assert clip(4) == clip(4)
    assert clip(0.5) == pytest.approx(0.5)
    assert clip("/srv")

  def test_returned(self):
    return clip(1)

  async def test_awaited(self):
    assert clip(1) == 1


@pytest.mark.parametrize("given", [pytest.param(5, id="5")])
def test_rows(given):
    assert clip(given) == 5


if __name__ == "__main__":
    unittest.main()
"""

COMPARED = "test_m.py::TestClip::test_compared"
IDS = (COMPARED, "test_m.py::TestClip::test_returned", "test_m.py::TestClip::test_awaited", "test_m.py::test_rows[5]")


def copies_of(text: str, *tests: str) -> list[Copy]:
    originals = find_originals(Oracle(fail_to_pass=tests), {"test_m.py": text.encode()})
    return make_copies(originals, [ChangedFile("m.py", b"", (OLD + CLIP).encode())])


def test_copies_change_one_value_and_compare_as_the_original_does() -> None:
    copies = copies_of(COPIED, *IDS)
    assert {copy.original.test for copy in copies} == {COMPARED}
    tests = [
        copy._replace(name=f"test_{number}", values={"0": "[5]", "1": "None"}) for number, copy in enumerate(copies)
    ]
    (text,) = write_tests(tests, {"test_m.py": COPIED.encode()}).values()
    parts = text.decode().split("\n\n")
    shown = [part for part in parts if re.match(r"  def test_\d+\(", part)]
    assert len(shown) == len(copies) > 10
    kept = (
        '    monkeypatch.setattr("shutil.rmtree", print)\n',
        '\n    ) == [5], "a message"\n',
        " is None\n    assert clip(4) == clip(4)\n",
        '    assert clip(0.5) == pytest.approx(0.5)\n    assert clip("/srv")',
    )
    assert all(word in part for word in kept for part in shown)
    assert any("      11, " in part for part in shown)  # a constant of gold, and one
    (noted,) = write_notes(copies, {"test_m.py": COPIED.encode()}).values()
    compile(noted, "test_m.py", "exec")
    assert noted.index(b"def _note_value") < noted.index(b"class TestClip") < noted.index(b"__main__")


def test_tests_with_any_indentation_are_copied() -> None:
    lines = "".join(f"        self.assertEqual(m.clip({number}), {number})\n" for number in range(20))
    for pad in ("  ", "\t"):
        text = f"class T:\n{pad}def test_a(self):\n{lines.replace('        ', 2 * pad)}"
        assert len(copies_of(text, "test_m.T.test_a")) > 100


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test_m.py::T::test_m", "test_m.py::T::new"),
        ("test_m.T.test_m", "test_m.T.new"),
        ("test_m (test_m.T)", "new (test_m.T)"),
        ("test_m (app.test_m.T.test_m)", "new (app.test_m.T.new)"),
    ],
)
def test_a_new_test_is_named_as_its_original(old: str, new: str) -> None:
    original = Original(old, "test_m.py", ("T", "test_m"), Source(b""))
    assert Copy(original, TextEdit(0, 0, ""), "new").test == new


def noted(*values: str) -> str:
    notes = [["begun", "None"], *(["0", value] for value in values), ["ended", "None"]]
    return "".join(f"{json.dumps([0, *note])}\n" for note in notes)


def test_only_plain_values_that_stay_equal_are_asserted() -> None:
    copies = copies_of("import m\n\ndef test_f():\n    assert m.f(1) == 1\n", "test_m.py::test_f")[:1]

    def choose(*gold: str, wrong: str = noted("7")) -> list[Copy]:
        seen = [read_notes(text, 1) for text in (*gold, wrong)]
        return choose_tests(copies, seen[:-1], seen[0], seen[-1:])

    (test,) = choose(noted("5"), noted("5"))
    assert (test.test, test.values) == ("test_m.py::test_f_variation_1", {"0": "5"})
    assert choose(noted("5"), wrong=noted("5")[:-20])  # cut off
    for gold in (noted("6"), noted("?"), noted("5", "5"), noted(), noted("True"), noted("5")[:-20], ""):
        assert choose(noted("5"), gold) == choose(gold, gold) == [] or gold == noted("6")
    assert choose(noted("5"), noted("6")) == []


@pytest.mark.parametrize(
    "note", ["3", '[9, "0", "1"]', '[0, "begun", null]', '["a", "b", "c"]', "[" * 5000, '[0, {}, ""]']
)
def test_foreign_notes_do_not_count(note: str) -> None:
    assert read_notes(f"{note}\n{noted('5')}", 1) == read_notes(noted("5"), 1) != read_notes(note, 1)


BLOCKED = """import threading

def test_f():
    lock = threading.Lock()
    lock.acquire(timeout=60)
    lock.acquire(timeout=60)
    assert lock == 1

def test_g():
    assert abs(5) == 5

def test_h():
    for _ in range(2):
        assert abs(5) == 5

if __name__ == "__main__":
    for name, test in sorted(globals().copy().items()):
        if name.startswith("test") and name.endswith("_"):
            test()
"""


def test_copies_end_in_time_and_never_fail_their_run(tmp_path: Path) -> None:
    copies = [copies_of(BLOCKED, f"test_m.py::{name}")[0] for name in ("test_f", "test_g", "test_h")]
    (text,) = write_notes(copies, {"test_m.py": BLOCKED.encode()}).values()
    (tmp_path / "test_m.py").write_bytes(text.replace(b"limit(3.0)", b"limit(0.01)"))
    env = {**os.environ, NOTES: str(tmp_path / "notes")}
    subprocess.run([sys.executable, "test_m.py"], cwd=tmp_path, env=env, check=True, timeout=60)
    blocked, other, twice = read_notes((tmp_path / "notes").read_text(), 3)
    assert (blocked.begun, blocked.ended) == (twice.begun, twice.ended) == (True, False)
    assert (other.ended, other.values) == (True, {"0": "6"})


def test_test_patches_that_cannot_be_changed_are_refused() -> None:
    data = {"test_m.py": b"x = 2\n"}
    plain = "--- a/data.json\n+++ b/data.json\n@@ -0,0 +1 @@\n+1\n"
    renamed = "diff --git a/test_a.py b/test_m.py\nsimilarity index 50%\nrename from test_a.py\nrename to test_m.py\n"
    for patch, why in ((plain, "without a line of 'diff --git'"), (renamed, "renames test_m.py")):
        with pytest.raises(TaskError, match=why):
            put_tests(Oracle(fail_to_pass=("a",), test_patch=patch), {}, data)
    other = file_diff("data.json", b"", b"1\n", None, MODE)
    changed = put_tests(Oracle(fail_to_pass=("a",), test_patch=other), {}, data)
    assert changed.test_patch == other + file_diff("test_m.py", None, data["test_m.py"], None, MODE)


def test_what_cannot_be_audited_is_told() -> None:
    task = sound()
    without_gold = task.model_copy(update={"oracle": task.oracle.model_copy(update={"gold_patch": ""})})
    own = task.model_copy(update={"oracle": task.oracle.model_copy(update={"own_grader": "a.b:c"})})
    wrong = task.model_copy(update={"oracle": task.oracle.model_copy(update={"gold_patch": "nothing"})})
    ends = [audit_tasks(of(one))[0] for one in (without_gold, own, wrong)]
    assert [end.status for end in ends] == ["skipped", "skipped", "invalid"]
    assert "no gold patch" in ends[0].reason
    assert "'a.b:c'" in ends[1].reason
    assert ends[0].digest == digest(without_gold)


# --- variants -----------------------------------------------------------------------------------------------------

BEFORE = b"def f(x):\n    return x\n" + b"# nothing\n" * 9 + b"def g(x):\n    return x\n"
AFTER = (
    b"def f(x):\n    if x > 1:\n        return True\n    return x\n"
    + b"# nothing\n" * 9
    + b'def g(x):\n    """Return it."""\n    return x\n'
)


def test_variants_change_only_what_gold_does() -> None:
    gold = file_diff("a.py", BEFORE, AFTER, MODE, MODE) + file_diff("a.md", b"", b"new\n", None, MODE)
    assert "".join(section.text for section in split_sections(gold)) == gold
    files = [ChangedFile("a.py", BEFORE, AFTER)]
    variants = make_variants(gold, files, 20)
    assert [variant.kind for variant in variants if variant.kind == "hunk"] == ["hunk"]  # the other is a docstring
    hunk = variants[0]
    assert "def g" in hunk.diff
    assert "x > 1" not in hunk.diff
    functions = [variant.shown for variant in variants if variant.kind == "function"]
    assert ["+    return None" in functions[0], "+    return True" in functions[1], len(functions)] == [True, True, 2]
    mutants = [variant for variant in variants if variant.kind not in ("hunk", "function")]
    assert mutants
    assert all("x > 1" in variant.shown or "return True" in variant.shown for variant in mutants)
    assert all("if x" in variant.diff or "return None" in variant.diff for variant in break_hunk(gold, files, hunk, 3))


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.py", b"import os\n", b"import os\nimport re\n"),
        ("a.py", b'__version__ = "1"\n', b'__version__ = "2"\n'),
        ("a.py", b"x = 1\n", b"x = 1  # one\n"),
        ("docs/conf.py", b"def f(x):\n    return x\n", b"def f(x):\n    return x + 1\n"),
        ("a/_version.py", b"version_tuple = (1, 2)\n", b"version_tuple = (1, 3)\n"),
        (".github/workflows/test.yml", b"old\n", b"new\n"),
        ("pyproject.toml", b"old\n", b"new\n"),
        ("NEWS.rst", b"old\n", b"new\n"),
    ],
)
def test_what_is_not_behaviour_is_not_left_out(path: str, before: bytes, after: bytes) -> None:
    gold = file_diff("m.py", b"x = 1\n", b"x = 2\n", MODE, MODE) + file_diff(path, before, after, MODE, MODE)
    variants = make_variants(gold, [ChangedFile("m.py", b"x = 1\n", b"x = 2\n"), ChangedFile(path, before, after)], 9)
    assert [(one.kind, one.path) for one in variants] == [("hunk", "m.py")]


def test_an_issue_that_shares_one_short_line_quotes_nothing() -> None:
    assert quoted_share(sound()) == 0.0


def test_what_is_all_of_a_function_without_work_is_no_wrong_solution() -> None:
    stubs = b"class C:\n    def a(self):\n        raise NotImplementedError\n\n    def b(self):\n        ...\n"
    long = b"x = " + b" + ".join([b'"a"'] * 1100) + b"\n"
    after = {"a.py": stubs, "long.py": long, "kept/__init__.py": b"", "a.pyi": b"x: str\n", "poetry.lock": b"2\n"}
    before = {"long.py": b"x = 1\n", "a.pyi": b"x: int\n", "poetry.lock": b"1\n"}
    modes = {path: MODE if path in before else None for path in after}
    gold = "".join(file_diff(path, before.get(path), data, modes[path], MODE) for path, data in after.items())
    files = [ChangedFile(path, before.get(path), data) for path, data in after.items() if path.endswith(".py")]
    kinds = {(one.kind, one.path) for one in make_variants(gold, files, 99)}
    assert {("hunk", "a.py"), ("hunk", "long.py")} == {one for one in kinds if one[0] in ("hunk", "function")}


def test_sections_have_the_names_that_git_quotes_and_those_of_binary_files() -> None:
    quoted = file_diff("caf\u00e9.py", b"a\n", b"b\n", MODE, MODE)
    binary = "diff --git a/x.png b/x.png\nindex 1..2 100644\nGIT binary patch\nliteral 0\nHcmV?d00001\n\n"
    moved = "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n"
    assert [one.path for one in split_sections(quoted + binary + moved)] == ["caf\u00e9.py", "x.png", "new.py"]


# --- unasked ------------------------------------------------------------------------------------------------------

PARSER = '''class C:
    def decode(self):
        """Read the first number of a text."""
        match = 1
        return match

    def numbers(self):
        return 2
'''
ASKING = '''import m
def test_x():
    """Read the first number."""
    match = m.C().numbers(match=b"a".decode())
'''


def test_locals_docstrings_and_methods_of_builtins_are_not_asked_for() -> None:
    task = make_task(PARSER, "", "C is missing", [], [])
    task = task.model_copy(update={"oracle": task.oracle.model_copy(update={"fail_to_pass": ("test_m.py::test_x",)})})
    files = [ChangedFile("m.py", OLD.encode(), PARSER.encode())]
    assert find_asked(task, {"test_m.py": ASKING.encode()}, files) == (("numbers",), ())
    assert find_asked(task, {"test_m.py": b"x = 1\n"}, files) is None


def test_a_search_that_fails_is_not_an_answer() -> None:
    files = [ChangedFile("m.py", b"a", b"b")]
    with open_sandbox(SandboxSpec()) as sandbox:
        assert find_in_history(sandbox, files) == []
        sandbox.exec(["mkdir", ".git"])
        assert find_in_history(sandbox, files) is None


# --- runs that do not count -----------------------------------------------------------------------------------------

PLAIN: dict[str, object] = {"hash seed": 1, "zone": 1, "clock": 1e9, "locale": 1, "folder": 1, "user": 1, "host": 1}
OTHER = {**dict.fromkeys(PLAIN, 2), "clock": 2e9, "reversed": True, "stopped": True}


def run_of(*bad: str, gold: bool = True, counts: bool = True, seen: dict[str, object] = PLAIN) -> Ends:
    passed = {test: test not in bad and (gold or test != "a") for test in ("a", "b", "c")}
    return Ends(passed, not bad, counts, False, seen, "a reason", 1.0)


class Runs:
    """Stands for the sandboxes: ends as a function of the conditions and the number of the run says, with gold."""

    fixed, online = "", False

    def __init__(self, end: Callable[[tuple[str, ...], int, int], Ends | GradingError]) -> None:
        self.end, self.counts = end, Counter[tuple[object, ...]]()

    def run(self, diff: str, names: Sequence[str] = (), *, clock: int = 0, **_: object) -> Ends:
        if not diff:
            return run_of(gold=False, seen=OTHER)
        self.counts[*names, clock] += 1
        end = self.end(tuple(names), clock, self.counts[*names, clock])
        if isinstance(end, GradingError):
            raise end
        return end


def stability(end: Callable[[tuple[str, ...], int, int], Ends | GradingError], gold: Ends | None = None) -> JsonObject:
    found, oracle = Findings(), Oracle(gold_patch="gold", fail_to_pass=("a",), pass_to_pass=("b", "c"))
    probe, empty = Runs(end), run_of(gold=False)
    facts = Stability(probe, gold or run_of(), empty, oracle, found).find()  # type: ignore[arg-type]
    return {**facts, "findings": [one.what for one in found.list], "not_tried": found.not_tried}


def breaks(name: str, *tests: str, names: tuple[str, ...], clock: int) -> Ends:
    return run_of(*(tests if name in names else ()), seen=OTHER if names or clock else PLAIN)


@pytest.mark.parametrize("bad", [(("clock",), 0, 2), ((), 0, 1)])
def test_a_second_run_that_does_not_count_makes_no_test_flaky_or_unstable(bad: tuple[object, ...]) -> None:
    found = stability(
        lambda names, clock, number: (
            run_of("a", "b", "c", counts=False)
            if (names, clock, number) == bad or ((names, clock) == bad[:2] == ((), 0))
            else breaks("clock", "b", names=names, clock=clock)
        )
    )
    assert (found["unstable"], found["flaky"]) == ({}, ())
    assert found["conditions"]["clock"] == "not tried: a second run does not count: a reason"


def test_a_run_an_hour_on_that_does_not_count_leaves_the_clock_open() -> None:
    found = stability(
        lambda names, clock, _: run_of("b", counts=False) if clock else breaks("clock", "b", names=names, clock=clock)
    )
    assert (found["unstable"], found["not_tried"]) == ({}, {"clock of b": "a run does not count"})


def test_tests_of_which_nothing_is_seen_are_neither_flaky_nor_unstable() -> None:
    found = stability(lambda names, _, __: run_of(*("abc" if names else ""), seen={}), run_of(seen={}))
    assert (found["unstable"], found["flaky"], found["findings"]) == ({}, (), [])
    assert (
        found["conditions"]["user"]
        == "not tried: the process of the tests is no test runner in Python, which could tell"
    )


def test_a_condition_that_breaks_the_runner_or_every_test_is_told() -> None:
    def end(names: tuple[str, ...], clock: int, _: int) -> Ends | GradingError:
        return GradingError("no runner") if "user" in names else breaks("folder", *"abc", names=names, clock=clock)

    found = stability(end)
    assert (found["unstable"], found["flaky"]) == ({}, ())
    assert found["conditions"]["user"] == "not tried: the run does not count: no runner"
    assert found["conditions"]["folder"] == "not tried: it breaks every test"
    assert found["findings"] == ["every test: folder. They are kept, because their environment may be to blame"]


def test_the_run_without_work_does_not_take_back_what_the_run_with_gold_found() -> None:
    class Unseen(Runs):
        def run(self, diff: str, names: Sequence[str] = (), **options: object) -> Ends:
            return super().run(diff, names, **options) if diff else run_of(gold=False, seen=PLAIN)  # type: ignore[arg-type]

    oracle = Oracle(gold_patch="gold", fail_to_pass=("a",), pass_to_pass=("b", "c"))
    runs = Unseen(lambda names, clock, _: breaks("order", "b", names=names, clock=clock))
    found = Stability(runs, run_of(), run_of(gold=False), oracle, Findings()).find()  # type: ignore[arg-type]
    assert (found["conditions"]["order"], found["unstable"]) == ("changed", {"b": ("order",)})


def test_new_tests_must_hold_under_every_condition() -> None:
    def changing(name: str, seen: dict[str, object], *new: str) -> set[str]:
        runs = Runs(lambda names, clock, _: run_of(*(["b"] if name in names or clock else ()), seen=seen))
        oracle = Oracle(gold_patch="gold", fail_to_pass=("a",), pass_to_pass=("b", "c"))
        return Stability(runs, run_of(), run_of(gold=False), oracle, Findings()).find_changing(new)  # type: ignore[arg-type]

    assert changing("clock", OTHER, "b", "c") == {"b"}  # an hour breaks it too
    assert changing("clock", OTHER, "c") == set()
    assert changing("zone", OTHER) == {"b"}
    with pytest.raises(TaskError, match="is not known: user is not tried: the process of the tests sees no change"):
        changing("", {**OTHER, "user": 1})


def test_wrong_solutions_pass_without_the_tests_that_are_left_out() -> None:
    assert run_of("b").passes({"b"})
    assert not run_of("b").passes(())
    assert not run_of("b", "c").passes({"b"})
    assert not run_of("b", counts=False).passes({"b"})


# --- conditions -----------------------------------------------------------------------------------------------------

FLAT = """import unittest
def leaves(suite):
    return [suite] if isinstance(suite, unittest.TestCase) else [leaf for one in suite for leaf in leaves(one)]
class Inner(unittest.TestCase):
    def test_4(self): print(4)
    def test_5(self): print(5)
class T(unittest.TestCase):
    def test_1(self): print(1)
    def test_2(self): print(2)
    def test_3(self):
        print(3)
        unittest.defaultTestLoader.loadTestsFromTestCase(Inner).run(unittest.TestResult())
for _ in range(2):
    unittest.TextTestRunner().run(unittest.TestSuite(leaves(unittest.defaultTestLoader.loadTestsFromTestCase(T))))
"""


@pytest.mark.parametrize(
    ("program", "order", "noted"), [("report_a.py", "3452134521", True), ("a.py", "1234512345", False)]
)
def test_only_a_test_runner_has_its_order_reversed_and_notes_it(
    program: str, order: str, noted: bool, tmp_path: Path
) -> None:
    """Suites that a runner flattens are reversed once, and those that a test runs not at all."""
    (tmp_path / program).write_text(FLAT)
    arguments = (str(tmp_path), 0, "", True, False)
    (tmp_path / "sitecustomize.py").write_text(f"{bundle('conditions')}\nsurround{arguments!r}\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, tmp_path / program], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.replace("\n", "") == order
    seen = tmp_path / "seen"
    assert ("{'reversed': True}\n" in seen.read_text() if seen.exists() else False) is noted


def test_a_call_that_only_runs_tests_stays_one_under_other_conditions() -> None:
    plan = read_plan(TestCommand(test_cmd="PYTHONPATH=src python -m unittest a"), "/testbed")
    assert plan.runner is not None
    changed = surround_plan(plan, "/tmp/x", {"TZ": "Asia/Kolkata"}, reverse=True)
    assert changed.runner is not None
    assert (plan.runner.only_runs_tests, changed.runner.only_runs_tests) == (True, True)
    assert changed.runner.before.endswith(" PYTHONPATH=/tmp/x:src python ")
    assert changed.command.startswith("export TZ=Asia/Kolkata PYTEST_PLUGINS=")
