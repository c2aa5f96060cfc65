"""Runs tests with pytest in the current folder, and writes down what they do, as JSON.

With "functions", these are the functions of the folder that the tests call: file -> lines where they begin. With
"failures", it is what fails in each test: a snippet that shows it without the test, what it gives, and what it should.
"""

import ast
import json
import os
import sys
import threading
import types
from typing import Any, Dict, List, Optional, Set, Tuple

LONGEST = 600
"""Characters of a value. Longer ones are not shown."""


def main() -> None:
    what, path, *arguments = sys.argv[1:]
    import pytest

    plugin: Any = Functions() if what == "functions" else Failures()
    sys.argv[:] = ["pytest", *arguments]
    pytest.main(arguments, plugins=[plugin])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(plugin.notes(), file)


class Functions:
    """The functions that are called while tests run."""

    def __init__(self) -> None:
        self.found: Set[Tuple[str, int]] = set()
        self.here = os.getcwd() + os.sep

    def pytest_runtest_protocol(self) -> None:
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def note(self, frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self.here):
            self.found.add((frame.f_code.co_filename[len(self.here) :], frame.f_code.co_firstlineno))

    def notes(self) -> Dict[str, List[int]]:
        sys.setprofile(None)
        lines: Dict[str, List[int]] = {}
        for path, line in sorted(self.found):
            lines.setdefault(path, []).append(line)
        return lines


class Failures:
    """What fails in each test."""

    def __init__(self) -> None:
        self.found: Dict[str, Dict[str, str]] = {}

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when == "call" and call.excinfo is not None:
            try:
                self.found[item.nodeid] = describe(str(item.fspath), call.excinfo.value)
            except Exception as error:  # noqa: BLE001  the repr of a value may fail in any way
                self.found[item.nodeid] = {"skipped": repr(error)}

    def notes(self) -> Dict[str, Dict[str, str]]:
        return self.found


def describe(path: str, error: BaseException) -> Dict[str, str]:
    """Return what failed: "error" and "message"; with "code", also "given" and, unless it raised, "expected"."""
    frame, line = find_frame(path, error.__traceback__)
    with open(path, encoding="utf-8") as file:
        source = file.read()
    statement, body = find_statement(ast.parse(source), line)
    found = {"error": type(error).__name__, "message": str(error)[:LONGEST]}
    shown = Snippet(source, frame, body)
    if isinstance(error, AssertionError):
        found.update(compare(shown, statement) or {})
    elif found["error"] != "Failed":  # that of `pytest.fail` and `pytest.raises`
        node = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
        if isinstance(statement, ast.Assert):
            node = statement.test.left if isinstance(statement.test, ast.Compare) else statement.test
        if node is not None:
            found.update(code=shown.code(node), given="%s: %s" % (found["error"], found["message"]))
    return found


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


def find_statement(tree: ast.Module, line: int) -> Tuple[ast.stmt, Any]:
    """Return the innermost statement on a line, and the function that holds it."""
    statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    around = [n for n in statements if n.lineno <= line <= (n.end_lineno or n.lineno)]
    functions = [n for n in around if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return max(around, key=lambda n: (n.lineno, -(n.end_lineno or 0))), functions[-1]


def compare(shown: "Snippet", statement: ast.stmt) -> Optional[Dict[str, str]]:
    """Return the code of a failed assertion, what it gives, and what it should give."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
            return equal(shown, test.left, test.comparators[0])
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return known(shown, test.operand, "a false value")
        return known(shown, test, "a true value")
    call: Any = getattr(statement, "value", None)
    name = getattr(getattr(call, "func", None), "attr", "")
    if name in ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertSequenceEqual"):
        return equal(shown, call.args[0], call.args[1])
    if name in ("assertTrue", "assertFalse"):
        return known(shown, call.args[0], "a true value" if name == "assertTrue" else "a false value")
    return None


def equal(shown: "Snippet", left: ast.expr, right: ast.expr) -> Dict[str, str]:
    """Return what one of two sides gives, which calls something, and the other one should."""
    first, other = (left, right) if calls(left) >= calls(right) else (right, left)
    if not calls(first) and names(first) < names(other):
        first, other = other, first
    return known(shown, first, shown.value(other))


def known(shown: "Snippet", node: ast.expr, expected: str) -> Dict[str, str]:
    return {"code": shown.code(node), "given": shown.value(node), "expected": expected}


def calls(node: ast.AST) -> int:
    return sum(isinstance(n, ast.Call) for n in ast.walk(node))


def names(node: ast.AST) -> int:
    return sum(isinstance(n, ast.Name) for n in ast.walk(node))


class Snippet:
    """Code that can be run without the test that it is from."""

    def __init__(self, source: str, frame: types.FrameType, function: Any) -> None:
        self.source, self.frame, self.function = source, frame, function
        self.lines: List[str] = []
        self.done: Set[str] = set()

    def text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def value(self, node: ast.expr) -> str:
        """Return the `repr` of an expression's value."""
        code = compile(ast.Expression(node), "snippet", "eval")
        text = repr(eval(code, self.frame.f_globals, self.frame.f_locals))
        if " at 0x" in text or len(text) > LONGEST:
            raise ValueError("cannot be shown")
        return text

    def code(self, node: ast.expr) -> str:
        """Return the lines that define what an expression needs, and the expression."""
        self.need(node)
        imports = sorted(line for line in self.lines if line.startswith(("import ", "from ")))
        rest = [line for line in self.lines if line not in imports]
        return "\n".join(imports + [""] * bool(imports) + rest + [self.text(node)])

    def need(self, node: ast.expr) -> None:
        """Define the names that an expression or a statement reads."""
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        bound |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and name.id not in self.done and name.id not in bound:
                self.done.add(name.id)
                self.define(name.id, node.lineno)

    def define(self, name: str, line: int) -> None:
        if name in self.frame.f_locals:
            self.define_local(name, line)
        elif name in self.frame.f_globals:
            self.define_global(name, self.frame.f_globals[name])

    def define_local(self, name: str, line: int) -> None:
        text = repr(self.frame.f_locals[name])
        if is_literal(text):
            self.lines.append("%s = %s" % (name, text))
            return
        for statement in reversed(self.function.body):
            if isinstance(statement, ast.Assign) and statement.lineno < line:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == name:
                    self.need(statement.value)
                    self.lines.append(self.text(statement))
                    return
        raise LookupError(name)

    def define_global(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            full = value.__name__
            self.lines.append("import " + full if full == name else import_as(full, name))
        elif getattr(value, "__module__", None) and hasattr(value, "__name__"):
            if value.__module__ == self.frame.f_globals["__name__"]:
                raise LookupError(name)
            renamed = "" if value.__name__ == name else " as " + name
            self.lines.append("from %s import %s%s" % (value.__module__, value.__name__, renamed))
        elif is_literal(repr(value)):
            self.lines.append("%s = %r" % (name, value))
        else:
            raise LookupError(name)


def import_as(full: str, name: str) -> str:
    package, _, last = full.rpartition(".")
    if last == name:
        return "from %s import %s" % (package, last)
    return "import " + full if "." in full and full.split(".")[0] == name else "import %s as %s" % (full, name)


def is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return len(text) <= LONGEST


if __name__ == "__main__":
    main()
