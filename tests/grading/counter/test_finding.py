"""From the ids of published lists to functions in files."""

import pytest

from swe_gym.grading.counter.finding import Finder, FunctionPlace
from swe_gym.grading.ids import ParsedId, parse_id
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.types import Oracle


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        # pytest
        ("tests/test_a.py::test_b", ParsedId("tests/test_a.py", ("test_b",))),
        ("tests/test_a.py::test_b[x]", ParsedId("tests/test_a.py", ("test_b",))),
        ("tests/test_a.py::test_b[x::y[z]]", ParsedId("tests/test_a.py", ("test_b",))),
        ("tests/test_a.py::test_b[a", ParsedId("tests/test_a.py", ("test_b",))),  # as published lists cut it
        ("./tests/test_a.py::T::test_b[0]", ParsedId("tests/test_a.py", ("T", "test_b"))),
        ("a.py::T::U::test_b", ParsedId("a.py", ("T", "U", "test_b"))),
        # unittest
        ("tests.test_a.T.test_b", ParsedId("tests/test_a.py", ("T", "test_b"))),
        ("test_a.T.test_b", ParsedId("test_a.py", ("T", "test_b"))),
        # Django
        ("test_b (forms.tests.T)", ParsedId("forms/tests.py", ("T", "test_b"))),
        ("test_b (forms.tests.T.test_b)", ParsedId("forms/tests.py", ("T", "test_b"))),
        ("test_b (tests.T)", ParsedId("tests.py", ("T", "test_b"))),
        ("test_b (forms.tests.T) (i=1)", ParsedId("forms/tests.py", ("T", "test_b"))),
        ("Forms have names (really).", ParsedId(title="Forms have names (really).")),
        # sympy, R2E
        ("test_b", ParsedId(names=("test_b",))),
        ("T.test_b", ParsedId(names=("T", "test_b"))),
    ],
)
def test_an_id_is_taken_apart(test: str, expected: ParsedId) -> None:
    assert parse_id(test) == expected


FILES = {
    "tests/test_a.py": (
        "from base import Base, Far\n"
        "def test_b(x): pass\n"
        "class Near:\n    def test_inherited(self): pass\n    class Inner:\n        def test_inner(self): pass\n"
        "class T(Near, Base):\n    def test_c(self):\n        '''Says what it does.\n\n        And more.\n        '''\n"
        "def helper():\n    '''Helps.'''\n"
        "def test_one():\n    '''Twins.'''\n"
        "def test_two():\n    '''Twins.'''\n"
    ),
    "tests/base.py": "class Base:\n    def test_from_base(self): pass\n    def test_twice(self): pass\n",
    "tests/more.py": "class Other:\n    def test_twice(self): pass\n",
    "tests/sub/test_deep.py": "def test_d(): pass\n",
    "tests/forms_tests/__init__.py": "class F:\n    def test_e(self): pass\n",
    "tests/test_broken.py": "def test_b(:\n",
    "lib/pkg/tests/test_near.py": "class R:\n    def test_f(self): pass\ndef test_g(): pass\n",
}


def finder(oracle: Oracle | None = None) -> Finder:
    listing = "".join(f"./{path}\n" for path in FILES)
    sandbox = FakeSandbox(files=dict(FILES), replies=[{"match": "find", "stdout": listing}])
    sandbox.start()
    return Finder(oracle or Oracle(test_files={"tests/test_a.py": "", "lib/pkg/tests/test_near.py": ""}), sandbox)


@pytest.mark.parametrize(
    ("test", "path", "names"),
    [
        ("tests/test_a.py::test_b[1]", "tests/test_a.py", "test_b"),
        ("tests/test_a.py::T::test_c", "tests/test_a.py", "T.test_c"),
        ("tests/test_a.py::T::test_inherited", "tests/test_a.py", "Near.test_inherited"),
        ("tests/test_a.py::Near::Inner::test_inner", "tests/test_a.py", "Near.Inner.test_inner"),
        ("tests/test_a.py::T::test_from_base", "tests/base.py", "Base.test_from_base"),
        ("tests.test_a.T.test_c", "tests/test_a.py", "T.test_c"),
        ("test_a.T.test_inherited", "tests/test_a.py", "Near.test_inherited"),
        ("test_c (test_a.T)", "tests/test_a.py", "T.test_c"),
        ("test_c (tests.test_a.T.test_c)", "tests/test_a.py", "T.test_c"),
        ("test_e (forms_tests.F)", "tests/forms_tests/__init__.py", "F.test_e"),
        ("Says what it does.", "tests/test_a.py", "T.test_c"),
        ("test_b", "tests/test_a.py", "test_b"),
        ("test_g", "lib/pkg/tests/test_near.py", "test_g"),
        ("R.test_f", "lib/pkg/tests/test_near.py", "R.test_f"),
        # the file lies deeper than the id says, or not as deep
        ("test_deep.py::test_d", "tests/sub/test_deep.py", "test_d"),
        ("sub/test_deep.py::test_d", "tests/sub/test_deep.py", "test_d"),
        ("testbed/tests/test_a.py::test_b", "tests/test_a.py", "test_b"),
        ("repo.lib.pkg.tests.test_near.R.test_f", "lib/pkg/tests/test_near.py", "R.test_f"),
    ],
)
def test_a_test_is_found(test: str, path: str, names: str) -> None:
    assert finder().place(test) == FunctionPlace(path, tuple(names.split(".")))


@pytest.mark.parametrize(
    "test",
    [
        "tests/test_a.py::test_none",
        "tests/test_a.py::T::test_c_0_generated",
        "tests/test_a.py::T::test_twice",  # two classes near by have it: which one is inherited cannot be told
        "tests/test_broken.py::test_b[x]",  # the only test_b near by is another one
        "tests/test_broken.py::T::test_from_base",
        "tests/more.py::test_b",
        "tests/test_none.py::test_none",
        "test_none",
        "None.test_none",
        "test_none (nothing.T)",
        "Says nothing.",
        "Twins.",
        "",
        "::",
        "../../x.py::test_b[x]",
    ],
)
def test_generated_and_unknown_tests_have_no_place(test: str) -> None:
    assert finder().place(test) is None


def test_files_of_the_test_patch_and_of_the_command_are_near() -> None:
    patch = (
        "diff --git a/tests/base.py b/tests/base.py\n--- a/tests/base.py\n+++ b/tests/base.py\n@@ -1 +1 @@\n-x\n+y\n"
    )
    named = finder(Oracle(test_patch=patch, test_cmd="./runtests.py lib/pkg/tests/test_near.py"))
    assert named.place("test_from_base") == FunctionPlace("tests/base.py", ("Base", "test_from_base"))
    assert named.place("test_g") == FunctionPlace("lib/pkg/tests/test_near.py", ("test_g",))
    assert named.place("test_d") is None


GENERATED = """\
def add(cls, value):
    def run(self):
        assert f(value) == value
    setattr(cls, f"test_{value}", run)
"""


def test_generated_tests_are_those_of_the_only_function_within_another_that_asserts() -> None:
    files = {"tests/test_gen.py": GENERATED, "tests/test_plain.py": "def test_b():\n    def inner(): return 1\n"}
    sandbox = FakeSandbox(files=dict(files), replies=[{"match": "find", "stdout": "./tests/test_gen.py\n"}])
    sandbox.start()
    found = Finder(Oracle(test_files=files), sandbox)
    place = FunctionPlace("tests/test_gen.py", ("add", "run"))
    assert found.place("tests/test_gen.py::T::test_1") == place
    assert found.place("test_gen.T.test_1") == place
    assert found.place("tests/test_none.py::T::test_1") is None
