"""Runs tests with pytest or unittest in the current folder, and writes down what they do, as JSON.

With "functions", these are the functions of the folder that the tests call: file -> lines where they begin. With
"failures", it is what fails in each test: code that shows it without the test, what it gives, and what it should give.
"""

import ast
import json
import os
import sys
import threading
import types
import unittest
from typing import Any, Dict, Iterator, List, Optional, Tuple

LONGEST = 600
"""Characters of a value. Longer ones are not shown."""

LONGEST_CODE = 1500
"""Characters of code. Longer code is not shown."""


def main() -> None:
    what, runner, path, *arguments = sys.argv[1:]
    notes: Any = Functions() if what == "functions" else Failures()
    sys.argv[:] = [runner, *arguments]
    sys.path.insert(0, os.getcwd())
    if runner == "pytest":
        import pytest

        pytest.main(arguments, plugins=[notes])
    elif what == "functions":
        with notes:
            unittest.main(None, argv=sys.argv, exit=False)
    else:
        unittest.TestLoader().loadTestsFromNames(arguments).run(FailureNotes(notes))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(notes.found, file)


class Functions:
    """The functions that are called while tests run, as a plugin of pytest."""

    def __init__(self) -> None:
        self.found: Dict[str, List[int]] = {}
        self.here = os.getcwd() + os.sep

    def __enter__(self) -> None:
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def pytest_runtest_protocol(self) -> None:
        self.__enter__()

    def pytest_sessionfinish(self) -> None:
        self.__exit__()

    def note(self, frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.here):
            lines = self.found.setdefault(code.co_filename[len(self.here) :], [])
            if code.co_firstlineno not in lines:
                lines.append(code.co_firstlineno)


class Failures:
    """What fails in each test, as a plugin of pytest."""

    def __init__(self) -> None:
        self.found: Dict[str, Dict[str, str]] = {}

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when == "call" and call.excinfo is not None:
            self.found[item.nodeid] = describe(str(item.fspath), call.excinfo.value)


class FailureNotes(unittest.TestResult):
    """What fails in each test of unittest."""

    def __init__(self, notes: Any) -> None:
        super().__init__()
        self.notes = notes

    def addFailure(self, test: Any, err: Any) -> None:
        self.notes.found[test.id()] = describe(sys.modules[type(test).__module__].__file__ or "", err[1])

    addError = addFailure


def describe(path: str, error: BaseException) -> Dict[str, str]:
    """Return what failed: "error" and "message"; with "code" also "given" and, unless it raises, "expected"."""
    found = {"error": type(error).__name__, "message": str(error)[:LONGEST]}
    try:
        found.update(show(path, error))
    except Exception:  # noqa: BLE001  the test cannot be shown: its values may do anything
        return found
    return found


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
    if found["given"] != "%s: %s" % (type(error).__name__, error):
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
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return getattr(node.value.func, "attr", "").startswith("assert")
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


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


def replay(code: str) -> str:
    """Return the `repr` of the last expression of some code, or the error that ends it."""
    tree, space = ast.parse(code), {"__name__": "snippet"}
    last: Any = tree.body.pop()
    try:
        exec(compile(tree, "snippet", "exec"), space)
        text = repr(eval(compile(ast.Expression(last.value), "snippet", "eval"), space))
    except Exception as error:  # noqa: BLE001  any: it is what the code gives
        text = "%s: %s" % (type(error).__name__, error)
    if " at 0x" in text or len(text) > LONGEST:
        raise ValueError("cannot be shown")
    return text


if __name__ == "__main__":
    main()
