"""Right work whose tests have odd shapes: each a tiny task that the judge must not hold against the work.

A case has the product before and after, a hidden test file, and what else the workspace holds. Its tests that must
start passing are the functions of the test file, unless the case names them.
"""

# ruff: noqa: E501 - test files are written as single texts

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_gym.grading.diff import file_diff
from swe_gym.grading.patch import REGULAR, FileChange, Patch
from swe_gym.types import FilesWorkspace, Oracle, Task

PYTEST, UNITTEST = "python -m pytest -p no:cacheprovider", "python -m unittest test_new"
OLD, NEW = "def f(s):\n    return s\n", "def f(s):\n    return s * 2\n"


@dataclass(frozen=True)
class Honest:
    """A task and its right work.

    Attributes:
        test: The hidden test file.
        base: Workspace: path -> text. `lib.py` is `OLD` unless given.
        fixed: What right work changes: path -> text. None deletes a file. `lib.py` becomes `NEW` unless given.
        gold: `lib.py` of the gold patch, if that is other work.
        more: Further hidden files.
        tests: Ids of the tests that must start passing; empty takes the functions of the test file.
        command: The test command.
        unforkable: Whether twins cannot play it, so that a second run proves it.
        recorded: Whether its record must say so beforehand: what its twins leave makes the tests of the session fail.
        slow: Whether it takes long.
    """

    test: str
    base: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str | None] = field(default_factory=dict)
    gold: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    command: str = PYTEST
    unforkable: bool = False
    recorded: bool = False
    slow: bool = False

    @property
    def files(self) -> dict[str, str]:
        return {"lib.py": OLD, **self.base}

    @property
    def changes(self) -> dict[str, str | None]:
        return dict(self.fixed) or {"lib.py": NEW}

    @property
    def patch(self) -> Patch:
        return self._patch(self.changes)

    def _patch(self, texts: Mapping[str, str | None]) -> Patch:
        changes = []
        for path, text in texts.items():
            old = self.files.get(path)
            changes.append(
                FileChange(
                    path=path,
                    old=None if old is None else old.encode(),
                    new=None if text is None else text.encode(),
                    old_mode=None if old is None else REGULAR,
                    new_mode=None if text is None else REGULAR,
                )
            )
        return Patch(changes=tuple(changes))

    @property
    def task(self) -> Task:
        gold = "".join(
            file_diff(change.path, change.old, change.new, change.old_mode, change.new_mode)
            for change in self._patch({"lib.py": self.gold} if self.gold else self.changes).changes
        )
        return Task(
            task_id="honest",
            problem_statement="f does not repeat what it gets",
            workspace=FilesWorkspace(files=self.files),
            env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            oracle=Oracle(
                gold_patch=gold,
                test_files={"test_new.py": self.test, **self.more},
                test_cmd=self.command,
                fail_to_pass=self.tests or tuple(ids(self.test, self.command)),
                timeout=60,
            ),
        )


def ids(text: str, command: str) -> list[str]:
    """The ids of a file's test functions."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found.append(f"test_new.py::{node.name}")
        elif isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            glue = "test_new.{}.{}" if "unittest" in command else "test_new.py::{}::{}"
            found += [glue.format(node.name, name) for name in methods if name.startswith("test")]
    return found


def of(names: str, *parameters: str) -> tuple[str, ...]:
    """The ids of a parametrised function."""
    return tuple(f"test_new.py::{name}[{part}]" for name in names.split() for part in parameters)


HONEST: dict[str, Honest] = {}


def case(
    name: str,
    test: str,
    old: str = "",
    new: str = "",
    *,
    tests: tuple[str, ...] = (),
    base: Mapping[str, str] | None = None,
    fixed: Mapping[str, str | None] | None = None,
    more: Mapping[str, str] | None = None,
    gold: str = "",
    command: str = PYTEST,
    unforkable: bool = False,
    recorded: bool = False,
    slow: bool = False,
) -> None:
    before, after = dict(base or {}), dict(fixed or {})
    if new:
        before["lib.py"], after["lib.py"] = old or OLD, new
    HONEST[name] = Honest(
        test,
        before,
        after,
        gold,
        more or {},
        tests=tests,
        command=command,
        unforkable=unforkable or recorded,
        recorded=recorded,
        slow=slow,
    )


# --- the product -----------------------------------------------------------------------------------------------------

case(
    "moved module",
    "from lib.core import f\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    import lib\n    assert lib.f is f\n",
    base={"lib.py": OLD},
    fixed={"lib.py": None, "lib/__init__.py": "from .core import f\n", "lib/core.py": NEW},
)
case(
    "generated code",
    "from lib import f, g\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    assert g('ab') == 'abab'\n",
    OLD,
    "for name in 'fg':\n    exec(f'def {name}(s):\\n    return s * 2\\n')\n",
)
case(
    "data file",
    "from lib import f\n\ndef test_a():\n    assert f('a') == 'one'\n\ndef test_b():\n    assert f('ü') == 'zwei'\n",
    base={"lib.py": "def f(s):\n    return None\n"},
    fixed={
        "lib.py": "import json, pathlib\nD = json.loads((pathlib.Path(__file__).parent / 'd.json').read_text('utf-8'))\nf = D.get\n",
        "d.json": '{"a": "one", "ü": "zwei"}\n',
    },
)
case(
    "binary data",
    "from lib import f\n\ndef test_a():\n    assert f() == b'\\x00\\xff\\x10'\n\ndef test_b():\n    assert f()[1:] == b'\\xff\\x10'\n",
    "def f(): return b''\n",
    "import base64, pathlib\n\ndef f():\n    path = pathlib.Path('blob.bin')\n    path.write_bytes(base64.b64decode('AP8Q'))\n"
    "    return path.read_bytes()\n",
)
case(
    "monkeypatching at import",
    "import json\nimport lib\n\ndef test_a():\n    assert json.dumps({2: 'x'}) == '{ \"2\": \"x\" }'\n\ndef test_b():\n    assert lib.f(3) == 6\n",
    OLD,
    NEW
    + "\nimport json\nplain = json.dumps\njson.dumps = lambda x, **k: plain(x, **k).replace('{', '{ ').replace('}', ' }')\n",
)
case(
    "wildcard import",
    "from lib import *\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    assert g() == 'gg'\n",
    "__all__ = ['f']\ndef f(s): return s\n",
    "__all__ = ['f', 'g']\ndef f(s): return s * 2\ndef g(): return 'gg'\n",
)
case(
    "lazy attributes of a module",
    "import lib\n\ndef test_a():\n    assert lib.answer == 42\n\ndef test_b():\n    assert lib.question == 'why'\n",
    "x = 1\n",
    "def __getattr__(name):\n    try:\n        return {'answer': 42, 'question': 'why'}[name]\n    except KeyError:\n        raise AttributeError(name)\n",
)
case(
    "metaclass and slots",
    "import pytest\nfrom lib import P\n\ndef test_a():\n    p = P(2)\n    assert p.double == 4\n\ndef test_b():\n    with pytest.raises(AttributeError):\n        P(1).other = 3\n\ndef test_c():\n    assert P.made == ['P']\n",
    "class P:\n    made = []\n    double = None\n    def __init__(self, x): pass\n",
    "class M(type):\n    made = []\n    def __init__(cls, name, *rest):\n        M.made.append(name)\n"
    "class P(metaclass=M):\n    __slots__ = ('x',)\n    def __init__(self, x): self.x = x\n    @property\n    def double(self): return self.x * 2\n",
    tests=("test_new.py::test_a", "test_new.py::test_b", "test_new.py::test_c"),
)
case(
    "dataclass and enum",
    "import dataclasses\nfrom lib import Point, Colour\n\ndef test_a():\n    assert Point(1, 2) + Point(3, 4) == Point(4, 6)\n\ndef test_b():\n    assert repr(Point(1, 2)) == 'Point(x=1, y=2)'\n\ndef test_c():\n    assert Colour['RED'].value == 1 and Colour(2) is Colour.BLUE\n\ndef test_d():\n    assert dataclasses.asdict(Point(5, 6)) == {'x': 5, 'y': 6}\n",
    "class Point:\n    def __init__(self, *a): pass\nclass Colour: pass\n",
    "import dataclasses, enum\n@dataclasses.dataclass\nclass Point:\n    x: int\n    y: int\n    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)\n"
    "class Colour(enum.Enum):\n    RED = 1\n    BLUE = 2\n",
)
case(
    "generators",
    "import itertools\nfrom lib import f\n\ndef test_a():\n    assert list(itertools.islice(f(1), 4)) == [1, 2, 4, 8]\n\ndef test_b():\n    g = f(3)\n    assert next(g) == 3\n    assert g.send(10) == 20\n    g.close()\n",
    "def f(x):\n    yield None\n",
    "def f(x):\n    while True:\n        sent = yield x\n        x = (sent or x) * 2\n",
)
case(
    "custom exceptions",
    "import pytest\nfrom lib import f, Bad, Worse\n\ndef test_a():\n    with pytest.raises(Bad, match='no such: 7') as e:\n        f(7)\n    assert e.value.code == 3\n\ndef test_b():\n    with pytest.raises(Worse):\n        f(8)\n\ndef test_c():\n    with pytest.raises(Exception):\n        f(8)\n    assert f(1) == 2\n\ndef test_d():\n    with pytest.raises((KeyError, Bad)) as e:\n        f(7)\n    assert isinstance(e.value.__cause__, ZeroDivisionError)\n",
    "class Bad(Exception): pass\nclass Worse(Bad): pass\ndef f(n): return n\n",
    "class Bad(LookupError):\n    code = 3\nclass Worse(Bad, OSError): pass\ndef f(n):\n    if n == 7:\n        try:\n            1 / 0\n"
    "        except ZeroDivisionError as error:\n            raise Bad(f'no such: {n}') from error\n    if n == 8: raise Worse()\n    return n * 2\n",
)
case(
    "warnings",
    "import warnings, pytest\nfrom lib import f\n\ndef test_a():\n    with pytest.warns(DeprecationWarning, match='use g instead'):\n        assert f(2) == 4\n\ndef test_b():\n    with warnings.catch_warnings(record=True) as seen:\n        warnings.simplefilter('always')\n        f(2)\n    assert [w.category.__name__ for w in seen] == ['DeprecationWarning']\n\ndef test_c(recwarn):\n    f(3)\n    assert len(recwarn) == 1\n",
    OLD,
    "import warnings\ndef f(s):\n    warnings.warn('use g instead', DeprecationWarning, stacklevel=2)\n    return s * 2\n",
)
case(
    "logging",
    "import logging\nfrom lib import f\n\ndef test_a(caplog):\n    with caplog.at_level(logging.INFO):\n        f(2)\n    assert caplog.messages == ['doubling 2']\n\ndef test_b(caplog):\n    f(3)\n    assert caplog.record_tuples == [('lib', logging.WARNING, 'odd 3')]\n",
    OLD,
    "import logging\nlog = logging.getLogger('lib')\ndef f(s):\n    log.info('doubling %s', s)\n    if s % 2: log.warning('odd %s', s)\n    return s * 2\n",
)
case(
    "pid kept by the product",
    "from lib import f\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    assert f(3) == 6\n",
    OLD,
    "import os\nPID = os.getpid()\ndef f(s):\n    if os.getpid() != PID: raise RuntimeError('used after fork')\n    return s * 2\n",
    unforkable=True,
)
case(
    "thread pool of the product",
    "from lib import f\n\ndef test_a():\n    assert f([1, 2]) == [2, 4]\n\ndef test_b():\n    assert f([3]) == [6]\n",
    OLD,
    "from concurrent.futures import ThreadPoolExecutor\nP = ThreadPoolExecutor(2)\nlist(P.map(str, [1, 2]))\n"
    "def f(s):\n    return list(P.map(lambda x: x * 2, s, timeout=2))\n",
    unforkable=True,
    slow=True,
)
case(
    "caches",
    "import lib\n\ndef test_a():\n    assert lib.f(2) == 4\n    assert lib.f.cache_info().misses == 1\n\ndef test_b():\n    assert lib.f(2) == 4\n    assert lib.f.cache_info().hits == 1\n",
    OLD,
    "import functools\n@functools.lru_cache\ndef f(s): return s * 2\n",
)
case(
    "seeded random numbers",
    "import random\nfrom lib import f\n\ndef test_a():\n    random.seed(3)\n    assert f() == random.Random(3).random()\n\ndef test_b():\n    random.seed(4)\n    values = [f() for _ in range(3)]\n    assert len(set(values)) == 3\n",
    "def f(): return 0\n",
    "import random\ndef f(): return random.random()\n",
)
case(
    "unseeded random numbers",
    "from lib import f\n\ndef test_a():\n    assert f() in range(100)\n\ndef test_b():\n    assert 0 <= f() < 100\n\ndef test_c():\n    assert isinstance(f(), int)\n",
    "def f(): return None\n",
    "import random\ndef f(): return random.randrange(100)\n",
)
case(
    "weak references and garbage",
    "import gc, weakref\nfrom lib import Node\n\ndef test_a():\n    n = Node(2)\n    r = weakref.ref(n)\n    del n\n    gc.collect()\n    assert r() is None\n    assert Node.alive == 0\n\ndef test_b():\n    n = Node(3)\n    assert Node.alive == 1 and n.double == 6\n",
    "class Node:\n    alive = 5\n    def __init__(self, x): self.double = None\n",
    "class Node:\n    alive = 0\n    def __init__(self, x):\n        Node.alive += 1\n        self.double = 2 * x\n    def __del__(self): Node.alive -= 1\n",
)
case(
    "atexit and finalizers",
    "from lib import f\n\ndef test_a():\n    assert f(2) == 4\n",
    OLD,
    NEW + "import atexit, pathlib\natexit.register(lambda: pathlib.Path('bye').write_text('bye'))\n",
)

# --- state -----------------------------------------------------------------------------------------------------------

CLEAN_OLD = "R = {}\ndef f(k): return None\n"
CLEAN_NEW = "R = {}\ndef f(k):\n    if k in R: raise KeyError(k)\n    R[k] = 1\n    return 1\n"
case(
    "clean-up at the end",
    "import lib\n\ndef test_a():\n    assert lib.f('k') == 1\n    del lib.R['k']\n\ndef test_b():\n    assert lib.f('k') == 1\n    del lib.R['k']\n\ndef test_c():\n    assert lib.f('k') == 1\n    lib.R.clear()\n",
    CLEAN_OLD,
    CLEAN_NEW,
)
case(
    "state between tests",
    "import lib\n\ndef test_a():\n    assert lib.f() == 1\n\ndef test_b():\n    assert lib.f() == 2\n\ndef test_c():\n    assert lib.f() == 3\n",
    "def f(): return 0\n",
    "N = []\ndef f():\n    N.append(1)\n    return len(N)\n",
)
case(
    "state of a class between methods",
    "import unittest\nfrom lib import f\n\nclass T(unittest.TestCase):\n    seen = []\n    def test_1(self):\n        self.seen.append(f(1))\n        self.assertEqual(self.seen, [2])\n    def test_2(self):\n        self.seen.append(f(2))\n        self.assertEqual(self.seen, [2, 4])\n    def test_3(self):\n        self.assertEqual(len(self.seen), f(1))\n",
    command=UNITTEST,
)
case(
    "environment variables",
    "import os\nfrom lib import f\n\ndef test_a():\n    os.environ['HOW'] = 'twice'\n    assert f('a') == 'aa'\n\ndef test_b():\n    assert os.environ['HOW'] == 'twice' and f('b') == 'bb'\n    del os.environ['HOW']\n\ndef test_c(monkeypatch):\n    monkeypatch.setenv('HOW', 'never')\n    assert f('c') == 'c!'\n",
    OLD,
    "import os\ndef f(s): return s * 2 if os.environ.get('HOW') == 'twice' else s + '!'\n",
)
case(
    "working directory",
    "import os\nfrom lib import f\n\ndef test_a(tmp_path, monkeypatch):\n    monkeypatch.chdir(tmp_path)\n    f('x')\n    assert os.listdir('.') == ['x.txt']\n\ndef test_b(tmp_path):\n    before = os.getcwd()\n    os.chdir(tmp_path)\n    try:\n        assert f('y') == 'y.txt'\n    finally:\n        os.chdir(before)\n",
    OLD,
    "def f(s):\n    open(s + '.txt', 'w').close()\n    return s + '.txt'\n",
)
case(
    "file left in the workspace",
    "import os\nfrom lib import f\n\ndef test_a():\n    assert not os.path.exists('out.txt')\n    open('out.txt', 'w').write(f('a'))\n    assert open('out.txt').read() == 'aa'\n\ndef test_b():\n    os.remove('out.txt')\n    assert f('b') == 'bb'\n",
    recorded=True,
)
case(
    "folder made and never removed",
    "import os\nfrom lib import f\n\ndef test_a():\n    os.mkdir('fixed-name')\n    assert f('a') == 'aa'\n\ndef test_b():\n    assert f('b') == 'bb' and os.path.isdir('fixed-name')\n",
)
case(
    "folder made below another and never removed",
    "import os\nfrom lib import f\n\ndef test_a():\n    os.mkdir('data/fixed-name')\n    assert f('a') == 'aa'\n\ndef test_b():\n    assert f('b') == 'bb'\n",
    base={"data/keep.txt": "x\n"},
    recorded=True,
)
case(
    "file that counts its runs",
    "import pathlib\nfrom lib import f\n\ndef test_a():\n    path = pathlib.Path('count.txt')\n    path.write_text(str(int(path.read_text()) + 1))\n    assert path.read_text() == '1' and f('a') == 'aa'\n",
    base={"count.txt": "0"},
    recorded=True,
)

# --- pytest ----------------------------------------------------------------------------------------------------------

case(
    "fixtures of module, class and session",
    "import pytest\nfrom lib import f\n\nSEEN = []\n\n@pytest.fixture(scope='session')\ndef s():\n    SEEN.append('s'); yield f(1); SEEN.append('-s')\n@pytest.fixture(scope='module')\ndef m(s):\n    SEEN.append('m'); yield s + f(1); SEEN.append('-m')\n@pytest.fixture(scope='class')\ndef c(m):\n    SEEN.append('c'); yield m + f(1); SEEN.append('-c')\n@pytest.fixture(autouse=True)\ndef each():\n    SEEN.append('e'); yield; SEEN.append('-e')\n\nclass TestX:\n    def test_a(self, c):\n        assert c == 6\n    def test_b(self, c, m):\n        assert (c, m) == (6, 4)\n    def test_c(self):\n        assert SEEN.count('c') == 1 and f(3) == 6\n\ndef test_after(m):\n    assert m == 4 and SEEN.count('-c') == 1 and SEEN.count('m') == 1\n",
)
case(
    "parametrised",
    "import pytest\nfrom lib import f\n\n@pytest.mark.parametrize('given, want', [(1, 2), ('a', 'aa'), ([], [])], ids=['n', 's', 'l'])\ndef test_a(given, want):\n    assert f(given) == want\n    assert f(5) == 10\n",
    tests=of("test_a", "n", "s"),
)
case(
    "parametrised fixture",
    "import pytest\nfrom lib import f\n\n@pytest.fixture(params=[1, 2], scope='module')\ndef n(request):\n    return f(request.param)\n\ndef test_a(n):\n    assert n in (2, 4) and f(7) == 14\n\ndef test_b(n):\n    assert f(n) == n * 2 and f('q') == 'qq'\n",
    tests=of("test_a test_b", "1", "2"),
)
case(
    "fixtures of conftest",
    "def test_a(doubled):\n    assert doubled == 4\n\ndef test_b(make):\n    assert make('x') == 'xx'\n",
    more={
        "conftest.py": "import pytest\nfrom lib import f\n\n@pytest.fixture\ndef doubled(): return f(2)\n\n@pytest.fixture(scope='session')\ndef make(): return f\n"
    },
)
case(
    "capture",
    "import os, sys\nfrom lib import f\n\ndef test_a(capfd):\n    os.write(1, f('a').encode())\n    assert capfd.readouterr().out == 'aa'\n\ndef test_b(capsys):\n    print(f('b'))\n    print(f('e'), file=sys.stderr)\n    assert capsys.readouterr() == ('bb\\n', 'ee\\n')\n",
)
case(
    "tmp_path and tmp_path_factory",
    "from lib import f\n\ndef test_a(tmp_path):\n    (tmp_path / 'x').write_text(f('a'))\n    assert (tmp_path / 'x').read_text() == 'aa'\n    assert [p.name for p in tmp_path.iterdir()] == ['x']\n\ndef test_b(tmp_path_factory):\n    d = tmp_path_factory.mktemp('d')\n    assert d.name == 'd0' and f('b') == 'bb'\n",
    recorded=True,
)
case(
    "skipped and expected failures beside",
    "import pytest\nfrom lib import f\n\n@pytest.mark.skip\ndef test_s(): assert 0\n\n@pytest.mark.xfail\ndef test_x(): assert f(2) == 5\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    if f(1) == 1: pytest.skip('old')\n    assert f('b') == 'bb'\n\ndef test_f():\n    assert f(2) == 99\n",
    tests=("test_new.py::test_a", "test_new.py::test_b"),
)
case(
    "decorators without wraps",
    "import functools\nfrom lib import f\n\ndef plain(test):\n    def test_run():\n        test()\n    return test_run\n\ndef wrapped(test):\n    @functools.wraps(test)\n    def run(*args, **kwargs):\n        return test(*args, **kwargs)\n    return run\n\n@plain\ndef test_a():\n    assert f(2) == 4\n\n@wrapped\ndef test_b():\n    assert f('b') == 'bb'\n\n@wrapped\n@plain\ndef test_c():\n    assert f(3) == 6\n",
)
case(
    "mock.patch decorators",
    "from unittest import mock\nimport lib\n\n@mock.patch('lib.helper', return_value=7)\ndef test_a(helper):\n    assert lib.f(2) == 14\n    helper.assert_called_once_with(2)\n\n@mock.patch.object(lib, 'helper', autospec=True)\ndef test_b(helper):\n    helper.side_effect = [1, 2]\n    assert (lib.f(0), lib.f(0)) == (2, 4)\n    assert helper.call_args_list == [mock.call(0), mock.call(0)]\n\ndef test_c():\n    with mock.patch.dict('os.environ', {'A': 'b'}, clear=True):\n        assert lib.f(2) == 6\n",
    "def helper(x): return x\ndef f(s): return s\n",
    "def helper(x): return x + 1\ndef f(s): return helper(s) * 2\n",
)
case(
    "tests that call other tests",
    "from lib import f\n\ndef test_a():\n    assert f(2) == 4\n\ndef test_b():\n    test_a()\n    assert f('b') == 'bb'\n\ndef test_c():\n    for test in (test_a, test_b):\n        test()\n    assert f(3) == 6\n",
)
case(
    "class inheritance",
    "from lib import f\n\nclass Base:\n    n = 1\n    def test_a(self):\n        assert f(self.n) == self.n * 2\n        assert f('ab') == 'abab'\n\nclass TestOne(Base):\n    n = 2\n\nclass TestTwo(Base):\n    n = 3\n    def test_a(self):\n        super().test_a()\n        assert f(self.n) == 6\n\nclass TestThree(TestTwo):\n    def test_b(self):\n        assert f('c') == 'cc'\n",
    tests=tuple(
        f"test_new.py::{name}"
        for name in ("TestOne::test_a", "TestTwo::test_a", "TestThree::test_a", "TestThree::test_b")
    ),
)
case(
    "setup and teardown of nose's kind",
    "from lib import f\n\nLOG = []\n\ndef setup_module(): LOG.append('m')\ndef teardown_module(): LOG.clear()\ndef setup_function(function): LOG.append(function.__name__)\n\ndef test_a():\n    assert LOG == ['m', 'test_a'] and f(2) == 4\n\nclass TestX:\n    @classmethod\n    def setup_class(cls): cls.x = f(1)\n    def setup_method(self): self.y = f(self.x)\n    def test_b(self):\n        assert (self.x, self.y) == (2, 4)\n    def test_c(self):\n        self.x = 9\n        assert f(self.y) == 8\n",
)
case(
    "source of the test",
    "import inspect\nfrom lib import f\n\ndef test_a():\n    assert f(2) == 4\n    assert 'f(2)' in inspect.getsource(test_a)\n\ndef test_b():\n    assert f('bo') == 'bobo'\n",
)
case(
    "doctest-like",
    "import doctest\nimport lib\n\ndef test_a():\n    result = doctest.testmod(lib)\n    assert (result.failed, result.attempted) == (0, 2)\n\ndef test_b():\n    assert 'aa' in lib.f.__doc__\n",
    OLD,
    'def f(s):\n    """Doubles.\n\n    >>> f(2)\n    4\n    >>> f("a")\n    \'aa\'\n    """\n    return s * 2\n',
)
case(
    "hypothesis",
    "from string import ascii_letters\nfrom hypothesis import given, settings, strategies as st, example\nfrom lib import f\n\n@given(st.integers())\n@settings(max_examples=15, database=None, deadline=None)\ndef test_a(n):\n    assert f(n) == n + n\n    assert f(1) == 2\n\n@settings(max_examples=15, database=None, deadline=None)\n@given(st.text(ascii_letters), st.lists(st.integers()))\n@example('a', [1])\ndef test_b(s, l):\n    assert f(s) == s + s and f(l) == l + l\n    assert f('x') == 'xx'\n",
    slow=True,
)
case(
    "asserts with messages, walrus, f-strings and comprehensions",
    "from lib import f\n\ndef test_a():\n    assert (got := f(2)) == 4, f'{got=} is not {4}'\n\ndef test_b():\n    assert [f(x) for x in (1, 2)] == [2, 4], [\n        'a',\n    ]\n\ndef test_c():\n    assert f('é') == 'éé' and f'{f(1)}-{f(2):03d}' == '2-004'\n\ndef test_d():\n    want = {\n        'a': (1, [2, 'x']),  # comment }\n        'b': None,\n    }\n    assert {'a': (1, [f(1), 'x']), 'b': None} == want\n",
)
case(
    "pattern matching and regular expressions",
    "import re\nfrom lib import f\n\ndef test_a():\n    match f([1, 2]):\n        case [1, 2, *rest]:\n            assert rest == [1, 2]\n        case _:\n            raise AssertionError\n\ndef test_b():\n    assert re.fullmatch(r'(\\w+) \\1', f('ab ') [:-1])\n    assert f('ab') == 'abab'\n\ndef test_c():\n    assert re.findall('a+', f('aab')) == ['aa', 'aa']\n",
)
case(
    "approximate numbers",
    "import math, pytest\nfrom lib import f\n\ndef test_a():\n    assert f(0.1) == pytest.approx(0.2)\n\ndef test_b():\n    assert math.isclose(f(1 / 3), 0.6666666, rel_tol=1e-6)\n\ndef test_c():\n    assert f([1.5, 2.5]) == pytest.approx([1.5, 2.5, 1.5, 2.5], abs=0.01)\n\ndef test_d():\n    assert round(f(1.234), 2) == 2.47\n",
)
case(
    "order that does not matter",
    "from collections import Counter\nfrom lib import f\n\ndef test_a():\n    assert set(f(['b', 'a'])) == set(['a', 'b'])\n\ndef test_b():\n    assert sorted(f([2, 1])) == [1, 1, 2, 2]\n\ndef test_c():\n    assert Counter(f('ab')) == Counter(['b', 'a', 'b', 'a'])\n    assert f('ab') in ('abab', 'baba')\n\ndef test_d():\n    assert {1, 2} <= set(f([1, 2, 3])) and f(1) == 2\n\ndef test_e():\n    assert 1 in f([1, 2])\n    assert 2 in f([1, 2])\n    assert f([3]) == [3, 3]\n",
    "def f(s): return None\n",
    "import random\ndef f(s):\n    s = s * 2\n    if isinstance(s, list): random.shuffle(s)\n    return s\n",
    tests=tuple(f"test_new.py::test_{name}" for name in "abce"),
)
case(
    "pytester-like run within a run",
    "import subprocess, sys\nfrom lib import f\n\ndef test_a(tmp_path):\n    (tmp_path / 'test_in.py').write_text('def test_in(): assert %r == 4' % f(2))\n    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', str(tmp_path)], capture_output=True, text=True)\n    assert '1 passed' in done.stdout\n    assert done.returncode == 0\n\ndef test_b():\n    assert f('b') == 'bb'\n",
    slow=True,
)

# --- unittest --------------------------------------------------------------------------------------------------------

case(
    "setUpClass, subTest and clean-ups",
    "import unittest\nfrom lib import f\n\nLOG = []\n\ndef setUpModule():\n    LOG.append('module')\n\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        cls.seen = []\n    def setUp(self):\n        self.addCleanup(LOG.append, self.id())\n    def test_a(self):\n        self.seen.append(f(1))\n        self.assertEqual(self.seen, [2])\n    def test_b(self):\n        for n in (1, 2):\n            with self.subTest(n=n):\n                self.assertEqual(f(n), 2 * n)\n        self.assertEqual(self.seen, [2])\n        self.assertIn('test_new.T.test_a', LOG)\n",
    command=UNITTEST,
)
case(
    "IsolatedAsyncioTestCase",
    "import asyncio, unittest\nfrom lib import f\n\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def asyncSetUp(self):\n        await asyncio.sleep(0)\n        self.queue = asyncio.Queue()\n    async def test_a(self):\n        await self.queue.put(f(2))\n        self.assertEqual(await self.queue.get(), 4)\n    async def test_b(self):\n        got = await asyncio.gather(*(asyncio.to_thread(f, n) for n in (1, 2)))\n        self.assertEqual(got, [2, 4])\n    async def test_c(self):\n        with self.assertRaises(asyncio.TimeoutError):\n            await asyncio.wait_for(asyncio.sleep(5), 0.01)\n        self.assertEqual(f('c'), 'cc')\n",
    command=UNITTEST,
)
case(
    "super in unittest",
    "import unittest\nfrom lib import f\n\nclass A(unittest.TestCase):\n    def setUp(self):\n        self.n = 2\n    def test_a(self):\n        self.assertEqual(f(self.n), self.n * 2)\n        self.assertEqual(f('ab'), 'abab')\n\nclass B(A):\n    def setUp(self):\n        super().setUp()\n        self.n = 3\n    def test_a(self):\n        super().test_a()\n        self.assertEqual(f(self.n), 6)\n",
    command=UNITTEST,
)
case(
    "generated methods",
    "import unittest\nfrom lib import f\n\nclass T(unittest.TestCase):\n    pass\n\ndef add(n):\n    def run(self):\n        self.assertEqual(f(n), n * 2)\n        self.assertEqual(f('x'), 'xx')\n    setattr(T, f'test_{n}', run)\n\nfor n in (1, 2, 3):\n    add(n)\n",
    tests=tuple(f"test_new.T.test_{n}" for n in (1, 2, 3)),
    command=UNITTEST,
    unforkable=True,
)
case(
    "unittest classes under pytest",
    "import unittest\nfrom lib import f\n\nclass T(unittest.TestCase):\n    maxDiff = None\n    @classmethod\n    def setUpClass(cls): cls.n = f(1)\n    def test_a(self):\n        self.assertEqual(f(self.n), 4)\n    @unittest.skipIf(f(1) == 1, 'old')\n    def test_b(self):\n        self.assertListEqual(f([1]), [1, 1])\n    def test_c(self):\n        self.assertDictEqual({'a': f(1)}, {'a': 2})\n    def test_d(self):\n        self.assertCountEqual(f([1, 2]), [2, 1, 1, 2])\n    def test_e(self):\n        with self.assertRaisesRegex(TypeError, 'unsupported operand'):\n            f(None)\n",
)
case(
    "load_tests",
    "import unittest\nfrom lib import f\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(2), 4)\n    def test_b(self):\n        self.assertEqual(f('b'), 'bb')\n\ndef load_tests(loader, tests, pattern):\n    suite = unittest.TestSuite()\n    for name in ('test_b', 'test_a'):\n        suite.addTest(T(name))\n    return suite\n",
    command=UNITTEST,
)
case(
    "own base class with own assertions",
    "import unittest\nfrom lib import f\n\nclass Case(unittest.TestCase):\n    def assertDoubles(self, given, want):\n        self.assertEqual(f(given), want)\n    def run(self, result=None):\n        self.ran = True\n        return super().run(result)\n\nclass T(Case):\n    def test_a(self):\n        self.assertDoubles(2, 4)\n        self.assertTrue(self.ran)\n    def test_b(self):\n        self.assertDoubles('b', 'bb')\n",
    command=UNITTEST,
)
case(
    "own runner of tests with __call__",
    "import unittest\nfrom lib import f\n\nclass Case(unittest.TestCase):\n    def __call__(self, result=None):\n        self.before = f(1)\n        return super().__call__(result)\n\nclass T(Case):\n    def test_a(self):\n        self.assertEqual(self.before, 2)\n    def test_b(self):\n        self.assertEqual(f(self.before), 4)\n",
    command=UNITTEST,
)

# --- processes, threads, network, time -------------------------------------------------------------------------------

case(
    "thread of a fixture",
    "import pytest, threading, queue\nfrom lib import f\n\n@pytest.fixture(scope='module')\ndef worker():\n    i, o = queue.Queue(), queue.Queue()\n    def go():\n        while True:\n            x = i.get()\n            if x is None: return\n            o.put(f(x))\n    t = threading.Thread(target=go, daemon=True); t.start()\n    yield i, o\n    i.put(None)\n\ndef test_a(worker):\n    worker[0].put(2)\n    assert worker[1].get(timeout=2) == 4\n\ndef test_b(worker):\n    worker[0].put(3)\n    assert worker[1].get(timeout=2) == 6\n",
    unforkable=True,
    slow=True,
)
case(
    "threads within a test",
    "import threading\nfrom concurrent.futures import ThreadPoolExecutor\nfrom lib import f\n\ndef test_a():\n    with ThreadPoolExecutor(3) as pool:\n        assert list(pool.map(f, range(4))) == [0, 2, 4, 6]\n\ndef test_b():\n    out = []\n    t = threading.Thread(target=lambda: out.append(f(2)))\n    t.start(); t.join()\n    assert out == [4]\n",
)
case(
    "server in a thread",
    "import pytest, threading, http.server, urllib.request\nfrom lib import f\n\nclass H(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        self.send_response(200); self.end_headers(); self.wfile.write(f(self.path.strip('/')).encode())\n    def log_message(self, *a): pass\n\n@pytest.fixture\ndef url():\n    s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\n    t = threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True); t.start()\n    yield 'http://127.0.0.1:%d/' % s.server_port\n    s.shutdown(); s.server_close()\n\ndef test_a(url):\n    assert urllib.request.urlopen(url + 'ab', timeout=5).read() == b'abab'\n\ndef test_b(url):\n    assert urllib.request.urlopen(url + 'c', timeout=5).read() == b'cc'\n",
)
case(
    "fixed port",
    "import socket\nfrom lib import f\n\ndef test_a():\n    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', 38765)); s.listen()\n    assert f(2) == 4\n    s.close()\n\ndef test_b():\n    s = socket.socket(); s.bind(('127.0.0.1', 38765))\n    assert f('x') == 'xx'\n    s.close()\n",
)
case(
    "sqlite in memory and in a file of the session",
    "import pytest, sqlite3\nfrom lib import f\n\n@pytest.fixture(scope='session')\ndef db(tmp_path_factory):\n    c = sqlite3.connect(tmp_path_factory.mktemp('d') / 'x.db'); c.execute('create table t (k integer primary key, v text)'); c.commit()\n    yield c\n    c.close()\n\n@pytest.fixture(scope='module')\ndef memory():\n    c = sqlite3.connect(':memory:'); c.execute('create table t (v)')\n    yield c\n\ndef test_a(db):\n    db.execute('insert into t values (1, ?)', (f('a'),)); db.rollback()\n    assert db.execute('select count(*) from t').fetchone() == (0,) and f('a') == 'aa'\n\ndef test_b(memory):\n    memory.execute('insert into t values (?)', (f('b'),))\n    assert memory.execute('select v from t').fetchall() == [('bb',)]\n\ndef test_c(memory):\n    assert memory.execute('select count(*) from t').fetchone() == (1,) and f('c') == 'cc'\n",
)
case(
    "rows committed to a file of the session",
    "import pytest, sqlite3\nfrom lib import f\n\n@pytest.fixture(scope='session')\ndef db(tmp_path_factory):\n    c = sqlite3.connect(tmp_path_factory.mktemp('d') / 'x.db'); c.execute('create table t (k integer primary key, v text)'); c.commit()\n    yield c\n\ndef test_a(db):\n    db.execute('insert into t values (1, ?)', (f('a'),)); db.commit()\n    assert db.execute('select v from t where k = 1').fetchone() == ('aa',)\n",
    unforkable=False,
)
case(
    "subprocess of the test",
    "import subprocess, sys\nfrom lib import f\n\ndef test_a():\n    out = subprocess.check_output([sys.executable, '-c', 'import lib; print(lib.f(2))'], text=True)\n    assert out == '4\\n'\n\ndef test_b():\n    p = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n    assert p.communicate(f('x'))[0] == 'xx'\n",
)
case(
    "subprocess of the session",
    "import pytest, subprocess, sys\nfrom lib import f\n\n@pytest.fixture(scope='session')\ndef child():\n    p = subprocess.Popen([sys.executable, '-uc', 'import sys\\nfor l in sys.stdin: print(l.strip()*2)'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n    yield p\n    p.kill(); p.wait()\n\ndef test_a(child):\n    child.stdin.write('ab\\n'); child.stdin.flush()\n    assert child.stdout.readline().strip() == f('ab')\n    assert f('a') == 'aa'\n\ndef test_b(child):\n    child.stdin.write('c\\n'); child.stdin.flush()\n    assert child.stdout.readline() == 'cc\\n' and f('c') == 'cc'\n",
)
case(
    "multiprocessing",
    "import multiprocessing\nfrom lib import f\n\ndef test_a():\n    with multiprocessing.get_context('fork').Pool(2) as p:\n        assert p.map(f, [1, 2]) == [2, 4]\n\ndef test_b():\n    with multiprocessing.get_context('spawn').Pool(1) as p:\n        assert p.map(f, ['a']) == ['aa']\n",
    slow=True,
)
case(
    "os.fork within a test",
    "import os\nfrom lib import f\n\ndef test_a():\n    r, w = os.pipe()\n    pid = os.fork()\n    if not pid:\n        os.write(w, f('a').encode()); os._exit(0)\n    os.waitpid(pid, 0)\n    assert os.read(r, 9) == b'aa'\n\ndef test_b():\n    pid = os.fork()\n    if not pid:\n        os._exit(f(2))\n    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4\n",
)
case(
    "asyncio",
    "import asyncio\nfrom lib import f\n\nasync def later(x):\n    await asyncio.sleep(0.001)\n    return f(x)\n\ndef test_a():\n    assert asyncio.run(later(2)) == 4\n\ndef test_b():\n    loop = asyncio.new_event_loop()\n    try:\n        assert loop.run_until_complete(later('b')) == 'bb'\n    finally:\n        loop.close()\n\nLOOP = asyncio.new_event_loop()\n\ndef test_c():\n    assert LOOP.run_until_complete(later(3)) == 6\n\ndef test_d():\n    assert LOOP.run_until_complete(LOOP.run_in_executor(None, f, 4)) == 8\n",
)
case(
    "signals",
    "import os, signal\nfrom lib import f\n\ndef test_a():\n    signal.alarm(5)\n    assert f(2) == 4\n    signal.alarm(0)\n\ndef test_b():\n    got = []\n    old = signal.signal(signal.SIGUSR1, lambda *a: got.append(f(1)))\n    os.kill(os.getpid(), signal.SIGUSR1)\n    signal.signal(signal.SIGUSR1, old)\n    assert got == [2]\n\ndef test_c():\n    old = signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n    assert f('c') == 'cc'\n    signal.signal(signal.SIGCHLD, old)\n",
)
case(
    "settrace and setprofile",
    "import sys\nfrom lib import f\n\ndef test_a():\n    seen = []\n    sys.settrace(lambda *a: seen.append(1))\n    f(1)\n    sys.settrace(None)\n    assert len(seen) == 1 and f(3) == 6\n\ndef test_b():\n    seen = []\n    sys.setprofile(lambda frame, event, arg: seen.append(event))\n    f(1)\n    sys.setprofile(None)\n    assert seen[:2] == ['call', 'return'] and f(4) == 8\n",
)
case(
    "clock and deadline",
    "import time\nfrom lib import f\n\ndef test_a():\n    start = time.monotonic()\n    assert f(2) == 4\n    assert time.monotonic() - start < 5\n\ndef test_b(monkeypatch):\n    monkeypatch.setattr(time, 'time', lambda: 1000.0)\n    monkeypatch.setattr(time, 'monotonic', lambda: 1000.0)\n    assert f(time.time()) == 2000.0\n",
)
case(
    "frozen clock for the whole session",
    "import pytest, time\nfrom lib import f\n\n@pytest.fixture(scope='session', autouse=True)\ndef frozen():\n    old = time.monotonic\n    time.monotonic = lambda: 5.0\n    yield\n    time.monotonic = old\n\ndef test_a():\n    assert f(time.monotonic()) == 10.0\n\ndef test_b():\n    assert f('b') == 'bb'\n",
)
case(
    "open is replaced",
    "import builtins, io\nfrom unittest import mock\nfrom lib import f\n\ndef test_a():\n    with mock.patch('builtins.open', mock.mock_open(read_data='ab')):\n        assert f(open('x').read()) == 'abab'\n\ndef test_b(monkeypatch):\n    import os\n    monkeypatch.setattr(os, 'getpid', lambda: 7)\n    monkeypatch.setattr(os, 'fork', None)\n    assert f(os.getpid()) == 14\n",
)
case(
    "os is replaced for the whole module",
    "import os, pytest\nfrom lib import f\n\n@pytest.fixture(scope='module', autouse=True)\ndef fake():\n    patch = pytest.MonkeyPatch()\n    patch.setattr(os, 'listdir', lambda path='.': ['a'])\n    patch.setattr(os, 'getpid', lambda: 7)\n    yield\n    patch.undo()\n\ndef test_a():\n    assert f(os.listdir('.')) == ['a', 'a']\n\ndef test_b():\n    assert f(os.getpid()) == 14\n",
)
case(
    "resource limits and recursion",
    "import sys, pytest\nfrom lib import f\n\ndef test_a():\n    def deep(n): return n and deep(n - 1)\n    with pytest.raises(RecursionError):\n        deep(10 ** 6)\n    assert f(2) == 4\n\ndef test_b():\n    old = sys.getrecursionlimit()\n    sys.setrecursionlimit(5000)\n    assert f('b') == 'bb'\n    sys.setrecursionlimit(old)\n",
)
case(
    "modules replaced and loaded again",
    "import importlib, sys, types\nimport lib\n\ndef test_a():\n    sys.modules['dep'] = types.SimpleNamespace(by=3)\n    importlib.reload(lib)\n    assert lib.f(2) == 6\n    del sys.modules['dep']\n\ndef test_b():\n    importlib.reload(lib)\n    assert lib.f(2) == 4\n\ndef test_c():\n    sys.modules.pop('lib')\n    import lib as again\n    assert again is not lib and again.f('c') == 'cc'\n",
    OLD,
    "try:\n    from dep import by\nexcept ImportError:\n    by = 2\ndef f(s): return s * by\n",
)
if sys.platform == "linux":
    case(
        "children and sessions",
        "import os, subprocess, sys\nfrom lib import f\n\ndef test_a():\n    p = subprocess.Popen(['sleep', '30'], start_new_session=True)\n    assert f(2) == 4\n    p.kill(); p.wait()\n\ndef test_b():\n    assert len(os.listdir('/proc/self/task')) == 1 and f('b') == 'bb'\n",
    )
case(
    "numpy",
    "import numpy as np\nfrom lib import f\n\nA = np.ones((60, 60)) @ np.ones((60, 60))\n\ndef test_a():\n    assert (f(A) @ A)[0, 0] == 432000.0\n\ndef test_b():\n    np.testing.assert_allclose(f(np.arange(3)), [0, 2, 4])\n\ndef test_c():\n    assert f(A).shape == (60, 60) and f(np.float64(1.5)) == 3.0\n\ndef test_d():\n    np.testing.assert_array_equal(f(np.array([[1, 2]])), np.array([[2, 4]]))\n",
)

# A failure of an assertion that is softened in a twin must not disturb the ones after it.
case(
    "several assertions",
    """\
import warnings
from unittest import mock

import pytest

from lib import f, warned

def test_each():
    seen = iter([f("a"), f("b"), f("c")])
    assert next(seen) == "aa"
    assert next(seen) == "bb", "the second one"
    called = mock.Mock()
    called(f("red tea"), 12)
    called.assert_called_once_with("red teared tea", 12)
    with pytest.raises(ValueError, match="no green tea"):
        warned("")
    with pytest.warns(UserWarning, match="an old name"):
        assert warned("b") == "bb"
    for value in ("x", "y"):
        assert f(value) == value * 2
    assert [f(part) for part in ("d", "e")] == [
        "dd",
        "ee",  # the last one
    ]
    assert list(seen) == ["cc"]
""",
    new="""\
import warnings

def f(s):
    return s * 2

def warned(s):
    if not s:
        raise ValueError("no green tea")
    warnings.warn("an old name")
    return f(s)
""",
)
case(
    "several assertions in unittest",
    """\
import unittest

from lib import f

class T(unittest.TestCase):
    def test_each(self):
        seen = [f("one "), f(7), f([1, 2])]
        self.assertEqual(seen.pop(), [1, 2, 1, 2])
        self.assertEqual(seen.pop(), 14)
        with self.subTest("text"):
            self.assertEqual(seen.pop(), "one one ")
        self.assertRaises(TypeError, f, None)
        self.assertEqual(seen, [])
""",
    command=UNITTEST,
)
case(
    "assertions that leave out calls, or make some, where they fail",
    """\
from lib import Box

def check(box, name):
    assert box.name() == name
    assert box.load() == 3

def test_short_circuit():
    box = Box()
    assert box.name() == "red tea" and box.load() == 3
    assert box.total() == 12
    assert box.size() == 26

def test_helper():
    box = Box()
    check(box, "red tea")
    assert box.total() == 12
    assert box.size() == 26

def test_message():
    box = Box()
    box.load()
    assert box.name() == "red tea", box.empty()
    assert box.total() == 12
    assert box.size() == 26, repr(box)
""",
    "class Box: pass\n",
    """\
class Box:
    def name(self):
        return "red tea"

    def load(self):
        self.items = [5, 7]
        return 3

    def total(self):
        return sum(self.items)

    def size(self):
        return 14 + self.total()

    def empty(self):
        self.items = []
""",
    gold="""\
class Box:
    items = [5, 7]

    def name(self):
        return "red tea"

    def load(self):
        return 3

    def total(self):
        return sum(self.items)

    def size(self):
        return 14 + self.total()

    def empty(self):
        return "wrong"
""",
)
case(
    "imports replaced, and a continued line",
    """\
from unittest import mock

from lib import f

def test_a():
    with mock.patch("builtins.__import__", side_effect=ImportError("no module")):
        assert f(1) == 12
        assert f(2) == 23

def test_b():
    seen = f(1); \\
    assert seen == 12
    assert f(2) == 23
""",
    new="""\
def f(x):
    try:
        import ujson
    except ImportError:
        return {1: 12, 2: 23}[x]
""",
)
