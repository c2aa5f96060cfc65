"""The memory that a plan names is the memory that a step takes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from swe_gym.cli.train import train  # noqa: E402  only where torch is there
from swe_gym.errors import UsageError  # noqa: E402
from swe_gym.train.batch import segments_batch  # noqa: E402
from swe_gym.train.config import TrainConfig, make_config  # noqa: E402
from swe_gym.train.learner import Learner, load_learner, load_policy  # noqa: E402
from swe_gym.train.model import all_sampled  # noqa: E402
from swe_gym.train.plan import MemoryPlan, plan_memory  # noqa: E402

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
    weights = list(learner.model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return peak + sum(weight.nbytes for weight in weights) + 8 * trained


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
@pytest.mark.parametrize(
    ("precision", "checkpointing", "more"),
    [
        ("float32", False, {}),
        ("float32", True, {}),
        ("bfloat16", False, {}),
        ("bfloat16", True, {}),
        ("bfloat16", False, {"lora_rank": 4, "dtype": "bfloat16"}),
    ],
)
def test_a_plan_is_the_measured_peak(folder: str, precision: str, checkpointing: bool, more: Any) -> None:
    if more:
        pytest.importorskip("peft")
    wanted = config(folder, precision=precision, gradient_checkpointing=checkpointing, **more)
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


def serve(*args: str, **env: str) -> Any:
    return {"backend": "vllm", "options": {"args": args, "env": env}}


@pytest.mark.parametrize(
    ("args", "values"),
    [
        ((), 2),
        (("--dtype=float32",), 4),
        (("--dtype", "float32", "--kv-cache-dtype", "fp8"), 1),
        (("-tp", "2"), 1),  # a head of two on each card
    ],
)
def test_a_token_in_the_cache_is_counted_by_the_servers_arguments(folder: str, args: Any, values: int) -> None:
    assert plan_memory(config(folder, generation=serve(*args)), 10**12).kv_per_token == values * 2 * 4 * 2 * 16


@pytest.mark.parametrize(
    ("env", "model", "processes", "shared"),
    [
        ({}, {}, 1, True),
        ({}, {"device": "cuda:1"}, 1, False),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, 1, False),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"device": "cuda:1"}, 1, True),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}, 2, True),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {}, 2, False),
    ],
)
def test_a_server_is_planned_on_the_card_of_any_process(
    folder: str, env: Any, model: Any, processes: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    generation = serve("--gpu-memory-utilization=0.3", **env)
    plan = plan_memory(config(folder, generation=generation, **model), 10**12, processes)
    assert bool(plan.sampler) == shared
    if shared:
        assert sum(plan.sampler.values()) == pytest.approx(0.3e12, rel=1e-6)


def test_a_server_that_sleeps_shares_the_card_in_turn(folder: str) -> None:
    awake = serve("--gpu-memory-utilization=0.8")
    asleep = {**awake, "options": {**awake["options"], "sleep": True}}

    def plan_on(generation: Any) -> MemoryPlan:
        wanted = config(folder, generation=generation)
        optim = wanted.optim.model_copy(update={"max_tokens_per_microbatch": 200_000})
        return plan_memory(wanted.model_copy(update={"optim": optim}), int(10e9))

    with pytest.raises(UsageError, match="this run needs"):
        plan_on(awake)
    plan = plan_on(asleep)
    staying = sum(plan.parts[name] for name in ("weights", "optimizer", "CUDA"))
    assert (plan.total, sum(plan.sampler.values())) == (int(8e9) + staying, int(8e9))
    smaller = {**asleep, "options": {**asleep["options"], "args": ["--gpu-memory-utilization=0.1"]}}
    assert plan_on(smaller).total == sum(plan.parts.values()) + (1 << 30)


def test_offloaded_moments_are_there_in_the_step_only(folder: str) -> None:
    wanted = config(folder, chunk=1)  # so that the step is the peak
    wanted = wanted.model_copy(update={"optim": wanted.optim.model_copy(update={"max_tokens_per_microbatch": 1})})
    kept = plan_memory(wanted, 10**12).parts
    optim = wanted.optim.model_copy(update={"offload": True})
    plan = plan_memory(wanted.model_copy(update={"optim": optim}), 10**12).parts
    assert (plan["optimizer"], kept["optimizer"]) == (0, 2 * plan["gradients"])
    assert sum(plan[name] for name in ("optimizer step", "backward", "activations")) == 3 * plan["gradients"]
    with pytest.raises(UsageError, match=r"optim\.offload needs one process"):
        plan_memory(wanted.model_copy(update={"optim": optim}), 10**12, 2)
    two: Any = SimpleNamespace(size=2)
    with pytest.raises(UsageError, match=r"optim\.offload needs one process"):
        load_learner(wanted.model_copy(update={"optim": optim}), two)


@pytest.mark.parametrize(("tokens", "helps"), [(1, False), (64, True)])
def test_offload_is_advised_where_it_helps(folder: str, tokens: int, helps: bool) -> None:
    wanted = config(folder, chunk=1)
    optim = wanted.optim.model_copy(update={"max_tokens_per_microbatch": tokens})
    wanted = wanted.model_copy(update={"optim": optim})
    with pytest.raises(UsageError, match="of them for optimizer: train in more processes") as caught:
        plan_memory(wanted, plan_memory(wanted, 10**12).total - 1)
    assert ("optim.offload = true" in str(caught.value)) == helps


def test_a_server_that_sleeps_is_on_the_card_of_one_process(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for env, processes, why in (({}, 2, "needs one process"), ({"CUDA_VISIBLE_DEVICES": "1"}, 1, "they share none")):
        generation = serve(**env)
        generation["options"]["sleep"] = "yes"
        with pytest.raises(UsageError, match=rf"generation\.options\.sleep .*{why}"):
            plan_memory(config(folder, generation=generation), 10**12, processes)


def test_the_generator_of_this_process_needs_a_whole_copy(folder: str) -> None:
    parts = plan_memory(config(folder), 10**12, 4).parts
    assert parts["whole copy"] == pytest.approx(4 * parts["weights"], abs=4)


SHAPE = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def test_latent_attention_caches_one_vector_a_layer(tmp_path: Path) -> None:
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    transformers.DeepseekV3Config(
        **SHAPE, **experts, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16,
        qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12, n_group=1, topk_group=1,
    ).save_pretrained(tmp_path)  # fmt: skip
    assert plan_memory(config(str(tmp_path)), 10**12).kv_per_token == 2 * 4 * (16 + 8)


@pytest.mark.parametrize(
    ("generation", "model", "processes", "why"),
    [
        (serve("--gpu-memory-utilization", "most"), {}, 1, "'most' is not a number above 0"),
        (serve("--quantization=fp8"), {}, 1, "cannot count the weights of a server with --quantization"),
        ({}, {"lora_rank": 2}, 2, "needs one process"),
    ],
)
def test_what_cannot_be_counted_is_refused(folder: str, generation: Any, model: Any, processes: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_memory(config(folder, generation=generation, **model), 10**12, processes)


def test_a_family_whose_layers_differ_is_refused_by_name(tmp_path: Path) -> None:
    if not hasattr(transformers, "Gemma4TextConfig"):
        pytest.skip("this version of transformers has no Gemma 4")
    shape = transformers.Gemma4TextConfig(**SHAPE, num_hidden_layers=4, num_key_value_heads=2, head_dim=16)
    shape.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="--plan cannot count the memory of models of type 'gemma4_text'"):
        plan_memory(config(str(tmp_path)), 10**12)


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
