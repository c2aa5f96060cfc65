"""The data of the plots against formulas and manual counts."""

import pytest
from runs_on_disk import failed, trajectory

from swe_gym.trajectories.run_folder import index_line
from swe_gym.trajectories.statistics import PassAtK, pass_curve
from swe_gym.trajectories.trajectory import Trajectory
from swe_gym.viewer.index import EpisodeRow, row_of
from swe_gym.viewer.results import MOST_BARS, resolved_by, summary, turn_bins, wall_clock


def row(record: Trajectory) -> EpisodeRow:
    state = "failed" if not record.reward_valid else "resolved" if record.resolved else "unresolved"
    return row_of("x", state, index_line(record, 0, 0))


def test_the_curve_uses_only_tasks_with_enough_attempts() -> None:
    outcomes = {"a": [True, False, False], "b": [False], "c": [True, True]}
    assert pass_curve(outcomes) == [
        PassAtK(1, pytest.approx((1 / 3 + 0 + 1) / 3), 3),
        PassAtK(2, pytest.approx((2 / 3 + 1) / 2), 2),
        PassAtK(3, 1.0, 1),
    ]
    assert pass_curve({}) == []


def test_small_repositories_share_a_bar() -> None:
    rows = [row(trajectory("a-1", 0, resolved=True)), row(trajectory("a-1", 1)), row(trajectory("b-2", repo=""))]
    assert resolved_by(rows) == [("toy/a", 1, 2), ("no repository", 0, 1)]
    many = [row(trajectory(repo=f"r/{number:02}", resolved=number % 2 == 0)) for number in range(30)]
    bars = resolved_by(many)
    assert len(bars) == MOST_BARS
    assert bars[-1][0] == f"{30 - MOST_BARS + 1} others"
    assert (sum(bar[1] for bar in bars), sum(bar[2] for bar in bars)) == (15, 30)


@pytest.mark.parametrize(("turns", "width"), [([0, 1, 24], 1), ([3, 25], 2), ([1, 100], 5), ([7, 12_345], 500)])
def test_turns_are_in_bins_of_round_width(turns: list[int], width: int) -> None:
    rows = [row(trajectory())._replace(turns=number) for number in turns]
    bins = turn_bins(rows)
    assert {high - low + 1 for low, high, _, _ in bins} == {width}
    assert len(bins) <= 25
    assert sum(good + bad for _, _, good, bad in bins) == len(turns)
    for n in turns:
        assert any(low <= n <= high and bad for low, high, _, bad in bins)
    assert turn_bins([]) == []


def test_the_wall_clock_adds_up() -> None:
    rows = [row(trajectory()), row(trajectory(attempt=1)), row(failed())]
    spent = wall_clock(rows)
    assert spent == {"model": 4.0, "tools": 2.0, "reset": 2.0, "grading": 4.0, "other": 2.0, "failed tries": 7.0}
    assert sum(spent.values()) == sum(one.seconds["total"] for one in rows)


def test_failed_tries_are_counted_separately() -> None:
    rows = [row(trajectory(resolved=True)), row(trajectory("b-2")), row(failed()), row(failed(attempt=1))]
    stats = summary(rows)
    assert (stats["judged"], stats["resolved"], stats["failed"], stats["tasks"]) == (2, 1, 2, 2)
    assert stats["reasons"] == [("submit", 2)]
    assert stats["failures"] == [("SandboxLost (oom)", 2)]
    assert stats["pass_at_k"] == [PassAtK(1, 0.5, 2)]
    assert summary([])["pass_at_k"] == []
