"""Losses against reference implementations in numpy, and their properties."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from swe_gym.train.objective import (  # noqa: E402  only where torch is there
    cispo_loss,
    ess,
    kl,
    policy_loss,
    token_weights,
    truncated_importance,
    value_loss,
)

N = 40
DRAW = np.random.default_rng(1)
LOGPROBS, OLD = DRAW.normal(-1, 1, N), DRAW.normal(-1, 1, N)
ADVANTAGES, WEIGHTS = DRAW.normal(size=N), DRAW.random(N)


def tensor(values: np.ndarray, *, grad: bool = False) -> "torch.Tensor":
    return torch.tensor(values, requires_grad=grad)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_the_clipped_surrogate_equals_the_formula(dual: float | None) -> None:
    expected = 0.0
    for new, old, advantage, weight in zip(LOGPROBS, OLD, ADVANTAGES, WEIGHTS, strict=True):
        ratio = np.exp(new - old)
        gain = min(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)
        if dual is not None and advantage < 0:
            gain = max(gain, dual * advantage)
        expected -= weight * gain
    loss, facts = policy_loss(*map(tensor, (LOGPROBS, OLD, ADVANTAGES, WEIGHTS)), dual=dual)
    np.testing.assert_allclose(float(loss), expected)
    assert facts["clip_frac_low"] > 0
    assert facts["clip_frac_high"] > 0
    assert (facts["clip_frac_dual"] > 0) == (dual is not None)


def test_before_the_first_update_the_ratio_is_one_and_the_gradient_is_that_of_reinforce() -> None:
    logprobs = tensor(OLD, grad=True)
    weights = np.full(N, 1 / N)
    loss, facts = policy_loss(logprobs, tensor(OLD), tensor(ADVANTAGES), tensor(weights))
    loss.backward()
    nothing = dict.fromkeys(("clip_frac_low", "clip_frac_high", "clip_frac_dual", "frac_ratio_tails"), 0)
    assert facts == pytest.approx({**nothing, "ratio": 1})
    np.testing.assert_allclose(logprobs.grad.numpy(), -ADVANTAGES * weights)


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = torch.tensor([1.0, -1.0, 1.0, -1.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0])
    loss, _ = policy_loss(logprobs, torch.zeros(4), advantages, torch.ones(4))
    loss.backward()
    assert [bool(value) for value in logprobs.grad] == [False, False, True, True]


SEQUENCES = np.repeat(np.arange(5), [3, 12, 1, 20, 4])


def test_gspo_equals_equation_5_of_its_paper() -> None:
    """The mean over sequences of min(s * A, clip(s) * A), where s is (pi(y) / pi_old(y))^(1/|y|), and its gradient."""
    advantages = DRAW.normal(size=5)
    weights = token_weights(torch.tensor(SEQUENCES), "seq-mean-token-mean").double()
    near = OLD + DRAW.normal(scale=1e-3, size=N)  # some sequences are clipped, others are not
    logprobs, alone = tensor(near, grad=True), tensor(near, grad=True)
    loss, facts = policy_loss(
        logprobs,
        tensor(OLD),
        tensor(advantages[SEQUENCES]),
        weights,
        sequences=torch.tensor(SEQUENCES),
        low=3e-4,
        high=4e-4,
        dual=None,
    )
    gains = []
    for sequence, advantage in enumerate(advantages):
        where = torch.tensor(SEQUENCES) == sequence
        ratio = (alone[where].sum() - tensor(OLD)[where].sum()).div(int(where.sum())).exp()
        gains.append(torch.minimum(ratio * advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantage))
    expected = -torch.stack(gains).mean()
    loss.backward(), expected.backward()
    np.testing.assert_allclose(float(loss.detach()), float(expected.detach()))
    np.testing.assert_allclose(logprobs.grad.numpy(), alone.grad.numpy(), atol=1e-12)
    clipped = {bool(value) for value in logprobs.grad}
    assert clipped == {True, False}
    assert 0 < facts["clip_frac_low"] + facts["clip_frac_high"] < 1


def test_cispo_weighs_the_gradient_of_each_token_by_its_clipped_ratio() -> None:
    logprobs = tensor(LOGPROBS, grad=True)
    loss, facts = cispo_loss(logprobs, *map(tensor, (OLD, ADVANTAGES, WEIGHTS)), low=0.9, high=1.5)
    loss.backward()
    ratio = np.exp(LOGPROBS - OLD)
    kept = np.minimum(np.maximum(ratio, 0.1), 2.5)
    np.testing.assert_allclose(float(loss.detach()), -(WEIGHTS * kept * ADVANTAGES * LOGPROBS).sum())
    np.testing.assert_allclose(logprobs.grad.numpy(), -WEIGHTS * kept * ADVANTAGES)
    assert facts["clip_frac_high"] == pytest.approx(WEIGHTS[ratio > 2.5].sum())
    assert facts["clip_frac_low"] == pytest.approx(WEIGHTS[ratio < 0.1].sum())


def test_tokens_with_weight_zero_have_no_effect() -> None:
    weights = np.where(np.arange(N) % 2, WEIGHTS, 0.0)
    moved = np.where(np.arange(N) % 2, LOGPROBS, LOGPROBS + DRAW.normal(size=N))
    rest = map(tensor, (OLD, ADVANTAGES, weights))
    first, _ = policy_loss(tensor(LOGPROBS), *rest)
    second, _ = policy_loss(tensor(moved), *map(tensor, (OLD, ADVANTAGES, weights)))
    assert float(first) == float(second)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_equals_the_formula(clip: float | None) -> None:
    values, old, returns = DRAW.normal(size=(3, N))
    near = old + np.clip(values - old, -0.2, 0.2)
    errors = (values - returns) ** 2
    if clip is not None:
        errors = np.maximum(errors, (near - returns) ** 2)
    found = value_loss(tensor(values), tensor(old), tensor(returns), tensor(WEIGHTS), clip=clip)
    np.testing.assert_allclose(float(found), 0.5 * (WEIGHTS * errors).sum())


def test_the_kl_estimators_equal_their_formulas_and_vanish_for_equal_policies() -> None:
    gap = LOGPROBS - OLD
    for kind, expected in (("k1", gap), ("k2", gap**2 / 2), ("k3", np.exp(-gap) - 1 + gap)):
        np.testing.assert_allclose(kl(tensor(LOGPROBS), tensor(OLD), kind).numpy(), expected)
        np.testing.assert_allclose(kl(tensor(OLD), tensor(OLD), kind).numpy(), 0.0)
    assert (kl(tensor(LOGPROBS), tensor(OLD), "k3") >= 0).all()


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_the_expected_gradient_of_each_kl_estimator(kind: Any) -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, -0.2, 1.0], dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    likely = logprobs.detach().exp()  # each token as often as the policy draws it
    (found,) = torch.autograd.grad((likely * kl(logprobs, reference, kind)).sum(), logits)
    np.testing.assert_allclose(found.numpy(), exact.numpy(), atol=1e-12)


def test_importance_weights_are_truncated_without_gradient() -> None:
    old = tensor(LOGPROBS, grad=True)
    weights = truncated_importance(old, tensor(OLD), cap=2.0)
    np.testing.assert_allclose(weights.numpy(), np.minimum(np.exp(LOGPROBS - OLD), 2.0))
    assert not weights.requires_grad
    assert ess(torch.ones(5)) == 1.0
    assert ess(torch.tensor([1.0, 0.0, 0.0, 0.0])) == 0.25


def test_loss_agg_weighs_tokens_episodes_or_a_constant_length() -> None:
    episodes = torch.tensor([4, 4, 4, 9])
    assert token_weights(episodes, "token-mean").tolist() == [0.25] * 4
    np.testing.assert_allclose(token_weights(episodes, "seq-mean-token-mean").numpy(), [1 / 6, 1 / 6, 1 / 6, 1 / 2])
    np.testing.assert_allclose(token_weights(episodes, "seq-mean-token-sum-norm", length=8).numpy(), [1 / 16] * 4)
    assert token_weights(torch.zeros(0, dtype=torch.long), "token-mean").shape == (0,)


def test_microbatches_add_up_to_the_batch() -> None:
    whole, _ = policy_loss(*map(tensor, (LOGPROBS, OLD, ADVANTAGES, WEIGHTS)))
    parts = [
        policy_loss(*(tensor(row[part]) for row in (LOGPROBS, OLD, ADVANTAGES, WEIGHTS)))[0]
        for part in (slice(0, 7), slice(7, 30), slice(30, N))
    ]
    np.testing.assert_allclose(float(sum(parts)), float(whole))


def test_the_tails_of_the_ratio_are_what_doubled_or_halved() -> None:
    ratio = torch.tensor([0.4, 0.6, 1.0, 1.9, 2.1, 7.0])
    zero, weights = torch.zeros(6), torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    for loss in (policy_loss, cispo_loss):
        _, facts = loss(ratio.log(), zero, zero, weights)
        assert facts["frac_ratio_tails"] == pytest.approx(0.1 + 0.2 + 0.1)
