"""Changes of real test files: this repository's, the standard library's and numpy's."""

import ast
import importlib.util
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from swe_gym.grading.counter.changes import asserting, changes
from swe_gym.grading.counter.source import Source, TextEdit, parse
from swe_gym.grading.counter.texts import draw_texts

HERE = Path(__file__).parents[2]
SAMPLE = 8
"""Files of each collection that are read."""


def collections() -> Iterator[tuple[str, list[Path]]]:
    yield "own", sorted(HERE.rglob("test_*.py"))
    yield "library", sorted((Path(sysconfig.get_paths()["stdlib"]) / "test").glob("test_*.py"))
    numpy = importlib.util.find_spec("numpy")
    if numpy and numpy.origin:
        yield "numpy", sorted(Path(numpy.origin).parent.rglob("tests/test_*.py"))


def sample(files: list[Path]) -> list[Path]:
    small = [path for path in files if path.stat().st_size < 100_000]
    return Random(1).sample(small, min(len(small), SAMPLE))


FILES = [pytest.param(path, id=f"{name}-{path.stem}") for name, paths in collections() for path in sample(paths)]


@pytest.mark.parametrize("path", FILES)
def test_every_change_gives_another_file_that_parses(path: Path) -> None:
    source = parse(path.read_bytes())
    if source is None:
        return  # written to be no Python, or of another version
    random = Random(7)
    for function in source.functions.values():
        for change in changes(function, source):
            edit = change.edit(random)
            assert edit.text != source.text(edit.start, edit.end)
            assert len(Source(changed_alone(source, function, edit)).tree.body) == 1
    all_at_once(source, random)


@pytest.mark.parametrize("path", FILES)
def test_edits_of_a_text_never_overlap(path: Path) -> None:
    source = parse(path.read_bytes())
    random = Random(7)
    functions = [*source.functions.values()] if source else []
    for function in random.sample(functions, min(len(functions), SAMPLE)):
        assert source
        lines = [statement.lineno for statement in asserting(function, source)]
        passing = random.sample(lines, random.randint(0, len(lines)))
        drawn = draw_texts(function, source, random, count=8, passing=passing, room=20)
        for text in drawn.texts:
            edits = sorted(text.edits)
            assert all(before.end <= after.start for before, after in itertools.pairwise(edits))
            assert len({edit.start for edit in edits}) == len(edits)


def changed_alone(source: Source, function: ast.stmt, edit: TextEdit) -> bytes:
    """The function as changed, without the rest of the file: to parse that every time would take long."""
    end = source.span(function)[1]
    start = source.span(function)[0] - len(source.before(function).encode())
    assert start < edit.start <= edit.end <= end
    before, after = source.text(start, edit.start), source.text(edit.end, end)
    block = "if 1:\n" if source.before(function) else ""
    return f"{block}{before}{edit.text}{after}\n".encode()


def all_at_once(source: Source, random: Random) -> None:
    best = [found[0] for function in source.functions.values() if (found := changes(function, source))]
    changed = Source(source.apply_edits(change.edit(random) for change in best))
    assert list(changed.functions) == list(source.functions)
    differing = [
        name for name in source.functions if ast.dump(source.functions[name]) != ast.dump(changed.functions[name])
    ]
    assert len(differing) == len(best)
