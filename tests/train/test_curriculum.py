"""Which tasks an update plays, and how many.

Thompson sampling draws those that a policy solves half of the time, and draws none twice in a pass.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from test_batch import EPISODES

from swe_gym.errors import UsageError
from swe_gym.tasks.record import TaskRate, TaskRecord
from swe_gym.train.checkpoint import CANDIDATES, PassRates, RunState
from swe_gym.train.collect import PlayedBatch, TrainSlot
from swe_gym.train.config import AlgorithmConfig, make_config
from swe_gym.train.loop import Trainer, count_missing, count_sampled
from swe_gym.train.model import all_sampled
from swe_gym.trajectories import Trajectory


def played(task_id: str, *resolved: bool) -> list[Trajectory]:
    return [EPISODES[0].model_copy(update={"task_id": task_id, "resolved": one}) for one in resolved]


def test_counts_are_the_papers_sum_over_the_updates() -> None:
    """Unrolled, alpha is 1 + sum of l^(age) s, and beta 1 + sum of l^(age) (k - s)."""
    draw = np.random.default_rng(0)
    rates, history = PassRates(), []
    for _ in range(6):
        resolved = draw.random(4) < 0.3
        history.append(resolved)
        rates.add(played("a", *resolved.tolist()))
    weights = PassRates.FORGET ** np.arange(len(history))[::-1]
    solved = np.array([one.sum() for one in history])
    assert rates.counts["a"] == pytest.approx((1 + weights @ solved, 1 + weights @ (4 - solved)))


def test_the_tasks_nearest_to_one_half_are_chosen() -> None:
    rates = PassRates({"never": (1, 900), "often": (900, 100), "half": (500, 500), "always": (900, 1)})
    for seed in range(20):
        assert rates.choose(["never", "half", "always", "often"], 2, random.Random(seed)) == [1, 3]


def test_it_starts_from_the_rates_of_a_record(tmp_path: Path) -> None:
    record = TaskRecord(
        task_id="a", status="valid", backend="local", rates={"m": TaskRate(resolved=3, attempts=8, low=0.1, high=0.7)}
    )
    (tmp_path / "r.jsonl").write_text(record.model_dump_json() + "\n")
    after_one_update = PassRates()
    after_one_update.add(played("a", *[True] * 3, *[False] * 5))
    for place in (f"{tmp_path}/r.jsonl", f"m={tmp_path}/r.jsonl"):
        assert PassRates.recorded(place).counts == after_one_update.counts
    assert PassRates.recorded("").counts == {}
    with pytest.raises(UsageError, match=r"algorithm\.pass_rates: none\.jsonl is not a file"):
        PassRates.recorded("none.jsonl")
    with pytest.raises(UsageError, match="pass_rates are for curriculum 'thompson'"):
        make_config({"model": {"path": "m"}, "run": {"evaluate_every": 0}, "algorithm": {"pass_rates": "r.jsonl"}})


def simulate(curriculum: str, see: Callable[[list[TrainSlot]], None]) -> float:
    """Return the share of groups with a gradient where a third of the tasks each are impossible, random and trivial."""
    tasks = [f"{kind}-{number}" for kind in (0.0, 0.5, 1.0) for number in range(40)]
    state, draw, varied = RunState(3), random.Random(0), []
    for _ in range(60):
        slots = state.draw(tasks, 6, 4, curriculum)
        see(slots)
        for place in range(0, len(slots), 4):
            name = slots[place].task_id
            resolved = [draw.random() < float(name.partition("-")[0]) for _ in range(4)]
            state.rates.add(played(name, *resolved))
            varied.append(len(set(resolved)) == 2)
    return float(np.mean(varied))


def test_more_groups_have_a_gradient() -> None:
    shuffled, thompson = (simulate(name, lambda _: None) for name in ("shuffled", "thompson"))
    assert shuffled == pytest.approx(1 / 3 * 7 / 8, abs=0.05)
    assert thompson > 1.5 * shuffled


@pytest.mark.parametrize("curriculum", ["shuffled", "thompson"])
def test_no_task_is_drawn_twice_in_a_pass(curriculum: str) -> None:
    seen: dict[int, list[str]] = {}

    def see(slots: list[TrainSlot]) -> None:
        for slot in slots[::4]:
            seen.setdefault(slot.group // 120, []).append(slot.task_id)

    simulate(curriculum, see)
    assert len(seen) == (3 if curriculum == "shuffled" else 3 * CANDIDATES)
    assert all(len(set(names)) == len(names) for names in seen.values())


def test_it_chooses_from_as_many_tasks_at_the_end_of_a_pass_as_at_its_start() -> None:
    """50 tasks, of which 40 are solved; 12 groups. Each pass of all tasks ends within an update."""
    names = [f"t{index}" for index in range(50)]
    state = RunState(0)
    state.rates.counts = {name: (900.0, 1.0) if index < 40 else (10.0, 10.0) for index, name in enumerate(names)}
    for _ in range(6):
        drawn = [slot.task_id for slot in state.draw(names, 12, 1, "thompson")]
        assert len(set(drawn)) == 12
        assert sum(int(name[1:]) >= 40 for name in drawn) >= 6  # two, if only the rest of the pass stood for choice


def test_it_says_so_if_there_is_nothing_to_choose_from(caplog: pytest.LogCaptureFixture) -> None:
    RunState(0).draw(["a", "b"], 2, 1, "thompson")
    assert "changes nothing: an update plays 2 groups, and there are 2 tasks" in caplog.text


def test_it_needs_the_rewards_of_the_last_update() -> None:
    algorithm = {"curriculum": "thompson", "async_rollout": True}
    with pytest.raises(UsageError, match="curriculum 'shuffled'"):
        make_config({"model": {"path": "m"}, "run": {"evaluate_every": 0}, "algorithm": algorithm})


def group(number: int, tokens: int, *rewards: float) -> PlayedBatch:
    """A group of two episodes with so many sampled tokens of weights 0 together."""
    ends = [
        (
            TrainSlot("a", number, 0),
            EPISODES[0].model_copy(update={"segments": (all_sampled([1] * (1 + share)),), "reward": reward}),
        )
        for share, reward in zip((tokens // 2, tokens - tokens // 2), rewards or (0.0, 1.0), strict=True)
    ]
    return PlayedBatch.of(ends, {})


def play(sizes: list[int], algorithm: AlgorithmConfig, at_once: bool, *rewards: float) -> tuple[int, list[int]]:
    """Play groups of so many tokens until an update has enough. Return its tokens and the groups of each round."""
    batch, rounds = PlayedBatch.of([], {}), []
    while missing := count_missing(batch, algorithm):
        rounds.append(missing if at_once or not rounds else 1)
        for number in range(sum(rounds) - rounds[-1], sum(rounds)):
            batch = batch.join(group(number, sizes[number], *rewards))
    return count_sampled(batch, algorithm), rounds


def test_an_update_has_its_tokens() -> None:
    """One group at a time, it is the shortest row of groups with so many, within the bounds; else hardly more."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        sizes = draw.integers(2, 200, 40).tolist()
        algorithm = AlgorithmConfig(prompts_per_step=5, max_refills=7, tokens_per_step=int(draw.integers(1, 5000)))
        sums = np.cumsum(sizes)
        shortest = min(40, max(5, 1 + int(np.searchsorted(sums, algorithm.tokens_per_step))))
        assert play(sizes, algorithm, at_once=False) == (sums[shortest - 1], [5, *[1] * (shortest - 5)])
        tokens, rounds = play(sizes, algorithm, at_once=True)
        assert tokens >= min(algorithm.tokens_per_step, sums[-1])
        assert sum(rounds) >= shortest


def test_groups_of_equal_length_need_two_rounds() -> None:
    algorithm = AlgorithmConfig(prompts_per_step=4, max_refills=9, tokens_per_step=1000)
    assert play([70] * 40, algorithm, at_once=True) == (1050, [4, 11])
    assert play([70] * 40, algorithm.model_copy(update={"tokens_per_step": 0}), at_once=True) == (280, [4])


@pytest.mark.parametrize("kept", ["keep", "drop", "refill"])
def test_tokens_of_dropped_groups_do_not_count(kept: str) -> None:
    algorithm = AlgorithmConfig.model_validate(
        {"prompts_per_step": 4, "max_refills": 2, "tokens_per_step": 300, "zero_variance_groups": kept}
    )
    tokens, rounds = play([50] * 12, algorithm, True, 1.0, 1.0)
    assert (tokens, sum(rounds)) == ((300, 6) if kept == "keep" else (600, 12))  # the most groups of an update


def test_tokens_that_are_too_old_do_not_count() -> None:
    algorithm, old = AlgorithmConfig(prompts_per_step=1, tokens_per_step=100), group(0, 100)
    assert (count_missing(old, algorithm, 0), count_missing(old, algorithm, 1)) == (0, 1)


@pytest.mark.parametrize(("most", "tokens"), [(1, 80), (2, 100)])
def test_rounds_go_on_until_the_update_has_its_tokens_or_groups(
    most: int, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Later groups are shorter than the first, so that each estimate is too low."""
    trainer = Trainer.__new__(Trainer)
    algorithm = {"prompts_per_step": 2, "tokens_per_step": 100, "max_refills": most}
    trainer.config = make_config({"model": {"path": "m"}, "run": {"evaluate_every": 0}, "algorithm": algorithm})
    trainer.state, trainer._ahead, trainer._warned = RunState(0), None, set()
    sizes = itertools.cycle([30, 30, *[10] * 2 * most])

    def play(slots: Sequence[TrainSlot], temperature: float) -> PlayedBatch:  # noqa: ARG001
        parts = [group(number, next(sizes)) for number in sorted({slot.group for slot in slots})]
        return functools.reduce(PlayedBatch.join, parts)

    collector: Any = SimpleNamespace(task_ids=["a", "b"], play=play)
    for _ in range(2):
        assert count_sampled(trainer._collect(collector), trainer.config.algorithm) == tokens
    told = "update 1 has 80 tokens, fewer than algorithm.tokens_per_step = 100"
    assert caplog.text.count(told) == (tokens < 100)


def test_an_update_of_lost_episodes_plays_others() -> None:
    lost = dataclasses.replace(PlayedBatch.of([], {}), all_groups=frozenset({0, 1}))
    assert count_missing(lost, AlgorithmConfig(prompts_per_step=2, tokens_per_step=9)) == 2
    assert count_missing(lost, AlgorithmConfig(prompts_per_step=2)) == 0
