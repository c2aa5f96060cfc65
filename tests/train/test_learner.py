"""The steps of an update and the numbers that they log."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_batch import EPISODES, episode, segment  # noqa: E402  only where torch is there
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from swe_gym.train.batch import make_batch  # noqa: E402
from swe_gym.train.checkpoint import RunState  # noqa: E402
from swe_gym.train.collect import PlayedBatch  # noqa: E402
from swe_gym.train.config import AlgorithmConfig, GenerationConfig, OptimConfig, make_config  # noqa: E402
from swe_gym.train.generators.hf import HfGenerator  # noqa: E402
from swe_gym.train.learner import Learner, OldLogprobs, Targets  # noqa: E402
from swe_gym.train.loop import make_update  # noqa: E402
from swe_gym.train.model import PolicyModel  # noqa: E402
from swe_gym.train.objective import token_weights  # noqa: E402
from swe_gym.trajectories import Segment  # noqa: E402

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


def test_offloaded_moments_change_nothing(tiny_lm: Any, tmp_path: Path) -> None:
    """Steps, checkpoints and resumed steps are equal bit by bit; between steps the moments are copies on the host."""
    found = []
    for offload in (False, True):
        trained = learner(copy.deepcopy(tiny_lm))
        trained.restart(OptimConfig(lr=1e-2, offload=offload))
        old = trained.compute_logprobs(BATCH)
        for _ in range(2):
            before = [state["exp_avg"].data_ptr() for state in trained.optimizer.state.values()]
            kept = [state["exp_avg"] for state in trained.optimizer.state.values()]  # so that no place is used twice
            trained.learn(BATCH, old, TARGETS, torch.Generator())
            after = [state["exp_avg"].data_ptr() for state in trained.optimizer.state.values()]
            assert not kept or (before != after) == offload
        torch.save(trained.state(), tmp_path / "state.pt")
        again = learner(copy.deepcopy(tiny_lm))
        again.restart(OptimConfig(lr=1e-2, offload=offload))
        again.load(tmp_path / "state.pt")
        again.learn(BATCH, old, TARGETS, torch.Generator())
        found.append([weight.detach().clone() for one in (trained, again) for weight in one.model.parameters()])
    assert all(map(torch.equal, *found))


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


def numpy(values: Any) -> np.ndarray:
    return values.double().numpy()


SETTINGS = {
    "dual clip, k1": {
        "clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.5, "tis_cap": 1.2, "loss_agg": "seq-mean-token-mean",
        "kl_coef": 0.3, "kl_estimator": "k1", "entropy_coef": 0.2, "value_coef": 0.7, "value_clip": 0.05,
    },
    "no bounds, k2": {
        "clip_low": 0.3, "clip_high": 0.1, "dual_clip": 0, "tis_cap": 0, "loss_agg": "token-mean",
        "kl_coef": 0.5, "kl_estimator": "k2", "entropy_coef": 0, "value_coef": 2, "value_clip": 0,
    },
    "k3": {
        "clip_low": 0.5, "clip_high": 0.8, "dual_clip": 4, "tis_cap": 9, "loss_agg": "token-mean",
        "kl_coef": 0.1, "kl_estimator": "k3", "entropy_coef": -0.1, "value_coef": 0, "value_clip": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_the_loss_is_the_papers_equation_with_the_settings_of_the_configuration(tiny_lm: Any, name: str) -> None:
    """PPO's clipped surrogate (1707.06347) with a range per side (2503.14476), dual clip (1912.09729) and TIS."""
    s = SETTINGS[name]
    model = PolicyModel(tiny_lm, value_head=True)
    trained = Learner(model, OptimConfig(), AlgorithmConfig(**s))
    now = trained.compute_logprobs(BATCH)
    draw = torch.Generator().manual_seed(3)
    noise = [torch.randn(BATCH.tokens, generator=draw) for _ in range(5)]
    old = OldLogprobs(now.logprobs + noise[0], now.values + noise[1], now.logprobs + noise[2])
    targets = Targets(noise[3], noise[4])
    facts = trained.learn(BATCH, old, targets, torch.Generator())

    logprobs, before, advantages, returns = map(numpy, (now.logprobs, old.logprobs, noise[3], noise[4]))
    ratio = np.exp(logprobs - before)
    gain = np.minimum(ratio * advantages, np.clip(ratio, 1 - s["clip_low"], 1 + s["clip_high"]) * advantages)
    if s["dual_clip"]:
        gain = np.where(advantages < 0, np.maximum(gain, s["dual_clip"] * advantages), gain)
    if s["tis_cap"]:
        gain = gain * np.minimum(np.exp(before - numpy(BATCH.sampler)), s["tis_cap"])
    gap = logprobs - numpy(old.reference)
    divergence = {"k1": gap, "k2": gap**2 / 2, "k3": np.exp(-gap) - 1 + gap}[s["kl_estimator"]]
    values, values_before = numpy(now.values), numpy(old.values)
    error = (values - returns) ** 2
    if s["value_clip"]:
        near = values_before + np.clip(values - values_before, -s["value_clip"], s["value_clip"])
        error = np.maximum(error, (near - returns) ** 2)
    episodes, counts = np.unique(BATCH.episodes.numpy(), return_counts=True)
    by_episode = np.repeat(1 / counts / len(episodes), counts)  # in the order of the batch
    weight = by_episode if s["loss_agg"] == "seq-mean-token-mean" else np.full(len(ratio), 1 / len(ratio))
    terms = -gain + s["kl_coef"] * divergence + s["value_coef"] * error / 2
    expected = (weight * terms).sum() - s["entropy_coef"] * facts["entropy"]
    assert facts["loss"] == pytest.approx(expected, rel=1e-4)


def test_an_entropy_bonus_raises_the_entropy(tiny_lm: Any) -> None:
    trained = learner(tiny_lm, lr=1e-3, entropy_coef=1.0)
    nothing = Targets(torch.zeros(BATCH.tokens))
    first, second = (
        trained.learn(BATCH, trained.compute_logprobs(BATCH), nothing, torch.Generator())["entropy"] for _ in range(2)
    )
    assert second > first


@pytest.mark.parametrize("detach", [False, True])
def test_a_detached_value_head_leaves_the_language_model_as_it_is(tiny_lm: Any, detach: bool) -> None:
    model = PolicyModel(tiny_lm, value_head=True, detach_value=detach)
    torch.nn.init.ones_(model.value.weight)  # zeros would hide the gradient below
    trained = Learner(model, OptimConfig(), AlgorithmConfig())
    before = [weight.clone() for weight in tiny_lm.parameters()]
    head = model.value.weight.clone()
    targets = Targets(torch.zeros(BATCH.tokens), torch.full((BATCH.tokens,), 5.0))
    trained.learn(BATCH, trained.compute_logprobs(BATCH), targets, torch.Generator())
    assert not torch.equal(model.value.weight, head)
    assert all(map(torch.equal, tiny_lm.parameters(), before)) == detach


def test_a_step_is_that_of_adamw_with_the_settings_of_the_configuration(tiny_lm: Any) -> None:
    """AdamW (1711.05101) with a clipped gradient, warmup, and a learning rate of its own for the value head."""
    settings = {"betas": (0.7, 0.8), "eps": 1e-3, "weight_decay": 0.3, "warmup_steps": 4, "max_grad_norm": 0.05}
    model = PolicyModel(tiny_lm, value_head=True)
    trained = Learner(model, OptimConfig(lr=0.01, value_lr=0.1, **settings), AlgorithmConfig())
    weights = [*tiny_lm.parameters(), *model.value.parameters()]
    rates = [0.01] * len(list(tiny_lm.parameters())) + [0.1] * 2
    found: list[np.ndarray] = [np.zeros(0)] * len(weights)
    for index, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(
            lambda weight, index=index: found.__setitem__(index, numpy(weight.grad).copy())
        )
    expected = [numpy(weight.detach()).copy() for weight in weights]
    means, squares = ([np.zeros_like(value) for value in expected] for _ in range(2))
    targets = Targets(TARGETS.advantages, torch.ones(BATCH.tokens))
    for step in (1, 2):
        trained.learn(BATCH, trained.compute_logprobs(BATCH), targets, torch.Generator())
        norm = np.sqrt(sum((gradient**2).sum() for gradient in found))
        assert norm > settings["max_grad_norm"]
        for index, value in enumerate(expected):
            gradient = found[index] * settings["max_grad_norm"] / (norm + 1e-6)
            means[index] = 0.7 * means[index] + 0.3 * gradient
            squares[index] = 0.8 * squares[index] + 0.2 * gradient**2
            rate = rates[index] * step / 4
            mean, square = means[index] / (1 - 0.7**step), squares[index] / (1 - 0.8**step)
            expected[index] = value * (1 - rate * 0.3) - rate * mean / (np.sqrt(square) + 1e-3)
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(numpy(weight.detach()), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo"])
def test_every_loss_is_a_step_of_policy_gradient_while_the_weights_are_those_that_sampled(
    tiny_lm: Any, loss: str
) -> None:
    algorithm = {"loss": loss, "loss_agg": "seq-mean-token-mean", "tis_cap": 0}
    trained = learner(tiny_lm, **algorithm)
    before = trained.compute_logprobs(BATCH)
    trained.learn(BATCH, before, TARGETS, torch.Generator())
    moved = trained.compute_logprobs(BATCH).logprobs - before.logprobs
    weights = token_weights(BATCH.episodes, "seq-mean-token-mean")
    assert float((weights * TARGETS.advantages * moved).sum()) > 0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_follows_the_schedules_of_pytorch(schedule: str) -> None:
    optim = OptimConfig(warmup_steps=3, schedule=schedule, decay_steps=7, final_lr=0.1)
    adam = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    if schedule == "linear":
        falls: Any = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.1, total_iters=7)
    else:
        falls = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=7, eta_min=0.1)
    shares = []
    for _ in range(8):
        shares.append(adam.param_groups[0]["lr"])
        adam.step(), falls.step()
    expected = [1 / 3, 2 / 3, 1, *shares, 0.1, 0.1]
    assert [optim.lr_share(step) for step in range(len(expected))] == pytest.approx(expected)


def test_episodes_that_a_budget_ended_are_masked_and_stay_in_the_baseline(tiny_lm: Any) -> None:
    cut = {"reward": 0.0, "outcome": "agent_limit", "reason": "turns"}
    spoiled = {"reward": 0.0, "outcome": "agent_limit", "reason": "invalid"}
    episodes = tuple(EPISODES[0].model_copy(update=one) for one in ({"reward": 1.0}, cut, spoiled, {"reward": 1.0}))
    played = PlayedBatch(episodes, groups=(0, 0, 0, 0), lost=(), seconds={}, all_groups=frozenset({0}))
    sections = {"model": {"path": "unused"}, "run": {"evaluate_every": 0}, "generation": {"max_logprob_diff": 100}}
    facts = {}
    for choice in ("keep", "mask"):
        algorithm = {"cut_episodes": choice, "advantage": "dr_grpo", "tis_cap": 0}
        config = make_config({**sections, "algorithm": algorithm})
        facts[choice] = make_update(played, learner(tiny_lm, **algorithm), config, RunState(1))
    assert facts["keep"]["frac_cut"] == 0.25
    assert facts["mask"]["tokens"] == facts["keep"]["tokens"] * 3 / 4
    # advantages of the others are 0.5, -0.5 and 0.5, as with the fourth episode
    assert facts["mask"]["policy_loss"] == pytest.approx(-0.5 / 3, abs=1e-5)


@pytest.mark.parametrize(("choice", "trained"), [("keep", 4), ("drop", 2)])
def test_groups_of_equal_rewards_are_kept_or_dropped(tiny_lm: Any, choice: str, trained: int) -> None:
    algorithm = {"zero_variance_groups": choice, "advantage": "grpo"}
    episodes = tuple(EPISODES[0].model_copy(update={"reward": reward}) for reward in (1.0, 1.0, 0.0, 1.0))
    played = PlayedBatch(episodes, groups=(0, 0, 1, 1), lost=(), seconds={}, all_groups=frozenset({0, 1}))
    sections = {"model": {"path": "unused"}, "run": {"evaluate_every": 0}, "generation": {"max_logprob_diff": 100}}
    config = make_config({**sections, "algorithm": algorithm})
    facts = make_update(played, learner(tiny_lm, **algorithm), config, RunState(1))
    assert (facts["trained"], facts["frac_nonzero_variance"]) == (trained, 0.5)


class ProductTypes(TorchDispatchMode):
    """Counts matrix products by the type in which they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = operation(*arguments, **(options or {}))
        if operation.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.counts[made.dtype] += 1
        return made


def test_with_bfloat16_the_layers_compute_in_it_and_everything_that_lasts_is_float32(tiny_lm: Any) -> None:
    (pack,) = BATCH.packs(100)
    model = PolicyModel(tiny_lm, value_head=True, precision="bfloat16")
    with ProductTypes() as products:
        out = model(pack)
    assert products.counts == {torch.bfloat16: 7 * 2, torch.float32: 2}  # seven products a layer; logits and values
    assert out.logprobs.dtype == out.entropy.dtype == out.values.dtype == torch.float32
    (out.logprobs.sum() + out.values.sum()).backward()
    assert all(weight.dtype == weight.grad.dtype == torch.float32 for weight in model.parameters())


def test_a_step_too_small_for_bfloat16_arrives(tiny_lm: Any) -> None:
    """AdamW's first step moves every weight by its learning rate."""
    trained = Learner(PolicyModel(tiny_lm, precision="bfloat16"), OptimConfig(lr=1e-6), AlgorithmConfig())
    weight = tiny_lm.model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    trained.learn(BATCH, trained.compute_logprobs(BATCH), TARGETS, torch.Generator())
    moved = (weight.detach() - before).abs()
    assert float(moved.median()) == pytest.approx(1e-6, rel=0.1)
    assert (weight.bfloat16() == before.bfloat16()).float().mean() > 0.9


def test_bfloat16_learns_as_float32_does(tiny_lm: Any) -> None:
    curves = {}
    for precision in ("float32", "bfloat16"):
        model = PolicyModel(copy.deepcopy(tiny_lm), precision=precision)
        trained = Learner(model, OptimConfig(lr=1e-3), AlgorithmConfig())
        curves[precision] = [trained.imitate(BATCH)["loss"] for _ in range(20)]
    assert curves["float32"][-1] < curves["float32"][0] - 1
    np.testing.assert_allclose(curves["bfloat16"], curves["float32"], rtol=0.03)


def test_the_generator_in_this_process_samples_in_the_models_precision(tiny_lm: Any, tokenizer: Any) -> None:
    with torch.no_grad():
        for weight in tiny_lm.parameters():
            weight.mul_(4)  # where precision shows
    gaps = {}
    for sampled in ("bfloat16", "float32"):
        model = PolicyModel(tiny_lm, precision=sampled)
        generator = HfGenerator(GenerationConfig(backend="hf"), model, tokenizer)
        prompt = list(range(10, 30))
        answer = generator.generate(prompt, max_tokens=40, temperature=1.0, seed=1)
        model.precision = "bfloat16"
        count = len(answer.token_ids)
        one = Segment(
            token_ids=(*prompt, *answer.token_ids),
            loss_mask=(*[0] * 20, *[1] * count),
            logprobs=(*[0.0] * 20, *answer.logprobs),
            versions=(*[-1] * 20, *[0] * count),
        )
        batch = make_batch([episode(one)])
        trained = Learner(model, OptimConfig(), AlgorithmConfig()).compute_logprobs(batch)
        gaps[sampled] = float((trained.logprobs - batch.sampler).abs().mean())
    assert gaps["bfloat16"] < gaps["float32"] / 2
