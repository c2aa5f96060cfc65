"""Opening a source by name: its arguments are checked first."""

from collections.abc import Sequence
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.tasks import SOURCES, check_source, load_source
from swe_gym.types import Task

HERE = f"{__name__}:"


class Whatever:
    """A custom source that accepts any argument."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def ids(self) -> Sequence[str]:
        return tuple(self.facts)

    def get(self, task_id: str) -> Task:
        return Task(task_id=task_id, problem_statement=str(self.facts[task_id]))


class Named(Whatever):
    """A custom source that passes other arguments to its base class."""

    def __init__(self, first: str, **facts: Any) -> None:
        super().__init__(first=first, **facts)


def plain(first: str) -> Whatever:
    return Whatever(first=first)


@pytest.mark.parametrize("name", SOURCES)
def test_unknown_options_are_rejected(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^unknown option of task source '{name}': 'nonsense'\. Known: "):
        load_source(name, nonsense=1)


def test_options_of_base_classes_are_accepted() -> None:
    check_source("swegym", ["path", "hints", "revision", "image"])
    with pytest.raises(UsageError, match="Did you mean 'hints'"):
        check_source("swegym", ["hint"])


@pytest.mark.parametrize(("name", "arguments"), [("micro", {"count": "x"}), ("swebench-verified", {"path": 5})])
def test_arguments_of_the_wrong_type_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^option '{list(arguments)[-1]}' of task source '{name}': .*should be"):
        load_source(name, **arguments)


def test_missing_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="task source 'harbor' requires the argument 'path'"):
        load_source("harbor")


def test_options_of_custom_sources_are_checked() -> None:
    assert list(load_source(f"{HERE}Whatever", a=1, b=2).ids()) == ["a", "b"]
    assert list(load_source(f"{HERE}Named", first=1, b=2).ids()) == ["first", "b"]
    assert list(load_source(f"{HERE}plain", first=1).ids()) == ["first"]
    with pytest.raises(UsageError, match="requires the argument 'first'"):
        load_source(f"{HERE}Named", b=2)
    with pytest.raises(UsageError, match=r"'second'\. Known: first\."):
        load_source(f"{HERE}plain", first=1, second=2)
