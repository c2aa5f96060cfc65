"""Advantages against reference implementations in numpy."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from swe_gym.errors import UsageError  # noqa: E402  only where torch is there
from swe_gym.train.batch import find_steps, make_batch, places_of_tokens  # noqa: E402
from swe_gym.train.objective import (  # noqa: E402
    ESTIMATORS,
    EpisodeSteps,
    estimator,
    explained_variance,
    gae,
    gigpo,
    grpo,
    nonzero_variance,
    rtmc,
    tree_grpo,
    whiten,
)
from swe_gym.trajectories import Segment, Trajectory, Turn  # noqa: E402

REWARDS = np.array([1.0, 0.0, 0.0, 1.0, 0.5, 0.25, 1.0])
GROUPS = np.array([7, 7, 7, 3, 3, 9, 7])


def by_hand(name: str) -> np.ndarray:
    found = np.zeros(len(REWARDS))
    for index, (reward, group) in enumerate(zip(REWARDS, GROUPS, strict=True)):
        of_group = REWARDS[group == GROUPS]
        others = np.delete(REWARDS, index)[np.delete(GROUPS, index) == group]
        if name == "rloo":
            found[index] = reward - others.mean() if len(others) else 0.0
        else:
            found[index] = reward - of_group.mean()
        if name == "grpo":
            found[index] /= (of_group.std(ddof=1) if len(others) else 0.0) + 1e-6
    return found / (found.std() + 1e-6) if name == "reinforce++" else found


@pytest.mark.parametrize("name", ESTIMATORS)
def test_group_estimators_equal_the_formula(name: str) -> None:
    found = estimator(name)(torch.tensor(REWARDS), torch.tensor(GROUPS))
    np.testing.assert_allclose(found.numpy(), by_hand(name), atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_in_a_batch_have_no_advantage(name: str) -> None:
    same = torch.full((6,), 0.3, dtype=torch.float64)
    found = estimator(name)(same, torch.tensor([0, 0, 0, 1, 1, 2]))
    np.testing.assert_allclose(found.numpy(), 0.0, atol=1e-6)
    assert estimator(name)(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_have_exactly_zero_advantage(name: str, reward: float) -> None:
    """Also in float32, where the mean of equal rewards may differ from them by rounding."""
    found = estimator(name)(torch.full((7,), reward), torch.zeros(7, dtype=torch.long))
    assert found.tolist() == [0.0] * 7


def test_groups_whose_rewards_differ_have_nonzero_variance() -> None:
    found = nonzero_variance(torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1, 2]))
    assert found.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0)])
def test_gae_equals_the_sum_of_discounted_td_errors(gamma: float, lam: float) -> None:
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=9), draw.normal(size=9)
    following = np.append(values[1:], 0.0)
    surprise = rewards + gamma * following - values
    expected = [sum((gamma * lam) ** (j - i) * surprise[j] for j in range(i, 9)) for i in range(9)]
    advantages, returns = gae(torch.tensor(rewards), torch.tensor(values), gamma=gamma, gae_lambda=lam)
    np.testing.assert_allclose(advantages.numpy(), expected)
    np.testing.assert_allclose(returns.numpy(), np.array(expected) + values)


def test_with_lambda_one_gae_is_the_return_minus_the_value() -> None:
    rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.2, 0.5, 0.9])
    advantages, returns = gae(rewards, values)
    np.testing.assert_allclose(returns.numpy(), [1.0, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(advantages.numpy(), [0.8, 0.5, 0.1], rtol=1e-6)


def test_whitened_values_have_mean_zero_and_deviation_one() -> None:
    found = whiten(torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=torch.float64))
    assert abs(float(found.mean())) < 1e-9
    assert abs(float((found**2).mean()) - 1) < 1e-5


def test_an_unknown_estimator_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="rloo"):
        estimator("rlo")


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns + 3.0, returns) == pytest.approx(1.0)
    assert explained_variance(torch.full((4,), 0.5), returns) == pytest.approx(0.0)
    assert explained_variance(1.0 - returns, returns) == pytest.approx(-3.0)
    assert np.isnan(explained_variance(returns, torch.ones(4)))
    assert np.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))


# --- trees and steps -----------------------------------------------------------------------------------------


def standardize(values: list[float]) -> list[float]:
    """GRPO in plain Python."""
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
    return [(value - mean) / (spread + 1e-6) for value in values]


def test_tree_grpo_adds_the_advantages_in_the_tree_and_in_the_group() -> None:
    rewards, groups, trees = [1.0, 0.0, 1.0, 1.0, 0.0, 0.5], [0, 0, 0, 0, 1, 1], [4, 4, 9, 9, 2, 3]
    expected = [0.0] * 6
    for names in (groups, trees):
        for name in set(names):
            places = [place for place, one in enumerate(names) if one == name]
            for place, value in zip(places, standardize([rewards[place] for place in places]), strict=True):
                expected[place] += value
    found = tree_grpo(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), torch.tensor(trees))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)
    assert float(found[2]) == pytest.approx(standardize([1.0, 0.0, 1.0, 1.0])[0])  # nothing differs in its tree


def record(turns: Sequence[Turn], **changes: Any) -> Trajectory:
    judged = {"outcome": "submitted", "reward_valid": True, "resolved": False, "reward": 0.0}
    return Trajectory(task_id="a", observation="", turns=tuple(turns), **judged, **changes)


class Walks:
    """Random episodes as lists of (state, action), with a reward at the end."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.groups = [7, 7, 7, 7, 7, 2, 2, 2]
        self.walks = [[(draw.randrange(3), draw.randrange(2)) for _ in range(draw.randrange(1, 7))] for _ in range(8)]
        self.rewards = [float(draw.random() < 0.5) for _ in range(8)]
        self.rows = [(episode, place) for episode, walk in enumerate(self.walks) for place in range(len(walk))]

    def returned(self, episode: int, place: int, gamma: float) -> float:
        return self.rewards[episode] * gamma ** (len(self.walks[episode]) - 1 - place)

    def steps(self, gamma: float) -> EpisodeSteps:
        """The steps, by the records of the episodes: a signature names the state after a turn."""
        records = []
        for walk, reward in zip(self.walks, self.rewards, strict=True):
            states = [*(str(state) for state, _ in walk[1:]), ""]
            turns = [
                Turn(action="x", tool="t", arguments={"n": action}, observation="", info={"signature": state})
                for (_, action), state in zip(walk, states, strict=True)
            ]
            turns[-1] = turns[-1].model_copy(update={"reward": reward})
            records.append(record(turns))
        return find_steps(records, self.groups, gamma)

    def key(self, episode: int, place: int) -> tuple[object, ...]:
        state = self.walks[episode][place][0] if place else "start"
        return (self.groups[episode], state)


@pytest.mark.parametrize("seed", range(5))
def test_gigpo_and_rtmc_equal_their_equations(seed: int) -> None:
    walks, gamma, weight, prior = Walks(seed), 0.9, 0.5, 2.0
    rewards, groups = torch.tensor(walks.rewards, dtype=torch.float64), torch.tensor(walks.groups)
    steps = walks.steps(gamma)
    steps = steps._replace(returns=steps.returns.double(), discounts=steps.discounts.double())

    whole, of_states = dict[int, float](), dict[tuple[int, int], float]()
    for group in set(walks.groups):
        members = [episode for episode, one in enumerate(walks.groups) if one == group]
        whole |= dict(zip(members, standardize([walks.rewards[one] for one in members]), strict=True))
    for key in {walks.key(*row) for row in walks.rows}:
        rows = [row for row in walks.rows if walks.key(*row) == key]
        of_states |= dict(zip(rows, standardize([walks.returned(*row, gamma) for row in rows]), strict=True))
    expected = [whole[row[0]] + weight * of_states[row] for row in walks.rows]
    found = gigpo(rewards, groups, steps, weight=weight)
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)

    visits: dict[tuple[object, ...], dict[int, list[float]]] = {}  # state -> action -> returns of first visits
    first: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for episode in range(8):
        met = set()
        for place, (_, action) in enumerate(walks.walks[episode]):
            key = walks.key(episode, place)
            if (key, action) not in met:
                met.add((key, action))
                returned = walks.returned(episode, place, gamma)
                visits.setdefault(key, {}).setdefault(action, []).append(returned)
                first.setdefault(key, []).append((episode, place))
    expected = []
    for episode, place in walks.rows:
        actions, action = visits[walks.key(episode, place)], walks.walks[episode][place][1]
        count = sum(map(len, actions.values()))
        value = sum(map(sum, actions.values())) / count
        rate = np.mean([walks.rewards[one] for one in range(8) if walks.groups[one] == walks.groups[episode]])
        left = [len(walks.walks[one]) - 1 - at for one, at in first[walks.key(episode, place)]]
        smoothed = (count * value + prior * rate * np.mean([gamma**one for one in left])) / (count + prior)
        expected.append(np.mean(actions[action]) - smoothed)
    found = rtmc(rewards, groups, steps, prior=prior)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_in_a_large_group_the_step_estimators_find_the_true_advantages() -> None:
    """Two calls; each is right with probability 0.3 and both must be. The whole episode blames a right first call."""
    draw = np.random.default_rng(0)
    right = draw.random((4000, 2)) < 0.3
    rewards = torch.tensor(right.all(1).astype(float))
    episodes = torch.arange(4000).repeat_interleave(2)
    states = torch.tensor(np.stack([np.zeros(4000), 1 + right[:, 0]], 1).reshape(-1)).long()
    actions, returns = 2 * states + torch.tensor(right.reshape(-1)), rewards[episodes]
    steps = EpisodeSteps(episodes, states, actions, returns, torch.ones_like(returns))
    true = {(0, 0): -0.09, (0, 1): 0.3 - 0.09, (1, 0): 0.0, (1, 1): 0.0, (2, 0): -0.3, (2, 1): 0.7}
    group = torch.zeros(4000, dtype=torch.long)
    found = rtmc(rewards, group, steps, prior=2.0)
    local = gigpo(rewards, group, steps) - gigpo(rewards, group, steps, weight=0.0)
    for (state, action), value in true.items():
        here = (states == state) & (steps.actions == 2 * state + action)
        assert float(found[here].mean()) == pytest.approx(value, abs=0.03)
        spread = {0: 0.09 * 0.91, 1: 1.0, 2: 0.21}[state] ** 0.5
        assert float(local[here].mean()) == pytest.approx(value / spread, abs=0.1)
    wrong = (states == 2) & (steps.actions == 4)
    assert float(grpo(rewards, group)[episodes][steps.actions == 1].mean()) > 0  # it knows the call, not the state
    assert float(grpo(rewards, group)[episodes][wrong].mean()) == pytest.approx(
        float(grpo(rewards, group)[episodes][(states == 1)].mean())
    )


@pytest.mark.parametrize("gamma", [0.95, 0.99])
def test_rtmc_never_trains_against_a_long_success_that_met_no_shared_state(gamma: float) -> None:
    turn = Turn(action="x", tool="t", observation="", info={"signature": ""})
    won = record([turn] * 49 + [turn.model_copy(update={"reward": 1.0})])
    for others, expected in (([won, won], 0.0), ([record([turn] * 50), won], 1.0)):
        episodes = [won, *others]
        steps = find_steps(episodes, [0, 0, 0], gamma)
        found = rtmc(torch.tensor([one.turns[-1].reward for one in episodes]), torch.zeros(3, dtype=torch.long), steps)
        own = found[steps.episodes == 0][1:]  # the start is shared
        assert float(own.min()) > -1e-6
        assert float(own.gt(1e-6).float().mean()) == expected


def test_steps_and_tokens_of_a_record() -> None:
    def turn(number: int, **changes: Any) -> Turn:
        called = {"action": f"do {number}", "tool": "t", "arguments": {"n": number}}
        return Turn(**{"observation": "", **called, "info": {"signature": f"s{number}"}, **changes})

    mask = (0, 1, 1, 0, 1, 0, 0, 1, 1)
    row = Segment(token_ids=tuple(range(9)), loss_mask=mask, logprobs=(0.0,) * 9, versions=tuple(v - 1 for v in mask))
    turns = (turn(1), turn(2, tool="", arguments={}, info={"signature": ""}), turn(3, reward=1.0))
    first = record(turns[:2], segments=(row,))
    other = first.model_copy(update={"turns": (turn(1, action="another thought"), *turns[1:]), "segments": (row, row)})
    empty = first.model_copy(update={"turns": (), "reward": 0.5, "segments": (row,)})
    steps = find_steps([first, other, empty], [0, 0, 1], gamma=0.5)
    assert steps.episodes.tolist() == [0, 0, 1, 1, 1, 2]
    assert steps.states.tolist()[0] == steps.states.tolist()[2]  # the start
    assert steps.states.tolist()[1] == steps.states.tolist()[3]  # "s1"
    assert len(set(steps.states.tolist())) == 4  # one without a signature, and the start of another group
    assert steps.actions.tolist()[:2] == steps.actions.tolist()[2:4]
    assert steps.returns.tolist() == [0.0, 0.0, 0.25, 0.5, 1.0, 0.5]
    assert steps.discounts.tolist() == [0.5, 1.0, 0.25, 0.5, 1.0, 1.0]
    batch = make_batch([first, other, empty])
    assert batch.answers.tolist() == [0, 0, 1, 2, 2, 0, 0, 1, 2, 2, 3, 3, 4, 5, 5, 0, 0, 1, 2, 2]
    assert places_of_tokens(steps, batch).tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5]
