"""Advantages against reference implementations in numpy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from swe_gym.errors import UsageError  # noqa: E402  only where torch is there
from swe_gym.train.objective import ESTIMATORS, estimator, explained_variance, gae, nonzero_variance, whiten  # noqa: E402

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
