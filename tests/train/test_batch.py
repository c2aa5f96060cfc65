"""Packing does not change results, and tokens of the environment have no gradient."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  only where torch is there
from torch.utils._pytree import tree_leaves  # noqa: E402

from swe_gym.errors import UsageError  # noqa: E402
from swe_gym.train.batch import first_fit, make_batch  # noqa: E402
from swe_gym.train.model import (  # noqa: E402  # noqa: E402
    PackedRows,
    PolicyModel,
    _fits_kernel,
    attend_rows,
    checkpoint_layers,
    is_full,
    load_model,
)
from swe_gym.trajectories.trajectory import Segment, Trajectory  # noqa: E402


def segment(mask: str, seed: int = 0, *, temperature: float = 1.0) -> Segment:
    draw = np.random.default_rng(seed)
    sampled = [int(letter) for letter in mask]
    return Segment(
        token_ids=tuple(int(value) for value in draw.integers(10, 300, len(mask))),
        loss_mask=tuple(sampled),
        logprobs=tuple(
            -float(value) if one else 0.0 for value, one in zip(draw.random(len(mask)), sampled, strict=True)
        ),
        versions=tuple(3 if one else -1 for one in sampled),
        temperature=temperature,
    )


def episode(*segments: Segment) -> Trajectory:
    return Trajectory(
        task_id="t",
        observation="",
        turns=(),
        segments=segments,
        outcome="submitted",
        reward_valid=True,
        resolved=True,
        reward=1.0,
    )


EPISODES = [
    episode(segment("000011100110", 1)),
    episode(segment("0011", 2), segment("00000001", 3, temperature=0.7)),
    episode(segment("000000000000000000111111", 4)),
]


def test_a_model_is_trained_without_dropout(tiny_lm: Any, tmp_path: Path) -> None:
    """Dropout would make the ratio differ from 1 before the first step."""
    tiny_lm.config.attention_dropout = 0.5
    tiny_lm.save_pretrained(tmp_path)
    model = load_model(str(tmp_path)).train()
    (pack,) = make_batch(EPISODES).packs(100)
    assert torch.equal(model(pack).logprobs, model(pack).logprobs)


SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "attn_implementation": "sdpa",
}


EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_key_value_heads": 2,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}


def build(kind: str, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("Qwen2", {"num_key_value_heads": 2}, ""),
        ("Phi", {}, ""),  # its output layer has a bias
        ("OPT", {}, ""),  # by itself it would attend across rows
        # Its layers have windows that only the mask names.
        ("Qwen2Moe", {**EXPERTS, **SLIDING}, ""),
        ("Afmoe", EXPERTS, ""),  # it passes the mask by name
        ("JetMoe", {"kv_channels": 8, "num_key_value_heads": 4}, ""),  # it needs contiguous values
        ("Granite", {"num_key_value_heads": 2, "logits_scaling": 8.0}, "off by"),
        ("Qwen3Next", {**EXPERTS, **LINEAR, "head_dim": 8}, "row before it"),
        ("Doge", {"num_key_value_heads": 2, "sliding_window": 3}, "PackedRows"),  # it computes with the mask
    ],
)
def test_a_model_that_does_not_support_packing_is_refused(kind: str, more: dict[str, Any], why: str) -> None:
    lm = build(kind, **more).eval()
    with torch.no_grad():
        for weight in lm.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    if not why:
        PolicyModel(lm).check()
        return
    with pytest.raises(UsageError, match=f"{lm.config.model_type!r}.*{why}.*Choose"):
        PolicyModel(lm).check()


def test_a_state_that_runs_from_row_to_row_is_found_where_it_hardly_shows() -> None:
    """As in a model that is not trained yet: log-probabilities are off by 3e-4, less than rounding to bfloat16."""
    lm = build("Qwen3Next", **EXPERTS, **LINEAR, head_dim=8).eval().bfloat16()
    with pytest.raises(UsageError, match="row before it"):
        PolicyModel(lm).check()


def test_a_family_without_the_attention_that_is_needed_is_refused_by_name(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.BloomConfig(vocab_size=100, hidden_size=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    transformers.BloomForCausalLM(transformers.BloomConfig.from_pretrained(tmp_path)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"'bloom'.*Choose a model of another family: Llama"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_attention_of_a_pack_is_that_of_a_mask_of_its_square(window: int) -> None:
    """softmax(q k / sqrt(width)) v where q and k are of one row, k not behind q, and within the window."""
    draw = torch.Generator().manual_seed(0)
    heads, shared, width, lengths = 4, 2, 8, (7, 1, 12, 3)
    total = sum(lengths)
    query = torch.randn(1, heads, total, width, generator=draw, dtype=torch.float64)
    key, value = torch.randn(2, 1, shared, total, width, generator=draw, dtype=torch.float64)
    rows = PackedRows(lengths, torch.tensor([0, 7, 8, 20, 23], dtype=torch.int32), window)
    found = attend_rows(query, key, value, rows)
    row, at = np.repeat(range(4), lengths), np.arange(total)
    behind = at[:, None] - at
    seen = (row[:, None] == row) & (behind >= 0) & (behind < (window or total))
    for head in range(heads):
        scores = query[0, head].numpy() @ key[0, head // 2].numpy().T / np.sqrt(width)
        scores = np.exp(np.where(seen, scores, -np.inf))
        expected = scores / scores.sum(-1, keepdims=True) @ value[0, head // 2].numpy()
        np.testing.assert_allclose(found[0, :, head].numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("width", "value_width", "dtype", "fits"),
    [
        (128, 128, "bfloat16", True),
        (128, 128, "float32", False),
        (192, 128, "bfloat16", False),  # DeepSeek V3
        (512, 512, "bfloat16", False),  # Gemma 4
        (100, 100, "float16", False),
    ],
)
def test_flash_attention_gets_only_heads_that_it_takes(width: int, value_width: int, dtype: str, fits: bool) -> None:
    query, value = (torch.empty(1, 1, 1, one, dtype=getattr(torch, dtype)) for one in (width, value_width))
    assert _fits_kernel(query, value) == fits


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Qwen2", {"num_key_value_heads": 2}),
        ("Mistral", {"num_key_value_heads": 2, "sliding_window": 4}),
        ("GPTNeoX", {}),
    ],
)
def test_a_pack_equals_padded_rows_with_values_and_gradients(kind: str, more: dict[str, Any]) -> None:
    """Chunks of logits, recomputed activations and rows in one sequence, beside the plain model in float64."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, "vocab_size": 300}, **more)
    lm = transformers.AutoModelForCausalLM.from_config(config).double()
    batch = make_batch(EPISODES)
    padded = torch.nn.utils.rnn.pad_sequence([row.token_ids for row in batch.rows], batch_first=True)
    there = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in batch.rows], batch_first=True)
    heats = torch.tensor([row.temperature for row in batch.rows], dtype=torch.float64)[:, None, None]
    logits = (lm(input_ids=padded, attention_mask=there.long()).logits / heats).log_softmax(-1)
    plain = torch.cat(
        [
            logits[i, at - 1, row.token_ids[at]]
            for i, row in enumerate(batch.rows)
            for at in [row.sampled.nonzero()[:, 0]]
        ]
    )
    weights = torch.linspace(-1, 1, batch.tokens)
    (weights * plain).sum().backward()
    expected = {name: weight.grad.clone() for name, weight in lm.named_parameters()}
    lm.zero_grad()

    checkpoint_layers(lm)
    (pack,) = batch.packs(10_000)
    found = PolicyModel(lm, chunk=4).train()(pack).logprobs
    np.testing.assert_allclose(found.detach().numpy(), plain.detach().numpy()[pack.index], atol=1e-5)
    (weights[pack.index] * found).sum().backward()
    for name, weight in lm.named_parameters():
        np.testing.assert_allclose(weight.grad.numpy(), expected[name].numpy(), atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"), True),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("CUDA out of memory"), False),
    ],
)
def test_a_full_disk_is_told_from_other_errors(error: Exception, full: bool) -> None:
    assert is_full(error) == full


class LargestTensor(TorchDispatchMode):
    """Keeps the number of values of the largest tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = operation(*arguments, **(options or {}))
        self.values = max([self.values, *(one.numel() for one in tree_leaves(made) if torch.is_tensor(one))])
        return made


def test_no_tensor_grows_with_the_square_of_the_pack_or_with_the_vocabulary(tiny_lm: Any) -> None:
    model = PolicyModel(tiny_lm, chunk=16).train()
    widest = max(tiny_lm.config.intermediate_size, 2 * tiny_lm.config.hidden_size)
    for copies in (4, 16):
        (pack,) = make_batch(EPISODES * copies).packs(10_000)
        tokens = sum(pack.lengths)
        with LargestTensor() as largest:
            model(pack).logprobs.sum().backward()
        weights = max(weight.numel() for weight in tiny_lm.parameters())
        assert largest.values <= max(weights, tokens * widest), copies
    assert tokens * widest < min(tokens**2, pack.labels.numel() * len(tiny_lm.lm_head.weight))


def outputs(model: PolicyModel, most: int) -> dict[str, Any]:
    batch = make_batch(EPISODES)
    found = {
        "logprobs": torch.zeros(batch.tokens),
        "entropy": torch.zeros(batch.tokens),
        "values": torch.zeros(batch.tokens),
    }
    for pack in batch.packs(most):
        out = model(pack)
        for name, column in found.items():
            column[pack.index] = getattr(out, name).detach()
    return found


def test_sampled_tokens_are_concatenated_with_their_episodes() -> None:
    batch = make_batch(EPISODES)
    assert batch.episodes.tolist() == [0] * 5 + [1] * 3 + [2] * 6
    expected = [p for e in EPISODES for s in e.segments for p, one in zip(s.logprobs, s.loss_mask, strict=True) if one]
    np.testing.assert_allclose(batch.sampler.numpy(), expected, rtol=1e-6)


def test_a_minibatch_packs_only_its_own_rows() -> None:
    batch = make_batch(EPISODES)
    part = batch.episodes != 1
    (pack,) = batch.packs(10_000, part)
    assert pack.token_ids.shape == (1, 12 + 24)
    assert sorted(pack.index.tolist()) == part.nonzero()[:, 0].tolist()


def test_packed_rows_equal_single_rows(tiny_lm: Any) -> None:
    model = PolicyModel(tiny_lm, value_head=True, chunk=3)
    torch.nn.init.normal_(model.value.weight)
    alone, together = outputs(model, 24), outputs(model, 10_000)
    assert len(make_batch(EPISODES).packs(24)) > 1
    assert len(make_batch(EPISODES).packs(10_000)) == 1
    for name in alone:
        np.testing.assert_allclose(together[name].numpy(), alone[name].numpy(), atol=2e-5)


def test_logprobs_are_those_of_the_plain_model(tiny_lm: Any) -> None:
    model = PolicyModel(tiny_lm, chunk=2)
    batch = make_batch(EPISODES[:1])
    (pack,) = batch.packs(100)
    row = batch.rows[0]
    logits = tiny_lm(row.token_ids[None]).logits[0].float().log_softmax(-1)
    expected = [logits[i - 1, row.token_ids[i]].item() for i in range(len(row)) if row.sampled[i]]
    np.testing.assert_allclose(model(pack).logprobs.detach().numpy(), expected, atol=1e-5)


def test_logits_of_bfloat16_weights_are_not_rounded_to_bfloat16(tiny_lm: Any) -> None:
    model = PolicyModel(tiny_lm.bfloat16())
    states = torch.randn(3, 32)
    found = model.logits(states)
    assert torch.equal(found, states @ tiny_lm.lm_head.weight.float().T)
    assert not torch.equal(found, found.bfloat16().float())


def test_a_temperature_divides_the_logits(tiny_lm: Any) -> None:
    batch = make_batch([episode(segment("0011", 2, temperature=0.5))])
    (pack,) = batch.packs(100)
    row = batch.rows[0]
    logits = (tiny_lm(row.token_ids[None]).logits[0].float() / 0.5).log_softmax(-1)
    out = PolicyModel(tiny_lm)(pack)
    np.testing.assert_allclose(
        out.logprobs.detach().numpy(), [logits[i - 1, row.token_ids[i]].item() for i in (2, 3)], atol=1e-5
    )
    np.testing.assert_allclose(
        out.entropy.numpy(), -(logits.exp() * logits).sum(-1)[[1, 2]].detach().numpy(), atol=1e-4
    )


def test_gradients_do_not_depend_on_microbatches(tiny_lm: Any) -> None:
    model = PolicyModel(tiny_lm, value_head=True)

    def gradient(most: int) -> Any:
        model.zero_grad()
        batch = make_batch(EPISODES)
        for pack in batch.packs(most):
            (model(pack).logprobs.sum() / batch.tokens).backward()
        return torch.cat([p.grad.flatten() for p in model.lm.parameters()])

    np.testing.assert_allclose(gradient(24).numpy(), gradient(10_000).numpy(), atol=1e-5)


def test_an_untrained_value_head_returns_zero(tiny_lm: Any) -> None:
    assert not outputs(PolicyModel(tiny_lm, value_head=True), 100)["values"].any()


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 120))
def test_each_row_is_packed_once_and_no_pack_is_too_long(lengths: list[int], most: int) -> None:
    groups = first_fit(lengths, most)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in group) <= most for group in groups)
    assert len(groups) <= 2 * sum(lengths) / most + 1


def test_a_row_that_is_too_long_names_the_settings() -> None:
    with pytest.raises(UsageError, match="max_tokens_per_microbatch"):
        make_batch(EPISODES).packs(20)
    with pytest.raises(UsageError, match="first token"):
        make_batch([episode(segment("11"))])
