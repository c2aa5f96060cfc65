"""Runs tests with pytest or unittest in the current folder, and writes down what they do, as JSON.

It stands for the runner in a test command, and reads its order from a file beside itself. It finds the lines of the
folder that each test runs, or tries bugs: each in a fork of this process, which has loaded the runner. Of a bug it
finds the tests that fail, and what fails in some: code that shows it without the test, what it gives, and should give.
"""

import ast
import contextlib
import dis
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import types
import unittest
import warnings
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .keeper import receive, send
from .twins import answers, silence

LONGEST = 600
"""Characters of a value. Longer ones are not shown."""

LONGEST_CODE = 1500
"""Characters of code. Longer code is not shown."""

SHOW_SECONDS = 2, 20.0
"""Seconds of CPU time, and by the clock, that code from a test may take."""

MOST_DATA = 4 << 30
"""Bytes that the tests of a bug may allocate: a loop that never ends may fill the memory first."""


def main() -> None:
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    with open(os.path.join(folder, "order.json"), encoding="utf-8") as file:
        order = json.load(file)
    sys.argv[0] = runner = order["runner"]
    sys.path[0] = os.getcwd()
    if runner == "pytest":
        load_pytest()
    with open(os.path.join(folder, "found.json"), "w", encoding="utf-8") as file:
        for found in do(runner, order):
            file.write(json.dumps(found) + "\n")
            file.flush()


def do(runner: str, order: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the lines that tests run or, if the order names bugs, what the tests say of each."""
    if "bugs" not in order:
        called = Calls(order["folder"])
        run_tests(runner, called)
        yield called.result()
    for number, bug in enumerate(order.get("bugs", ())):
        before = list_tree(order["folder"])
        yield try_bug(runner, bug, order, number)
        if not restore_tree(order["folder"], before):
            return  # the next bugs need a fresh sandbox


def load_pytest() -> None:
    """Load what each fork needs."""
    from _pytest.config import default_plugins

    for name in default_plugins:
        with contextlib.suppress(ImportError):
            importlib.import_module("_pytest." + name)


def run_tests(runner: str, notes: Any) -> None:
    """Run the tests of the command line.

    Args:
        runner: "pytest" or "unittest".
        notes: A plugin of pytest, with what `UnittestNotes` calls.
    """
    if runner == "pytest":
        import pytest

        if notes.wanted is not None and hasattr(pytest, "version_tuple"):  # since pytest 7
            notes.pytest_ignore_collect = notes.ignore
        pytest.main(sys.argv[1:], plugins=[notes])
    elif notes.wanted is None:
        make: Any = lambda *_, **__: UnittestNotes(notes)  # noqa: E731
        unittest.main(None, argv=sys.argv, exit=False, testRunner=unittest.TextTestRunner(resultclass=make))
    else:
        unittest.TestLoader().loadTestsFromNames(sorted(notes.wanted)).run(UnittestNotes(notes))


def simplify_run(config: Any) -> None:
    """Have pytest run all tests, in this process, and format no traceback: that can take longer than the tests."""
    config.option.maxfail, config.option.tbstyle = 0, "no"
    if hasattr(config.option, "numprocesses"):  # of pytest-xdist
        config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []


class UnittestNotes(unittest.TestResult):
    """Tells notes what unittest does."""

    def __init__(self, notes: Any) -> None:
        super().__init__()
        self.notes = notes

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.notes.begin(test.id())

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.notes.end()

    def addSuccess(self, test: Any) -> None:
        self.notes.passed.add(test.id())

    def addFailure(self, test: Any, err: Any) -> None:
        self.shouldStop = self.notes.fail(test.id(), sys.modules[type(test).__module__].__file__ or "", err[1])

    addError = addFailure

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)

    def printErrors(self) -> None:
        """Do nothing: nobody reads it."""


# --- lines --------------------------------------------------------------------------------------------------------


class Calls:
    """The lines of a folder that each test runs, as a plugin of pytest. The first line of a function means a call."""

    wanted = None

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(os.path.realpath(folder), "")
        self.passed: Set[str] = set()
        self.tests: List[str] = []
        self.found: Dict[str, Dict[int, List[int]]] = {}
        self.known: Dict[int, Tuple[types.CodeType, Set[int]]] = {}  # what it holds keeps its number
        self.left: Dict[int, Set[int]] = {}  # lines of code that the running test has called, but not run yet

    def begin(self, test: str) -> None:
        self.tests.append(test)
        self.left = {}
        threading.settrace(self.note)
        sys.settrace(self.note)

    def end(self) -> None:
        sys.settrace(None)
        for number, left in list(self.left.items()):
            code, lines = self.known[number]
            if code.co_filename.startswith(self.folder):
                found = self.found.setdefault(code.co_filename[len(self.folder) :], {})
                for line in (lines - left) | {code.co_firstlineno}:
                    tests = found.setdefault(line, [])
                    if tests[-1:] != [len(self.tests) - 1]:
                        tests.append(len(self.tests) - 1)

    def fail(self, *_: object) -> bool:
        return False

    def pytest_configure(self, config: Any) -> None:
        simplify_run(config)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.end()

    def note(self, frame: types.FrameType, *_: object) -> Any:
        """Note a call. Return what notes the lines, if there are any that the test has not run."""
        number = id(frame.f_code)
        if number not in self.left:
            self.left[number] = self.lines_of(frame.f_code)
        return self.note_line if self.left[number] else None

    def note_line(self, frame: types.FrameType, *_: object) -> Any:
        self.left.get(id(frame.f_code), set()).discard(frame.f_lineno)
        return self.note_line

    def lines_of(self, code: types.CodeType) -> Set[int]:
        if id(code) not in self.known:
            inside = code.co_filename.startswith(self.folder)
            lines = {line for _, line in dis.findlinestarts(code) if line} if inside else set()
            self.known[id(code)] = code, lines - {code.co_firstlineno}
        return set(self.known[id(code)][1])

    def result(self) -> Dict[str, Any]:
        sets: Dict[Tuple[int, ...], int] = {}
        lines = {
            path: {line: sets.setdefault(tuple(tests), len(sets)) for line, tests in found.items()}
            for path, found in self.found.items()
        }
        return {"tests": self.tests, "sets": list(sets), "lines": lines}


# --- bugs ---------------------------------------------------------------------------------------------------------


def try_bug(runner: str, bug: Dict[str, Any], order: Dict[str, Any], number: int) -> Dict[str, Any]:
    """Run tests with a bug in a fork.

    Args:
        runner: "pytest" or "unittest".
        bug: `path`, `text` (in which each character is a byte) and the `tests` to run.
        order: `seconds` of CPU time that they may take, and by the `clock`, the `most` tests that may fail, how many to
            `show`, and the `folder` of the project.
        number: Number of the bug.

    Returns:
        "failing" and "shown", or "error": "many", "hung", "died" or "memory"; "seconds" of CPU time and by the "clock"
        in any case.
    """
    sys.stdout.flush(), sys.stderr.flush()
    began, start, out, into = time.monotonic(), os.getcwd(), *os.pipe()
    with replaced(os.path.join(order["folder"], bug["path"]), bug["text"].encode("latin-1"), number):
        pid = os.fork()
        if not pid:
            try:
                os.close(out)
                be_bug(runner, Failures(bug["tests"], order["most"], order["show"]), into)
            finally:
                os._exit(0)
        os.close(into)
        end = began + order["clock"]
        try:
            ended = answers(out, pid, order["seconds"], end)
            said = dict(receive(out, end) or {"error": "died"}) if ended else {"error": "hung"}
        except Exception:  # noqa: BLE001  nonsense: a test wrote into the pipe
            said = {"error": "died"}
        os.close(out)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        used = os.wait4(pid, 0)[2]
    with contextlib.suppress(OSError):  # a test removed it
        os.chdir(start)
    return dict(said, seconds=used.ru_utime + used.ru_stime, clock=time.monotonic() - began)


def be_bug(runner: str, notes: "Failures", into: int) -> None:
    os.setpgid(0, 0)
    silence()
    getattr(gc, "freeze", gc.collect)()  # a collection would copy the memory of all objects
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with contextlib.suppress(BaseException):  # whatever ends the run: tests that have not passed fail
        run_tests(runner, notes)
    send(into, notes.result())


@contextlib.contextmanager
def replaced(path: str, data: bytes, number: int) -> Iterator[None]:
    """Replace the content of a file. Its time is another one for each number: Python would load code that it kept."""
    with open(path, "rb") as file:
        before = file.read()
    times = os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns
    try:
        write(path, data, (number * 10**9, number * 10**9))
        yield
    finally:
        with contextlib.suppress(OSError):  # a test removed its folder
            write(path, before, times)


def list_tree(folder: str) -> Dict[str, Tuple[int, ...]]:
    """Return all entries below a folder, with what changes when they do. What Python compiled is no part of it."""
    found: Dict[str, Tuple[int, ...]] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("__pycache__", ".git")]
        found.update((os.path.join(parent, name), ()) for name in folders)
        for path in (os.path.join(parent, name) for name in files):
            with contextlib.suppress(OSError):
                state = os.lstat(path)
                found[path] = state.st_size, state.st_mtime_ns, state.st_mode
    return found


def restore_tree(folder: str, before: Dict[str, Tuple[int, ...]]) -> bool:
    """Remove what is new below a folder. Return False if anything else has changed."""
    for path in sorted({*list_tree(folder)} - {*before}):
        try:
            os.unlink(path)
        except OSError:  # a folder, or gone with its folder
            shutil.rmtree(path, ignore_errors=True)
    return list_tree(folder) == before


def write(path: str, data: bytes, times: Tuple[int, int]) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.utime(path, ns=times)


class Failures:
    """What fails in each test, as a plugin of pytest.

    Args:
        wanted: Tests to run; None runs all.
        most: Failing tests after which the run ends.
        show: Failing tests to describe.
    """

    def __init__(self, wanted: List[str], most: int, show: int) -> None:
        self.wanted = set(wanted)
        self.most, self.show = most, show
        self.files: Set[str] = set()
        self.passed: Set[str] = set()
        self.failed: Set[str] = set()
        self.found: Dict[str, Dict[str, str]] = {}
        self.session: Any = None
        self.memory = False

    def begin(self, test: str) -> None:
        pass

    def end(self) -> None:
        pass

    def fail(self, test: str, path: str, error: Optional[BaseException]) -> bool:
        """Note a failure. Return whether there are too many."""
        self.failed.add(test)
        self.memory = self.memory or isinstance(error, MemoryError)
        if error is not None and len(self.found) < self.show and test in self.wanted:
            self.found[test] = describe(path, error)
        return self.memory or len(self.failed) > self.most

    def pytest_configure(self, config: Any) -> None:
        simplify_run(config)

    def pytest_sessionstart(self, session: Any) -> None:
        self.session = session
        root = str(getattr(session.config, "rootpath", ""))  # since pytest 6.1
        paths = {test.partition("::")[0] for test in self.wanted}
        self.files = {os.path.realpath(os.path.join(root, path)) for path in paths}

    def ignore(self, collection_path: Any) -> Optional[bool]:
        """Leave out test files that hold none of the tests."""
        path = os.path.realpath(str(collection_path))
        return True if os.path.isfile(path) and path not in self.files else None

    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when == "call" and call.excinfo is not None:
            self.fail(item.nodeid, str(item.fspath), call.excinfo.value)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome == "passed" and report.when == "call" and not hasattr(report, "wasxfail"):
            self.passed.add(report.nodeid)
        elif report.outcome != "passed" and self.fail(report.nodeid, "", None):
            self.session.shouldstop = "too many tests fail"

    def result(self) -> Dict[str, Any]:
        failing = sorted(self.wanted - (self.passed - self.failed))
        if self.memory or len(failing) > self.most:
            return {"error": "memory" if self.memory else "many"}
        return {"failing": failing, "shown": self.found}


# --- what a failing test shows ------------------------------------------------------------------------------------


def describe(path: str, error: BaseException) -> Dict[str, str]:
    """Return what failed: "error" and "message"; with "code" also "given" and, unless it raises, "expected"."""
    found = {"error": type(error).__name__, "message": ""}
    with contextlib.suppress(BaseException):  # the test cannot be shown: its values may do anything
        found["message"] = str(error)[:LONGEST]
        found.update(show_apart(path, error) or {})
    return found


def show_apart(path: str, error: BaseException) -> Any:
    """Return what `show` does, from a fork: the code must change nothing for the tests that follow. None: nothing."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads are not copied
        pid = os.fork()
    if not pid:
        try:
            os.close(out)
            resource.setrlimit(resource.RLIMIT_CPU, (SHOW_SECONDS[0], SHOW_SECONDS[0]))
            send(into, show(path, error))
        finally:
            os._exit(0)
    os.close(into)
    try:
        return receive(out, time.monotonic() + SHOW_SECONDS[1])
    finally:
        os.close(out)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def show(path: str, error: BaseException) -> Dict[str, str]:
    """Return code that fails as a test does, what it gives, and what it should give.

    Raises:
        Exception: There is none.
    """
    frame, line = find_frame(path, error.__traceback__)
    with open(path, encoding="utf-8") as file:
        source = file.read()
    around = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.stmt) and holds(one, line)]
    function = [one for one in around if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))][-1]
    statement = next(one for one in function.body if holds(one, line))
    shown = Snippet(source, frame, function, statement)
    if isinstance(error, AssertionError):
        return shown.play(*compare(shown, statement))
    node: Any = getattr(statement, "value", None)
    if isinstance(statement, ast.Assert):
        node = statement.test.left if isinstance(statement.test, ast.Compare) else statement.test
    found = shown.play(node, "")
    if found["given"] != name_error(error):
        raise ValueError("the code fails in another way")
    return {name: found[name] for name in ("code", "given")}


def holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def find_frame(path: str, traceback: Optional[types.TracebackType]) -> Tuple[types.FrameType, int]:
    """Return the innermost frame of a file, and its line."""
    found = None
    while traceback is not None:
        if os.path.realpath(traceback.tb_frame.f_code.co_filename) == os.path.realpath(path):
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    if found is None:
        raise LookupError("the test is not in the traceback")
    return found


EQUAL = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertSequenceEqual", "assertTupleEqual")


def compare(shown: "Snippet", statement: ast.stmt) -> Tuple[ast.expr, str]:
    """Return the expression that an assertion checks, and what it should give."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
            return equal(shown, test.left, test.comparators[0])
        return test, "a true value"
    call: Any = getattr(statement, "value", None)
    name = getattr(getattr(call, "func", None), "attr", "")
    if name in EQUAL:
        return equal(shown, call.args[0], call.args[1])
    if name in ("assertTrue", "assertFalse"):
        return call.args[0], "a true value" if name == "assertTrue" else "a false value"
    raise LookupError("the assertion has another form")


def equal(shown: "Snippet", left: ast.expr, right: ast.expr) -> Tuple[ast.expr, str]:
    """Return the side that calls something or reads most, and the value of the other one."""
    first, other = (left, right) if (calls(left), names(left)) >= (calls(right), names(right)) else (right, left)
    return first, shown.value(other)


def calls(node: ast.AST) -> int:
    return sum(isinstance(one, ast.Call) for one in ast.walk(node))


def names(node: ast.AST) -> int:
    return sum(isinstance(one, ast.Name) for one in ast.walk(node))


class Snippet:
    """Code that runs without the test that it is from: the statements before one of its own, without assertions.

    Args:
        source: The file of the test.
        frame: The frame in which the test failed.
        function: The test.
        statement: The statement of the test that failed.
    """

    def __init__(self, source: str, frame: types.FrameType, function: Any, statement: ast.stmt) -> None:
        self.source, self.frame, self.function = source, frame, function
        before = function.body[: function.body.index(statement)]
        self.before = [one for one in before if not is_assertion(one)]
        if any(is_check(node) for one in self.before for node in ast.walk(one)):
            raise LookupError("an assertion within a statement, which the code needs but must not tell")

    def value(self, node: ast.expr) -> str:
        """Return the `repr` of an expression's value in the test."""
        return bound(eval(compile(ast.Expression(node), "snippet", "eval"), self.frame.f_globals, self.frame.f_locals))

    def play(self, node: Any, expected: str) -> Dict[str, str]:
        """Return the code that ends with an expression, what it gives each time, and what it should."""
        kept = [*self.before, node]
        code = "\n".join([*self.define(kept), *map(self.text, kept)])
        given = [replay(code) for _ in range(2)]
        if given[0] != given[1] or given[0] == expected or len(code) > LONGEST_CODE:
            raise ValueError("the code does not show the failure")
        return {"code": code, "given": given[0], "expected": expected}

    def text(self, node: ast.AST) -> str:
        text = ast.get_source_segment(self.source, node, padded=True)
        if text is None:
            raise LookupError("no text")
        lines = text.splitlines()
        pad = len(lines[0]) - len(lines[0].lstrip())
        return "\n".join(line[pad:] if not line[:pad].strip() else line for line in lines)

    def define(self, kept: List[ast.AST]) -> Iterator[str]:
        """Yield what defines the names that code of the test reads but does not store: imports first, then values."""
        imports, values = [], []
        for name in find_free(kept):
            local = name in self.frame.f_locals
            value = self.frame.f_locals[name] if local else self.frame.f_globals.get(name, self)
            if value is self:  # a builtin
                continue
            line = None if local else import_line(name, value, self.frame.f_globals["__name__"])
            if line is not None:
                imports.append(line)
            else:
                values.append("%s = %s" % (name, self.literal(name, value, local=local)))
        yield from sorted(imports)
        if imports:
            yield ""
        yield from values

    def literal(self, name: str, value: Any, *, local: bool) -> str:
        """Return the text of a value as it was before the test: of a constant, or of what nothing can change."""
        for node in ast.parse(self.source).body if not local else ():
            if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == [name]:
                ast.literal_eval(node.value)
                return self.text(node.value)
        hash(value)
        ast.literal_eval(bound(value))
        return bound(value)


def find_free(kept: List[ast.AST]) -> List[str]:
    """Return the names that code reads but does not store."""
    nodes = [one for node in kept for one in ast.walk(node)]
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    stored |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    read = [one.id for one in nodes if isinstance(one, ast.Name)]
    return [name for name in dict.fromkeys(read) if name not in stored]


def is_assertion(node: ast.stmt) -> bool:
    """Whether a statement only checks something, or is a docstring."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and is_check(node.value))


def is_check(node: ast.AST) -> bool:
    call = isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("assert")
    return call or isinstance(node, ast.Assert)


def import_line(name: str, value: Any, test: str) -> Optional[str]:
    """Return the statement that imports a global of a test module; None if it is a value."""
    if isinstance(value, types.ModuleType):
        return import_module(value.__name__, name)
    module = getattr(value, "__module__", None)
    if module is None or not hasattr(value, "__name__"):
        return None
    if module == test:
        raise LookupError(name)
    return "from %s import %s%s" % (module, value.__name__, "" if value.__name__ == name else " as " + name)


def import_module(full: str, name: str) -> str:
    package, _, last = full.rpartition(".")
    if full == name:
        return "import " + full
    return "from %s import %s" % (package, last) if last == name else "import %s as %s" % (full, name)


def bound(value: Any) -> str:
    text = repr(value)
    if " at 0x" in text or len(text) > LONGEST:
        raise ValueError("cannot be shown")
    return text


def name_error(error: BaseException) -> str:
    return "%s: %s" % (type(error).__name__, error) if str(error) else type(error).__name__


def replay(code: str) -> str:
    """Return the `repr` of the last expression of some code, or the error that ends it."""
    tree, space = ast.parse(code), {"__name__": "snippet"}
    last: Any = tree.body.pop()
    try:
        exec(compile(tree, "snippet", "exec"), space)
        text = repr(eval(compile(ast.Expression(last.value), "snippet", "eval"), space))
    except BaseException as error:  # noqa: BLE001  any, also of sys.exit(): it is what the code gives
        text = name_error(error)
    if " at 0x" in text or len(text) > LONGEST:
        raise ValueError("cannot be shown")
    return text


if __name__ == "__main__":
    main()
