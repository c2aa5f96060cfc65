"""Changes of a policy that count, and changes that are set back."""

import pytest

from swe_gym.grading.diff import touched_files
from swe_gym.grading.patch import REGULAR, FileChange, Patch
from swe_gym.grading.protect import Protection
from swe_gym.types import Oracle, Task

TASK = Task(
    task_id="t",
    problem_statement="p",
    env={"PYTHONPATH": "{workdir}/code"},
    oracle=Oracle(
        test_files={"tests/unit/test_hidden.py": ""},
        test_patch="diff --git a/spec/data.json b/spec/data.json\nnew file mode 100644\n",
        test_paths=("checks/*", "*_spec.py"),
        test_cmd="cd {workdir} && bash run_tests.sh && python -m pytest -c ci/test.ini tests",
        fail_to_pass=("tests/other/test_b.py::test_b[x.y]", "pkg/doc.py::pkg.doc.example", "lib.test_c.TestC.test_c"),
    ),
)


def new(path: str) -> FileChange:
    return FileChange(path=path, new=b"x", new_mode=REGULAR)


def changed(path: str) -> FileChange:
    return FileChange(path=path, old=b"y", new=b"x", old_mode=REGULAR, new_mode=REGULAR)


def deleted(path: str) -> FileChange:
    return FileChange(path=path, old=b"y", old_mode=REGULAR)


@pytest.mark.parametrize(
    "change",
    [
        changed("tests/unit/test_hidden.py"),
        changed("spec/data.json"),
        changed("checks/deep/down.txt"),
        changed("pkg/words_spec.py"),
        changed("tests/other/test_b.py"),
        changed("src/lib/test_c.py"),
        changed("run_tests.sh"),
        changed("ci/test.ini"),
        deleted("tests/unit/test_hidden.py"),
        new("conftest.py"),
        changed("tests/conftest.py"),
        new("tests/unit/deep/conftest.py"),
        deleted("tests/unit/conftest.py"),
        new("pytest.ini"),
        new("tests/.pytest.ini"),
        new("pytest.toml"),
        new("tox.ini"),
        new("deep/down/sitecustomize.py"),
        new("usercustomize/__init__.py"),
        new("apport_python_hook.py"),
        new("a/b.pth"),
        new("pytest.py"),
        new("src/_pytest/__init__.py"),
        new("unittest/__init__.py"),
        new("code/json.py"),
        new("json.cpython-311-x86_64-linux-gnu.so"),
        new("tests/hashlib.py"),
        new("x.egg-info/entry_points.txt"),
        deleted("src/pytest/__init__.py"),
        new("tests/unit/test_mine.py"),
        new("tests"),
        new("tests/unit/test_hidden.py/inside.txt"),
    ],
    ids=lambda change: change.path,
)
def test_changes_to_the_tests_are_set_back(change: FileChange) -> None:
    kept, dropped = Protection(TASK).sift(Patch(changes=(change,)))
    assert (kept.changes, dropped) == ((), (change.path,))


@pytest.mark.parametrize(
    "change",
    [
        changed("pkg/doc.py"),
        new("pkg/conftest.py"),
        new("my_tests/conftest.py"),
        new("my_tests/test_mine.py"),
        changed("pyproject.toml"),
        changed("setup.cfg"),
        new("docs/tox.ini"),
        changed("unittest/__init__.py"),
        changed("src/_pytest/runner.py"),
        new("src/_pytest/added.py"),
        new("pkg/json.py"),
        new("pkg/types/__init__.py"),
        new("platform/linux/build.py"),
        new("tests/unit/helpers.py"),
        new("test/__init__.py"),
        deleted("json.py"),
    ],
    ids=lambda change: change.path,
)
def test_everything_else_counts(change: FileChange) -> None:
    kept, dropped = Protection(TASK).sift(Patch(changes=(change,)))
    assert (kept.changes, dropped) == ((change,), ())


BESIDE = Oracle(
    test_files={"adder/test_hidden.py": "", "adder/unit/test_deep.py": ""}, test_cmd="python -m pytest adder"
)


@pytest.mark.parametrize(
    ("path", "test_cmd", "packages", "counts"),
    [
        ("adder/calendar.py", "python -m pytest adder", ("adder",), True),
        ("adder/calendar.py", "python -m pytest adder", (), False),
        ("adder/unit/calendar.py", "python -m pytest adder", ("adder",), False),
        ("adder/unit/calendar.py", "python -m pytest adder", ("adder", "adder/unit"), True),
        ("calendar.py", "python -m pytest adder", ("adder",), False),
        ("adder/calendar.py", "cd adder && python -m pytest", ("adder",), False),
        ("adder/calendar.py", "cd {workdir}/adder; pytest", ("adder",), False),
        ("adder/calendar.py", "python -m unittest adder.test_hidden", ("adder",), True),
        ("adder/calendar.py", "python -m unittest discover -v -s adder -t .", ("adder",), True),
        ("adder/calendar.py", "python -m unittest discover -v adder", ("adder",), False),
        ("adder/calendar.py", "python -W ignore adder/run.py --fast", ("adder",), False),
        ("adder/pytest.py", "python -m pytest adder", (), False),
        ("pluggy.py", "python -m pytest adder", (), False),
        ("adder/attr.py", "python -m pytest adder", ("adder",), True),
        ("attr.py", "python -m pytest adder", (), False),
    ],
)
def test_module_counts_unless_it_shadows_a_standard_one(
    path: str, test_cmd: str, packages: tuple[str, ...], counts: bool
) -> None:
    oracle = BESIDE.model_copy(update={"test_cmd": test_cmd})
    protection = Protection(Task(task_id="t", problem_statement="p", oracle=oracle))
    kept, _ = protection.sift(Patch(changes=(new(path),), packages=packages))
    assert kept.paths == ((path,) if counts else ())


@pytest.mark.parametrize(
    ("path", "script", "counts"),
    [
        ("run.sh", "cd {workdir}\npip install -e .\nbash run.sh\n", False),
        ("run.sh", "cd {workdir}\n./run.sh --fast | tee log.txt", False),
        ("sub/run.sh", "cd {workdir}\n(cd sub && bash run.sh)", False),
        ("sub/run.sh", "cd {workdir}/sub\npython -m build\nsh run.sh", False),
        ("sub/run.sh", "cd {workdir}\nbash run.sh", True),
        ("tool.py", "cd {workdir}\npython tool.py build\nbash run.sh", True),
    ],
)
def test_the_last_line_of_a_script_without_marks_names_the_tests(path: str, script: str, counts: bool) -> None:
    oracle = Oracle(eval_script=script, log_parser="pytest", fail_to_pass=("tests/test_a.py::test_a",))
    kept, _ = Protection(Task(task_id="t", problem_statement="p", oracle=oracle)).sift(Patch(changes=(changed(path),)))
    assert bool(kept.changes) is counts


def test_a_file_that_looks_like_a_test_or_a_library_counts_where_the_product_names_it() -> None:
    def module(path: str, text: str) -> FileChange:
        return FileChange(path=path, new=text.encode(), new_mode=REGULAR)

    changes = (
        module("adder/core.py", "from .turing_test import add\n"),
        module("adder/inner_test.py", "add = sum\n"),
        module("adder/test_own.py", "import adder.lonely_test\n"),
        module("adder/lonely_test.py", ""),
        module("adder/turing_test.py", "from .inner_test import add\nimport attr, packaging.tools\n"),
        module("attr.py", ""),
        module("packaging/__init__.py", ""),
        module("py.py", "import py"),
    )
    protection = Protection(Task(task_id="t", problem_statement="p", oracle=BESIDE))
    kept, dropped = protection.sift(Patch(changes=changes))
    assert dropped == ("adder/lonely_test.py", "adder/test_own.py", "py.py")
    ignored = protection.ignored_folders(kept, "/testbed")
    assert ignored == ["--ignore=/testbed/adder/inner_test.py", "--ignore=/testbed/adder/turing_test.py"]


def test_change_in_the_way_of_a_kept_original_is_set_back() -> None:
    swap = (deleted("conftest.py"), new("conftest.py/x.py"), deleted("checks/a.py"), new("checks"), new("pkg/a.py"))
    kept, dropped = Protection(TASK).sift(Patch(changes=swap))
    assert kept.paths == ("pkg/a.py",)
    assert dropped == ("checks", "checks/a.py", "conftest.py", "conftest.py/x.py")


@pytest.mark.parametrize(
    ("diff", "names"),
    [
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", {"x"}),
        ("diff --git a/with space b/with space\nnew file mode 100644\n", {"with space"}),
        ('diff --git "a/\\303\\251" "b/\\303\\251"\n--- "a/\\303\\251"\n+++ "b/\\303\\251"\n', {"é"}),
        ('diff --git "a/q\\"\\t" "b/q\\"\\t"\ndeleted file mode 100644\n', {'q"\t'}),
        ("diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n", {"x", "y"}),
        ("diff --git a/x b/x\n--- a/x\t\n+++ b/x\t\n@@ -1 +1 @@\n--- a/not\n+++ b/not\n", {"x"}),
        ("--- a/plain\n+++ b/plain\n@@ -1 +1 @@\n-a\n+b\n", {"plain"}),
        ("diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n", {"n"}),
        ("", set()),
    ],
)
def test_the_files_of_a_diff(diff: str, names: set[str]) -> None:
    assert touched_files(diff) == names


def test_absolute_paths_of_an_oracle_are_accepted() -> None:
    oracle = Oracle(
        test_files={"/hidden/test_a.py": ""},
        test_paths=("/r2e_tests/*",),
        fail_to_pass=("/testbed/tests/test_b.py::test_b",),
    )
    protection = Protection(Task(task_id="t", problem_statement="p", oracle=oracle))
    assert not protection.covers(changed("product.py"))
    assert protection.covers(new("conftest.py"))
