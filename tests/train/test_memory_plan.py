"""The memory that a plan names is the memory that a step takes."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from swe_gym.cli.train import train  # noqa: E402  only where torch is there
from swe_gym.errors import UsageError  # noqa: E402
from swe_gym.train.batch import segments_batch  # noqa: E402
from swe_gym.train.config import TrainConfig, make_config  # noqa: E402
from swe_gym.train.learner import Learner, load_policy  # noqa: E402
from swe_gym.train.model import all_sampled  # noqa: E402
from swe_gym.train.plan import plan_memory  # noqa: E402

TOKENS = 768


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("model")
    shape = transformers.Qwen2Config(
        vocab_size=1500, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(shape).save_pretrained(path)
    return str(path)


def config(folder: str, *, generation: Any = None, **model: Any) -> TrainConfig:
    return make_config(
        {
            "model": {"path": folder, "chunk": 128, **model},
            "run": {"evaluate_every": 0},
            "generation": {"backend": "hf", "max_context": 256, "max_tokens": 100, **(generation or {})},
            "optim": {"max_tokens_per_microbatch": TOKENS},
        }
    )


def measure(wanted: TrainConfig) -> int:
    """Return the bytes of a step at its peak: what the profiler sees, and weights, gradients and optimizer."""
    learner = Learner(load_policy(wanted.model), wanted.optim, wanted.algorithm)
    row = all_sampled([index % 1500 for index in range(TOKENS // 4)])
    batch = segments_batch([[row]] * 8)
    learner.imitate(batch)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        learner.imitate(batch)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    size = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        size += event.nbytes()
        peak = max(peak, size)
    return peak + 12 * sum(weight.numel() for weight in learner.model.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plan_is_the_measured_peak(folder: str, precision: str, checkpointing: bool) -> None:
    wanted = config(folder, precision=precision, gradient_checkpointing=checkpointing)
    planned = sum(size for name, size in plan_memory(wanted, 10**12).parts.items() if name != "CUDA")
    assert planned == pytest.approx(measure(wanted), rel=0.15)


def test_processes_share_what_is_sharded(folder: str) -> None:
    one, four = (plan_memory(config(folder, precision="bfloat16"), 10**12, processes).parts for processes in (1, 4))
    for name in ("weights", "gradients", "optimizer"):
        assert four[name] == one[name] // 4
    assert four["activations"] == one["activations"]
    assert four["bfloat16 copies"] == one["bfloat16 copies"] // 2  # two layers of four


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_adapters_have_gradients_and_moments_and_the_base_has_none(folder: str) -> None:
    pytest.importorskip("peft")
    plan = plan_memory(config(folder, lora_rank=2, dtype="bfloat16"), 10**12).parts
    full = plan_memory(config(folder), 10**12).parts
    ranks = 4 * 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 192))  # q and o, k and v, gate and up and down
    assert plan["gradients"] == 4 * ranks
    assert plan["optimizer"] == 8 * ranks
    assert plan["weights"] == full["weights"] // 2 + 4 * ranks


@pytest.mark.parametrize(
    ("card", "generation", "message"),
    [
        (1.08e9, {}, "activations.*optim.max_tokens_per_microbatch"),
        (
            2e9,
            {"backend": "vllm", "options": {"args": ["--gpu-memory-utilization", "0.95"]}},
            "vLLM: cache.*CUDA_VISIBLE_DEVICES",
        ),
        (
            2e9,
            {"backend": "vllm", "options": {"args": ["--gpu-memory-utilization", "0.0001"]}},
            "generation.max_context = 256 tokens",
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_what_to_change(
    folder: str, card: float, generation: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_memory(config(folder, generation=generation), int(card))


def test_the_command_prints_the_plan(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "{folder}"\n[run]\nevaluate_every = 0\n')
    options = ["generation.options.args=['--gpu-memory-utilization', '0.3']", "optim.max_tokens_per_microbatch=4096"]
    train(path, options, plan=16)
    printed = capsys.readouterr().out
    assert "vLLM: cache" in printed
    assert "conversations of 4096 tokens" in printed
    with pytest.raises(UsageError, match="needs"):
        train(path, options, plan=1.5)
