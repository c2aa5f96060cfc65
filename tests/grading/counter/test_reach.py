"""Statements that are sure to run are told from those that are not."""

import ast
import gc
import weakref
from textwrap import indent

import pytest

from swe_gym.grading.counter.finding import walk_reached
from swe_gym.grading.counter.source import Source

REACHED = [
    "assert X",
    "with open(p) as h:\n    assert X",
    "with a, b():\n    assert X",
    "with self.subTest(i=1):\n    assert X",
    "with pytest.warns(UserWarning):\n    assert X",
    "with pytest.raises(ValueError):\n    f()\nassert X",
    "try:\n    assert X\nfinally:\n    f()",
    "try:\n    f()\nfinally:\n    assert X",
    "try:\n    f()\nexcept ValueError:\n    pass\nfinally:\n    assert X",
    "try:\n    f()\nexcept ValueError:\n    pass\nassert X",
    "if a:\n    f()\nassert X",
    "while a:\n    break\nassert X",
    "for a in f():\n    break\nassert X",
    "for a in [1]:\n    assert X",
    "for a, b in ((1, 2), (3, 4)):\n    with self.subTest(a=a):\n        assert X",
    "for a in 'ab':\n    assert X",
    "for a in {1}:\n    assert X",
    "for a in {'a': 1}.items():\n    assert X",
    "for a in range(3):\n    assert X",
    "for a in range(1, 3):\n    assert X",
    "for i, a in enumerate([1]):\n    assert X",
    "for a, b in zip([1], 'a'):\n    assert X",
    "for a in sorted({1}):\n    assert X",
    "for a in itertools.product([1], [2]):\n    assert X",
    "CASES = [1]\nfor a in CASES:\n    assert X",
    "CASES = {'a': 1}\nfor a in CASES.values():\n    assert X",
    "for a in GIVEN:\n    assert X",
    "for a in [1]:\n    assert X\n    if a:\n        continue",
    "for a in [1]:\n    for b in f():\n        continue\nassert X",
    "def inner():\n    return 1\nassert X",
    "x = lambda: 1\nassert X",
    "class A:\n    def f(self):\n        return 1\nassert X",
    "assert X\nreturn",
]
NOT_REACHED = [
    "if a:\n    assert X",
    "if a:\n    f()\nelse:\n    assert X",
    "while a:\n    assert X",
    "with pytest.raises(ValueError):\n    assert X",
    "with a, self.assertRaises(ValueError):\n    assert X",
    "with contextlib.suppress(AssertionError):\n    assert X",
    "try:\n    assert X\nexcept AssertionError:\n    pass",
    "try:\n    f()\nexcept ValueError:\n    assert X",
    "try:\n    f()\nexcept ValueError:\n    pass\nelse:\n    assert X",
    "for a in f():\n    assert X",
    "for a in []:\n    assert X",
    "for a in '':\n    assert X",
    "for a in range(f()):\n    assert X",
    "for a in range(0):\n    assert X",
    "for a in range(2, 2):\n    assert X",
    "for a in permutations([1], 2):\n    assert X",
    "for a, b in zip([1], f()):\n    assert X",
    "for a in itertools.product([1], f()):\n    assert X",
    "for a in EMPTY:\n    assert X",
    "for a in LATER:\n    assert X",
    "for a in given:\n    assert X",
    "CASES = [1]\nCASES = f()\nfor a in CASES:\n    assert X",
    "CASES = [1]\nCASES, b = f()\nfor a in CASES:\n    assert X",
    "CASES = [1]\nwith f() as CASES:\n    pass\nfor a in CASES:\n    assert X",
    "for a in [1]:\n    if a:\n        continue\n    assert X",
    "for a in [1]:\n    if a:\n        break\n    assert X",
    "if a:\n    return\nassert X",
    "for a in f():\n    return\nassert X",
    "with a:\n    if b:\n        return\nassert X",
    "def inner():\n    assert X\ninner()",
    "async def inner():\n    assert X",
    "class A:\n    assert X",
    "x = [lambda: f(X)]",
    "match a:\n    case 1:\n        assert X",
]
MODULE = "GIVEN = [1]\nEMPTY = []\nLATER = [1]\nLATER = f()\ngiven = [1]\n"


def is_reached(body: str, keyword: str = "def") -> bool:
    source = Source(f"{MODULE}{keyword} test(self, given, p=1):\n{indent(body, '    ')}\n".encode())
    found = walk_reached(source.functions[("test",)], source)
    return any(isinstance(node, ast.Assert) and source.text_of(node) == "assert X" for node in found)


@pytest.mark.parametrize("body", REACHED)
def test_statements_that_run_whenever_the_test_passes(body: str) -> None:
    assert is_reached(body)


@pytest.mark.parametrize("body", NOT_REACHED)
def test_statements_that_right_work_may_skip(body: str) -> None:
    assert not is_reached(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("async with a:\n    assert X", True),
        ("assert await f()\nassert X", True),
        ("async for a in f():\n    assert X", False),
        ("async for a in f():\n    return\nassert X", False),
    ],
)
def test_coroutines_are_changed_too(body: str, expected: bool) -> None:
    assert is_reached(body, "async def") is expected


def test_the_order_is_that_of_the_text() -> None:
    source = Source(b"def test():\n    a()\n    with b():\n        c()\n    d()\n")
    found = walk_reached(source.functions[("test",)], source)
    assert [node.lineno for node in found] == [2, 3, 4, 5]


def test_what_was_found_goes_with_its_source() -> None:
    """Thousands of tasks have thousands of large trees."""
    source = Source(b"def test():\n    assert X\n")
    function = source.function(("test",))
    assert walk_reached(function, source) is walk_reached(function, source)
    gone = weakref.ref(source)
    del source, function
    gc.collect()
    assert gone() is None
