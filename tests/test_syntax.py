"""Parsing in several threads."""

import ast
import gc
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_gym.syntax import evaluate, parse

SOURCE = Path(__file__).read_text(encoding="utf-8")


@pytest.fixture
def switching() -> Iterator[None]:
    """The parser is often left for another thread: the garbage collector runs a function in the midst of it."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(collected)


def collected(_phase: str, _about: dict[str, int]) -> None:
    time.sleep(0)  # lets another thread run


@pytest.mark.usefixtures("switching")
@pytest.mark.timeout(120)
def test_threads_and_parsers_of_others_do_not_disturb() -> None:
    done = threading.Event()
    trees: list[str] = []

    def disturb() -> None:
        while not done.is_set():
            try:
                ast.parse("[" * 30 + "1" + "]" * 30)
            except SystemError:
                continue

    def work() -> None:
        trees.extend(ast.dump(parse(SOURCE)) for _ in range(40))

    others = [threading.Thread(target=disturb) for _ in range(2)]
    ours = [threading.Thread(target=work) for _ in range(4)]
    for thread in (*others, *ours):
        thread.start()
    for thread in ours:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert trees == [ast.dump(ast.parse(SOURCE))] * 160


def test_mistakes_and_literals() -> None:
    with pytest.raises(SyntaxError):
        parse("1 +", "eval")
    assert ast.unparse(parse(r"'\d'", "eval")) == r"'\\d'"
    assert evaluate(" {'a': (1, b'2')}") == {"a": (1, b"2")}
    with pytest.raises(ValueError, match="malformed"):
        evaluate("open('x')")
