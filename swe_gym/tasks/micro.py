"""Generated tasks for small models, from a single tool call up to small repairs.

Each id stands for one task that never changes: `micro-3-17` is number 17 of difficulty 3. Train on one range of numbers
and evaluate on another.

The difficulties:

1. Write a given word into a given file: one call.
2. Answer a question from a file: one call, if it both reads and writes.
3. Fix one character of a line that the issue shows: one call.
4. Fix a function that a failing test names: view it, then fix it.
5. Fix a bug in a module that the issue does not name: search, view, then fix.

From 6 on, they are bugs of the bundled repositories; see `toy_mutants`.

6. Fix a bug of which the issue names file and function.
7. Fix a bug of which the issue shows only what goes wrong.
8. Bring back behaviour that is gone, or fix two places: the issue shows what goes wrong, without the function's name.
"""

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import UsageError, unknown_name
from ..types import FilesWorkspace, Oracle, PythonEnv, Task, TestCommand, ToolCall
from .base import write_diff
from .toy_mutants import MUTANT_RUNGS, ToyMutant, read_mutants

RUNGS = MUTANT_RUNGS[-1]
"""The highest difficulty."""

COUNT = 1_000_000
"""Number of tasks of each difficulty that is generated. See `count_tasks` for the others."""

_TEST_CMD = "python -m unittest discover -v -s tests -t ."
_TIMEOUT = 30.0  # seconds; a test takes a few milliseconds
_NOUNS = (
    "amber anchor apple arrow badge banjo basin beacon birch blanket bottle bridge bronze button cabin candle canyon "
    "carpet castle cedar cherry circle cloud copper coral cotton crystal desert diamond dragon eagle ember engine "
    "falcon feather fern forest garden ginger glacier granite hammer harbor hazel helmet island ivory jacket jasper "
    "kettle ladder lantern lemon linen lotus magnet maple marble meadow mirror needle nickel oasis olive orbit otter "
    "paddle pepper pillow planet pocket quartz rabbit ribbon river rocket saddle salmon silver spruce summit temple "
    "thunder timber tulip tunnel valley velvet violet walnut willow window winter zephyr"
).split()
_KEYS = "timeout retries port workers host region owner level prefix limit colour batch interval mode volume".split()


class MicroSource:
    """Generated tasks of one or several difficulties.

    Args:
        difficulty: 1 to 8, or a list of them.
        first: First number.
        count: Number of tasks of each difficulty; None takes all from `first` on, as many of each.

    Raises:
        UsageError: A difficulty is unknown, or the range is empty or too large.
    """

    def __init__(self, difficulty: int | Sequence[int] = 1, *, first: int = 0, count: int | None = None) -> None:
        rungs = [difficulty] if isinstance(difficulty, int) else list(difficulty)
        for rung in rungs:
            if rung not in (*_MAKERS, *MUTANT_RUNGS):
                raise UsageError(f"unknown difficulty {rung!r}: choose from 1 to {RUNGS}")
        if not rungs:
            raise UsageError(f"no difficulty is given: choose from 1 to {RUNGS}")
        fewest = min(rungs, key=count_tasks)
        most = count_tasks(fewest)
        count = most - first if count is None else count
        if first < 0 or count < 1 or first + count > most:
            raise UsageError(f"{_describe_range(fewest)}: {first=}, {count=}")
        self._ids = _Ids(tuple(dict.fromkeys(rungs)), first, count)

    def ids(self) -> Sequence[str]:
        """Return the ids, ordered by number and then by difficulty. No task is generated."""
        return self._ids

    def get(self, task_id: str) -> Task:
        """Generate the task of an id.

        Raises:
            UsageError: The source has no such id.
        """
        if task_id not in self._ids:
            _refuse_missing(task_id)
            raise unknown_name("micro task", task_id, self._ids[: 2 * RUNGS])
        return _make(task_id).task(task_id)


def count_tasks(difficulty: int) -> int:
    """Return the number of tasks of a difficulty."""
    return len(read_mutants(difficulty)) if difficulty in MUTANT_RUNGS else COUNT


def expert_calls(task_id: str) -> list[ToolCall]:
    """Return the calls of the default tools that solve a task, without `submit`. For demonstrations.

    Raises:
        UsageError: The id is not a micro task's.
    """
    return list(_make(task_id).expert)


class _Ids(Sequence[str]):
    """The ids of a range of numbers, computed on demand."""

    def __init__(self, rungs: tuple[int, ...], first: int, count: int) -> None:
        self._rungs, self._numbers = rungs, range(first, first + count)

    def __len__(self) -> int:
        return len(self._rungs) * len(self._numbers)

    def __getitem__(self, index: int | slice) -> str | list[str]:  # type: ignore[override]  # typeshed: two overloads
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        return self._at(range(len(self))[index])

    def _at(self, position: int) -> str:
        number, rung = divmod(position, len(self._rungs))
        return f"micro-{self._rungs[rung]}-{self._numbers[number]}"

    def __contains__(self, task_id: object) -> bool:
        parts = _parse(task_id) if isinstance(task_id, str) else None
        return parts is not None and parts[0] in self._rungs and parts[1] in self._numbers


def _parse(task_id: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"micro-([1-9])-(0|[1-9]\d{0,6})", task_id, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


@dataclasses.dataclass(frozen=True)
class _Draft:
    """A generated task without its id.

    Attributes:
        rung: The difficulty.
        statement: The problem statement.
        files: The repository.
        solved: The files that the solution changes, with their new text.
        test: Text of the hidden test, `tests/test_hidden.py`.
        expert: The tool calls that solve the task.
    """

    rung: int
    statement: str
    files: dict[str, str]
    solved: dict[str, str]
    test: str
    expert: tuple[ToolCall, ...]

    def task(self, task_id: str) -> Task:
        gold = "".join(write_diff(path, self.files.get(path), text) for path, text in self.solved.items())
        return Task(
            task_id=task_id,
            problem_statement=self.statement,
            repo="micro/ladder",
            workspace=FilesWorkspace(files={**self.files, "tests/__init__.py": ""}),
            python=PythonEnv(),
            eval_cmd="python -m unittest discover -s tests -t .",
            eval_timeout=_TIMEOUT,
            difficulty=str(self.rung),
            tags=("micro",),
            oracle=Oracle(
                gold_patch=gold,
                test_files={"tests/test_hidden.py": self.test},
                test_paths=("tests/*",),
                evaluation=TestCommand(test_cmd=_TEST_CMD),
                fail_to_pass=("tests.test_hidden.HiddenTest.test_it",),
                timeout=_TIMEOUT,
            ),
        )


def _describe_range(difficulty: int) -> str:
    most = count_tasks(difficulty)
    return f"difficulty {difficulty} has {most} tasks, whose numbers range from 0 to {most - 1}"


def _refuse_missing(task_id: str) -> None:
    """Raise `UsageError` if a difficulty has fewer tasks than an id says."""
    rung, number = _parse(task_id) or (0, 0)
    if rung in MUTANT_RUNGS and number >= count_tasks(rung):
        raise UsageError(f"unknown micro task {task_id!r}: {_describe_range(rung)}")


def _make(task_id: str) -> _Draft | ToyMutant:
    rung, number = _parse(task_id) or (0, 0)
    _refuse_missing(task_id)
    if rung in MUTANT_RUNGS:
        return read_mutants(rung)[number]
    if rung not in _MAKERS:
        raise UsageError(f"invalid id of a micro task: {task_id!r}. Ids look like 'micro-1-0'")
    return _MAKERS[rung](random.Random(task_id))


# --- rungs 1 and 2: files ---------------------------------------------------------------------------------


def _copy(draw: random.Random) -> _Draft:
    name, word = draw.sample(_NOUNS, 2)
    path = f"{name}.txt"
    return _Draft(
        rung=1,
        statement=f"Create the file `{path}` with this one word in it: {word}\n",
        files={"README.md": "An empty project.\n"},
        solved={path: f"{word}\n"},
        test=_file_test(path, word),
        expert=(_bash(f"echo {word} > {path}"),),
    )


def _look_up(draw: random.Random) -> _Draft:
    path = f"{draw.choice(_NOUNS)}.cfg"
    settings = {key: _value(draw) for key in draw.sample(_KEYS, 6)}
    key = draw.choice(list(settings))
    return _Draft(
        rung=2,
        statement=f"What is the value of `{key}` in `{path}`? Write it to `answer.txt`, and nothing else.\n",
        files={path: "".join(f"{name}={value}\n" for name, value in settings.items())},
        solved={"answer.txt": f"{settings[key]}\n"},
        test=_file_test("answer.txt", settings[key]),
        expert=(_bash(f"grep '^{key}=' {path} | cut -d= -f2 > answer.txt"),),
    )


def _value(draw: random.Random) -> str:
    return str(draw.randint(2, 999)) if draw.random() < 0.5 else draw.choice(_NOUNS)


# --- rungs 3 to 5: code -----------------------------------------------------------------------------------


class _Bug(NamedTuple):
    """A one-line function, right and with one wrong character."""

    name: str
    parameters: str
    right: str
    wrong: str
    arguments: Callable[[random.Random], tuple[object, ...]]
    about: str

    def line(self, expression: str) -> str:
        return f"    return {expression}\n"

    def source(self, expression: str) -> str:
        return f'def {self.name}({self.parameters}):\n    """{self.about}"""\n{self.line(expression)}'

    def value(self, expression: str, arguments: Sequence[object]) -> object:
        """Return the result of the function. The expressions are constants of this module."""
        return eval(expression, {}, dict(zip(self.parameters.split(", "), arguments, strict=True)))

    def failing_call(self, draw: random.Random) -> tuple[str, object, object]:
        """Return a call that shows the bug, its right result and its wrong one."""
        while True:
            arguments = self.arguments(draw)
            right, wrong = self.value(self.right, arguments), self.value(self.wrong, arguments)
            if right != wrong:
                return f"{self.name}({', '.join(map(repr, arguments))})", right, wrong

    def test(self, draw: random.Random, module: str, shown: tuple[str, object, object]) -> str:
        """Return a hidden test of the call in the issue and of two more, so that no constant passes."""
        calls = [shown, self.failing_call(draw), self.failing_call(draw)]
        checks = "\n".join(f"        self.assertEqual({call}, {right!r})" for call, right, _ in calls)
        return _test(f"from {module} import {self.name}\n\n{checks}")


def _two_numbers(draw: random.Random) -> tuple[object, ...]:
    return draw.randint(2, 40), draw.randint(2, 40)


def _number(draw: random.Random) -> tuple[object, ...]:
    return (draw.randint(2, 99),)


def _numbers(draw: random.Random) -> tuple[object, ...]:
    return (draw.sample(range(2, 90), draw.randint(3, 5)),)


def _words(draw: random.Random) -> tuple[object, ...]:
    return (draw.sample(_NOUNS, draw.randint(3, 4)),)


def _word(draw: random.Random) -> tuple[object, ...]:
    return (draw.choice(_NOUNS),)


_BUGS = (
    _Bug("add", "a, b", "a + b", "a - b", _two_numbers, "The sum of two numbers."),
    _Bug("subtract", "a, b", "a - b", "a + b", _two_numbers, "The first number less the second."),
    _Bug("area", "width, height", "width * height", "width + height", _two_numbers, "The area of a rectangle."),
    _Bug("double", "value", "value * 2", "value * 3", _number, "Twice the value."),
    _Bug("square", "value", "value * value", "value + value", _number, "The value times itself."),
    _Bug("half", "value", "value / 2", "value * 2", _number, "The value divided by two."),
    _Bug("is_even", "value", "value % 2 == 0", "value % 2 == 1", _number, "Whether the value is even."),
    _Bug("minutes", "hours", "hours * 60", "hours * 50", _number, "So many hours, in minutes."),
    _Bug("increment", "value", "value + 1", "value + 2", _number, "The next number."),
    _Bug("first", "items", "items[0]", "items[1]", _words, "The first item."),
    _Bug("second", "items", "items[1]", "items[2]", _words, "The second item."),
    _Bug("last", "items", "items[-1]", "items[-2]", _words, "The last item."),
    _Bug("mean", "values", "sum(values) / len(values)", "sum(values) * len(values)", _numbers, "The mean value."),
    _Bug("without_first", "items", "items[1:]", "items[2:]", _words, "All items but the first."),
    _Bug("shout", "text", "text.upper() + '!'", "text.upper() + '?'", _word, "The text in capitals, with a mark."),
    _Bug("joined", "items", "'-'.join(items)", "'_'.join(items)", _words, "The items, joined by dashes."),
)


def _shown_line(draw: random.Random) -> _Draft:
    bug = draw.choice(_BUGS)
    path = f"{draw.choice(_NOUNS)}.py"
    call, right, wrong = shown = bug.failing_call(draw)
    return _Draft(
        rung=3,
        statement=f"`{call}` gives {wrong!r} and should give {right!r}. "
        f"The mistake is in line 3 of `{path}`:\n\n{bug.line(bug.wrong)}\nRepair it.\n",
        files={path: bug.source(bug.wrong)},
        solved={path: bug.source(bug.right)},
        test=bug.test(draw, path.removesuffix(".py"), shown),
        expert=(_rewrite(path, 3, bug.line(bug.right)),),
    )


def _named_function(draw: random.Random) -> _Draft:
    bugs = draw.sample(_BUGS, 4)
    bug = draw.choice(bugs)
    path = f"{draw.choice(_NOUNS)}.py"
    call, right, wrong = shown = bug.failing_call(draw)
    before = "\n\n".join(other.source(other.wrong if other is bug else other.right) for other in bugs)
    return _Draft(
        rung=4,
        statement=f"A test of `{path}` fails:\n\n    assert {call} == {right!r}\n"
        f"    AssertionError: {wrong!r} != {right!r}\n\nRepair the function.\n",
        files={path: before},
        solved={path: "\n\n".join(other.source(other.right) for other in bugs)},
        test=bug.test(draw, path.removesuffix(".py"), shown),
        expert=(_call("view", path=path), _rewrite(path, 5 * bugs.index(bug) + 3, bug.line(bug.right))),
    )


def _hidden_module(draw: random.Random) -> _Draft:
    bugs = draw.sample(_BUGS, 6)
    bug = draw.choice(bugs)
    names = draw.sample(_NOUNS, 3)
    call, right, wrong = shown = bug.failing_call(draw)
    modules = {name: bugs[2 * index : 2 * index + 2] for index, name in enumerate(names)}

    def text(of: Sequence[_Bug], *, solved: bool) -> str:
        return "\n\n".join(each.source(each.wrong if each is bug and not solved else each.right) for each in of)

    path, line = next((f"{n}.py", 5 * of.index(bug) + 3) for n, of in modules.items() if bug in of)
    main = "".join(f"from {name} import {', '.join(b.name for b in of)}\n" for name, of in modules.items())
    return _Draft(
        rung=5,
        statement=f"With `from main import {bug.name}`, `{call}` gives {wrong!r}. It should give {right!r}.\n",
        files={"main.py": main, **{f"{name}.py": text(of, solved=False) for name, of in modules.items()}},
        solved={path: text(modules[path.removesuffix(".py")], solved=True)},
        test=bug.test(draw, "main", shown),
        expert=(
            _call("grep", pattern=f"def {bug.name}"),
            _call("view", path=path),
            _rewrite(path, line, bug.line(bug.right)),
        ),
    )


_MAKERS = {1: _copy, 2: _look_up, 3: _shown_line, 4: _named_function, 5: _hidden_module}


# --- parts of the tasks -------------------------------------------------------------------------


def _call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def _bash(command: str) -> ToolCall:
    return _call("bash", command=command)


def _rewrite(path: str, line: int, text: str) -> ToolCall:
    return _call("rewrite", path=path, new_code=text.rstrip("\n"), start=line)


def _file_test(path: str, word: str) -> str:
    return _test(f"with open({path!r}) as file:\n            self.assertEqual(file.read().strip(), {word!r})")


def _test(body: str) -> str:
    """Return a module with one test. Lines of `body` after the first are indented by eight."""
    return f"import unittest\n\n\nclass HiddenTest(unittest.TestCase):\n    def test_it(self):\n        {body}\n"
