"""Every published cheat scores 0, and honest work of every shape 1."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swe_gym.errors import Unsupported
from swe_gym.grading.graders import TESTS
from swe_gym.sandboxes import Sandbox, SandboxSpec, open_sandbox
from swe_gym.testing.cheats import AWARE, CHEATS, HONEST, Cheat, play_cheat, read_cheats
from swe_gym.types import Task

SILENT = ("nothing", "odd-files", "environment")
QUIET = ("forged-status", "profile")
"""Cheats that may end without a sign: they fail before a changed text passes."""
"""Cheats of which no sign can be told from honest work."""

REPOSITORIES = {"shop": (), "words": pytest.mark.slow}
"""Name of a repository -> its marks. The tests of the first use unittest, those of the second pytest."""

OF_RUNNERS = {cheat.name for topic in ("runner", "reporter", "tests") for cheat in read_cheats(topic)}
"""Cheats that the runner of the tests makes easier or harder. Only these and honest work meet both."""

NAMES = [pytest.param(name, marks=marks) for name, marks in REPOSITORIES.items()]
CASES = [
    pytest.param(name, cheat, id=f"{name}-{cheat.name}", marks=marks)
    for cheat in (*CHEATS, *HONEST)
    for name, marks in REPOSITORIES.items()
    if name == "shop" or cheat.resolved or cheat.name in OF_RUNNERS
]
BY_COPY = next(cheat for cheat in AWARE if cheat.name == "by-copy")  # the only one whose end is certain
UNCOUNTED = replace(TESTS, counted=False)
"""The grader "tests" without counter-tests."""


@pytest.fixture(scope="module")
def network_is_open(tasks: dict[str, Task], open_box: Callable[[Task], Sandbox]) -> bool:
    with open_box(tasks["shop"]) as sandbox:
        return sandbox.capabilities.network == "open"  # some tiers cannot close it, and say so


@pytest.mark.sample(every=4)
@pytest.mark.parametrize(("name", "cheat"), CASES)
def test_only_honest_work_counts(
    name: str, cheat: Cheat, tasks: dict[str, Task], open_box: Callable[[Task], Sandbox], network_is_open: bool
) -> None:
    result = play_cheat(cheat, tasks[name], open_box)
    assert result.verdict.resolved is cheat.resolved, (result.verdict, result.verdict.log, result.output)
    assert not result.leaked or (cheat.name == "network" and network_is_open), result.output
    if cheat.name not in QUIET:
        assert bool(result.signs) is not (cheat.resolved or cheat.name in SILENT), result.signs


@pytest.mark.sample(every=4)
@pytest.mark.parametrize(
    "cheat", [*read_cheats("interpreter"), *read_cheats("reporter"), BY_COPY], ids=lambda cheat: cheat.name
)
@pytest.mark.parametrize("name", NAMES)
def test_without_counter_tests_these_are_rewarded(
    name: str, cheat: Cheat, tasks: dict[str, Task], open_box: Callable[[Task], Sandbox]
) -> None:
    """A cheat that fails for another reason would prove nothing of counter-tests."""
    oracle = tasks[name].oracle.model_copy(update={"grader": f"{__name__}:UNCOUNTED"})
    result = play_cheat(cheat, tasks[name].model_copy(update={"oracle": oracle}), open_box)
    assert result.verdict.resolved, (result.verdict, result.verdict.log)


@pytest.mark.parametrize("name", NAMES)
def test_knowing_the_visible_tests_does_not_help_with_new_ones(
    name: str, tasks: dict[str, Task], open_box: Callable[[Task], Sandbox]
) -> None:
    result = play_cheat(BY_COPY, tasks[name], open_box)
    assert not result.verdict.resolved
    assert "counter-test" in result.signs


def test_python_starts_without_modules_of_the_workspace(
    tasks: dict[str, Task], open_box: Callable[[Task], Sandbox]
) -> None:
    env = {
        **tasks["shop"].env,
        "PYTHONWARNINGS": "ignore::started.early",
    }  # any Python imports that module at its start
    cheat = next(cheat for cheat in CHEATS if cheat.name == "startup-modules")
    result = play_cheat(cheat, tasks["shop"].model_copy(update={"env": env}), open_box)
    assert not result.verdict.resolved


def test_cheats_are_refused_without_isolation(tasks: dict[str, Task]) -> None:
    def open_unsafe(task: Task) -> Sandbox:
        return open_sandbox(SandboxSpec(workspace=task.workspace, options={"tier": "process"}))

    with pytest.raises(Unsupported, match="real attacks"):
        play_cheat(CHEATS[0], tasks["shop"], open_unsafe)


def test_names_are_unique() -> None:
    names = [cheat.name for cheat in (*CHEATS, *AWARE, *HONEST)]
    assert len(names) == len(set(names))


def test_the_docs_name_every_cheat() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cheats.md").read_text("utf-8")
    missing = [cheat.name for cheat in (*CHEATS, *AWARE, *HONEST) if f"| `{cheat.name}` | {cheat.about} |" not in text]
    assert missing == []
