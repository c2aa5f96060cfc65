"""The steps of an update and the numbers that they log."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_batch import EPISODES, episode, segment  # noqa: E402  only where torch is there

from swe_gym.train.batch import make_batch  # noqa: E402
from swe_gym.train.config import AlgorithmConfig, OptimConfig  # noqa: E402
from swe_gym.train.learner import Learner, Targets  # noqa: E402
from swe_gym.train.model import PolicyModel  # noqa: E402

BATCH = make_batch(EPISODES)
TARGETS = Targets(torch.linspace(-1, 1, BATCH.tokens))


def learner(lm: Any, lr: float = 1e-2, **algorithm: Any) -> Learner:
    return Learner(PolicyModel(lm), OptimConfig(lr=lr), AlgorithmConfig(**algorithm))


def test_approx_kl_is_of_the_new_policy_from_the_old_whose_samples_it_sees(tiny_lm: Any) -> None:
    trained = learner(tiny_lm)
    old = trained.compute_logprobs(BATCH)
    trained.learn(BATCH, old, TARGETS, torch.Generator())
    gap = trained.compute_logprobs(BATCH).logprobs - old.logprobs
    facts = trained.learn(BATCH, old, TARGETS, torch.Generator())
    assert facts["approx_kl"] == pytest.approx(float((gap.exp() - 1 - gap).mean()), rel=1e-4)
    assert facts["ratio"] == pytest.approx(float(gap.exp().mean()), rel=1e-4)


def test_averages_do_not_depend_on_the_constant_length(tiny_lm: Any) -> None:
    found = []
    for length in (10, 1000):
        trained = learner(tiny_lm, lr=1e-12, loss_agg="seq-mean-token-sum-norm", loss_length=length)
        found.append(trained.learn(BATCH, trained.compute_logprobs(BATCH), TARGETS, torch.Generator()))
    assert found[0]["ratio"] == found[1]["ratio"] == pytest.approx(1.0)
    assert found[0]["entropy"] == pytest.approx(found[1]["entropy"], rel=1e-4)
    assert found[0]["policy_loss"] == pytest.approx(100 * found[1]["policy_loss"], rel=1e-4)


def test_the_constant_length_is_that_of_the_configuration(tiny_lm: Any) -> None:
    """A longer episode elsewhere in the batch changes no token's share of the gradient."""
    more = make_batch([*EPISODES, episode(segment("0" + "1" * 60, 9))])
    norms = []
    for batch in (BATCH, more):
        trained = learner(tiny_lm, lr=1e-12, loss_agg="seq-mean-token-sum-norm", loss_length=100)
        advantages = torch.zeros(batch.tokens)
        advantages[: BATCH.tokens] = TARGETS.advantages
        facts = trained.learn(batch, trained.compute_logprobs(batch), Targets(advantages), torch.Generator())
        norms.append(facts["grad_norm"] * len(batch.episodes.unique()))
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-3)


@pytest.mark.parametrize(("episodes", "sizes"), [(13, [3, 3, 3, 4]), (2, [1, 1])])
def test_minibatches_have_equal_sizes(tiny_lm: Any, episodes: int, sizes: list[int]) -> None:
    batch = make_batch([episode(segment("0011", seed)) for seed in range(episodes)])
    parts = learner(tiny_lm, minibatches=4)._minibatches(batch, torch.Generator())
    assert sorted(len(batch.episodes[part].unique()) for part in parts) == sizes
