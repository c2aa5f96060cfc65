"""Audits: planted defects are found, each by its kind, and a sound task has none."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest

from swe_gym.cli.common import TaskSubset
from swe_gym.curation import AuditRecord, audit_tasks, read_audits, repair_task
from swe_gym.curation.audit_checks import quoted_share
from swe_gym.curation.audit_variants import ChangedFile, break_hunk, make_variants, split_diff
from swe_gym.errors import UsageError
from swe_gym.grading.diff import file_diff
from swe_gym.tasks import digest
from swe_gym.types import FilesWorkspace, FolderWorkspace, Oracle, SandboxNeeds, Task

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
    assert "".join(section.text for section in split_diff(gold)) == gold
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
