"""The comparison of runs: its statistics by hand and by brute force, and runs on disk."""

import itertools
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from runs_on_disk import failed, trajectory, write_run

from swe_gym.errors import UsageError
from swe_gym.trajectories.comparison import compare
from swe_gym.trajectories.run_folder import INDEX
from swe_gym.trajectories.statistics import difference_interval, sign_flip_test

MORE, LESS, EQUAL = Fraction(1), Fraction(-1), Fraction(0)


def share_of_all_flips(differences: list[Fraction]) -> float:
    observed = abs(sum(differences))
    flips = list(itertools.product((1, -1), repeat=len(differences)))
    extreme = sum(
        abs(sum(sign * one for sign, one in zip(flip, differences, strict=True))) >= observed for flip in flips
    )
    return extreme / len(flips)


@pytest.mark.parametrize(("better", "worse"), [(9, 2), (2, 9), (5, 5), (6, 0), (1, 0), (400, 250)])
def test_one_attempt_per_task_is_the_exact_test_of_mcnemar(better: int, worse: int) -> None:
    unequal = better + worse
    tail = sum(math.comb(unequal, count) for count in range(min(better, worse) + 1))
    expected = min(1.0, 2 * tail / 2**unequal)
    differences = [MORE] * better + [EQUAL] * 30 + [LESS] * worse
    assert sign_flip_test(differences) == pytest.approx(expected, rel=1e-9)


def test_the_sign_flip_test_by_hand() -> None:
    assert sign_flip_test([]) == sign_flip_test([EQUAL, EQUAL]) == 1.0
    assert sign_flip_test([MORE] * 9 + [LESS] * 2) == pytest.approx(134 / 2048)
    # sums of +-1/2 +-1/4: 3/4, 1/4, -1/4, -3/4
    assert sign_flip_test([Fraction(1, 2), Fraction(1, 4)]) == 0.5
    assert sign_flip_test([Fraction(1, 2), Fraction(-1, 4)]) == 1.0


@pytest.mark.parametrize("attempts", [1, 2, 3, 8])
def test_the_sign_flip_test_is_the_share_of_all_flips(attempts: int) -> None:
    draw = random.Random(attempts)
    for tasks in range(1, 9):
        differences = [Fraction(draw.randint(-attempts, attempts), attempts) for _ in range(tasks)]
        assert sign_flip_test(differences) == pytest.approx(share_of_all_flips(differences))


def test_a_large_sum_is_drawn_and_deterministic() -> None:
    differences = [Fraction(2, n) - Fraction(1, n + 1) for n in (7, 11, 13, 16, 17, 19, 23, 3, 4, 5)]
    differences = [-one if place % 4 == 0 else one for place, one in enumerate(differences)]
    drawn = sign_flip_test(differences)
    assert drawn == pytest.approx(share_of_all_flips(differences), abs=0.01)
    assert drawn == sign_flip_test(differences)
    assert round(drawn * 100_001) == pytest.approx(drawn * 100_001)  # a share of the draws and the observed one


def test_the_interval_of_a_difference() -> None:
    low, high = difference_interval([MORE] * 9 + [LESS] * 2 + [EQUAL] * 89)
    half = 1.96 * math.sqrt(((9 + 2 + 2) / 102 - (7 / 102) ** 2) / 102)
    assert (low, high) == (pytest.approx(7 / 102 - half), pytest.approx(7 / 102 + half))
    assert difference_interval([EQUAL] * 100) == (pytest.approx(-0.0272, abs=1e-4), pytest.approx(0.0272, abs=1e-4))
    several = difference_interval([Fraction(1, 2), EQUAL, Fraction(1, 4), Fraction(-1, 4)])
    # the values and +-1/2: mean 1/12, mean square (1/4 + 1/16 + 1/16 + 1/2) / 6
    half = 1.96 * math.sqrt((0.875 / 6 - 1 / 144) / 6)
    assert several == (pytest.approx(1 / 12 - half), pytest.approx(1 / 12 + half))
    low, high = difference_interval([Fraction(1, 2)])  # one task tells next to nothing
    assert low < -0.3
    assert high > 0.6
    assert difference_interval([]) == (-1.0, 1.0)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Write two runs: `a-1` resolved by the second only, `b-2` by both, `c-3` graded in the first only."""
    config = {"policy": "llm", "policy_options": {"model": "small"}, "env": {"max_turns": 30, "tools": "default"}}
    first = write_run(
        tmp_path / "first",
        *(trajectory("a-1", attempt) for attempt in range(2)),
        *(trajectory("b-2", attempt, resolved=True) for attempt in range(2)),
        trajectory("c-3", resolved=True),
        config=config,
        tasks=("a-1", "b-2", "c-3"),
    )
    other = {"policy": "llm", "policy_options": {"model": "large"}, "env": {"max_turns": 50, "tools": "default"}}
    second = write_run(
        tmp_path / "second",
        *(trajectory("a-1", attempt, resolved=attempt > 0) for attempt in range(2)),
        *(trajectory("b-2", attempt, resolved=True) for attempt in range(2)),
        failed("c-3"),
        failed("c-3", 1),
        config=other,
        tasks=("a-1", "b-2", "c-3"),
        swe_gym="0.2.0",
    )
    return [first, second]


def test_runs_are_compared_over_their_common_tasks(runs: list[Path]) -> None:
    found = compare(runs)
    first, second = found.runs
    assert (first.name, first.model, first.tasks, first.graded, first.planned) == ("first", "small", 3, 5, 6)
    assert (first.resolved, first.pass_at_k) == (pytest.approx(2 / 3), {1: pytest.approx(2 / 3), 2: 0.5})
    assert (second.graded, second.failed_tries, second.resolved) == (4, 2, 0.75)  # a failed try is not a failure
    assert second.cost == pytest.approx(6 * 0.02)  # but it was paid
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.tasks, pair.difference) == ("first", "second", 2, 0.25)
    assert (pair.better, pair.worse, pair.p_value) == (1, 0, 1.0)
    assert [(task.task_id, task.resolved, task.graded) for task in found.tasks] == [
        ("a-1", (0, 1), (2, 2)),
        ("c-3", (1, None), (1, 0)),
        ("b-2", (2, 2), (2, 2)),
    ]


def test_what_makes_runs_hard_to_compare_is_named(runs: list[Path]) -> None:
    found = compare(runs)
    assert found.settings == {"env.max_turns": (30, 50), "policy_options.model": ("small", "large")}
    assert found.warnings == (
        "env.max_turns differs: 30 in first, 50 in second",
        "swe_gym version differs: not set in first, 0.2.0 in second",
        "first: 1 of 6 attempts are not graded",
        "second: 2 of 6 attempts are not graded",
        "1 of 3 tasks are graded in only one of first and second; their paired difference uses the common tasks",
    )


def test_a_run_that_stopped_early_is_named(runs: list[Path], tmp_path: Path) -> None:
    made = {"settings": {"early_stop": "votes"}, "tasks": ("a-1",)}
    early = write_run(tmp_path / "early", trajectory("a-1"), attempts=2, **made)
    whole = write_run(tmp_path / "whole", trajectory("a-1"), attempts=1, **made)
    said = [warning for warning in compare([early, whole, *runs]).warnings if "run.early_stop=votes" in warning]
    assert [one.partition(" stopped early")[0] for one in said] == ["early"]


def test_an_index_that_lags_and_equal_names(runs: list[Path], tmp_path: Path) -> None:
    whole = compare(runs)
    (runs[0] / INDEX).write_bytes((runs[0] / INDEX).read_bytes().splitlines(keepends=True)[0])
    assert compare(runs) == whole
    empty = write_run(tmp_path / "other" / "first")
    found = compare([runs[0], empty])
    assert [run.name for run in found.runs] == [f"{tmp_path.name}/first", "other/first"]
    assert (found.runs[1].resolved, found.pairs) == (None, ())
    assert found.warnings[-1] == (
        f"other/first and {tmp_path.name}/first have no graded task in common, so they have no paired difference"
    )


def test_the_first_run_is_the_base_of_all_differences(runs: list[Path], tmp_path: Path) -> None:
    third = write_run(tmp_path / "third", trajectory("a-1", resolved=True), trajectory("b-2"))
    found = compare([third, *runs])
    assert [(pair.first, pair.second, pair.difference) for pair in found.pairs] == [
        ("third", "first", 0.0),
        ("third", "second", 0.25),
    ]


def test_what_is_not_a_run_is_refused(runs: list[Path], tmp_path: Path) -> None:
    for folders, problem in (
        ([runs[0]], "two or more"),
        ([runs[0], runs[0]], "given twice"),
        ([runs[0], tmp_path / "nothing"], "nothing does not exist"),
        ([runs[0], tmp_path], r"has no run\.json\. Run folders in it: first, second"),
        ([runs[0], runs[0] / "run.json"], r"run\.json is a file"),
    ):
        with pytest.raises(UsageError, match=problem):
            compare(folders)
