"""An invalid configuration is an error before anything starts, and the error names the fix."""

from pathlib import Path
from typing import Any

import pytest

from swe_gym.errors import UsageError
from swe_gym.train.config import RENAMED, TrainConfig, load_config, make_config

EXAMPLES = Path(__file__).parents[2] / "examples/vllm_ppo"
MINIMAL: dict[str, Any] = {"model": {"path": "m"}, "env": {"held_out": {"first": 1000}}}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"algorithm": {"async_rollout": True}}, "which algorithm.async_rollout does not do"),
        (
            {"algorithm": {"advantage": "gae"}, "model": {"path": "m", "value_head": True}},
            "advantage 'gae' does not do",
        ),
        ({"env": {"held_out": {"first": 1000}, "agent": "mini"}}, "which env.agent does not do"),
    ],
)
def test_prefixes_need_groups_and_a_policy_that_continues(sections: dict[str, Any], named: str) -> None:
    assert not make_config({**MINIMAL, **sections}).collect.prefixes
    with pytest.raises(UsageError, match=named):
        make_config({**MINIMAL, **sections, "collect": {"prefixes": True}})


def test_defaults_round_trip() -> None:
    config = make_config(MINIMAL)
    assert make_config(config.model_dump()) == config
    assert config.algorithm.advantage == "rloo"


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("algorithm", {"advantage": "gae"}, "value_head = true"),
        ("algorithm", {"advantage": "rlo"}, "algorithm.advantage"),
        ("algorithm", {"group_size": 1}, "at least 2"),
        ("algorithm", {"minibatches": 7}, "minibatches"),
        ("algorithm", {"async_rollout": True, "max_staleness": 0}, "max_staleness"),
        ("generation", {"options": {"sleep": True}}, ""),
        ("generation", {"options": {"sleep": "yes"}}, ""),
        ("algorithm", {"async_rollout": True, "zero_variance_groups": "refill"}, "does not wait for"),
        ("algorithm", {"advantage": "gae", "zero_variance_groups": "refill"}, "does not need"),
        ("algorithm", {"advantage": "tree_grpo"}, "set collect.branches"),
        ("collect", {"branches": 1}, "is for algorithm.advantage 'tree_grpo', not 'rloo'"),
        ("collect", {"branches": 1, "demonstrations": "runs/x"}, "as collect.branches takes none"),
        ("algorithm", {"step_gamma": 0.9}, "step_gamma is for advantage 'gigpo' and 'rtmc', not 'rloo'"),
        ("algorithm", {"advantage": "gigpo", "value_prior": 3.0}, "value_prior is for advantage 'rtmc'"),
        ("algorithm", {"advantage": "rtmc", "step_weight": 0.5}, "step_weight is for advantage 'gigpo'"),
        ("algorithm", {"advantage": "rtmc", "gamma": 0.9}, "set step_gamma instead"),
        ("collect", {"branches": 1, "prefixes": True}, "in two ways"),
        ("collect", {"ignore": ["x"]}, "is for collect.prefixes, collect.branches and the advantages"),
        ("collect", {"demonstrations": "runs/x"}, "set collect.prefixes = true"),
        ("optim", {"schedule": "cosine"}, "decay_steps"),
        ("optim", {"decay_steps": 3}, "'constant' does not fall"),
        ("algorithm", {"dual_clip": 0.9}, "above 1, or 0"),
        ("model", {"path": "m", "dtype": "bfloat16"}, "lora_rank"),
        ("generation", {"backend": "hf"}, ""),
        ("generation", {"max_tokens": 5000}, "no room for a prompt"),
        ("generation", {"max_context": 100_000}, "max_tokens_per_microbatch"),
        ("generation", {"temperature": 0}, "generation.temperature"),
        ("env", {"held_out": {}}, "training tasks"),
        ("optim", {"lrr": 1}, r"'optim.lrr'. Did you mean 'optim.lr'\?"),
        ("optimm", {}, "optimm"),
    ],
)
def test_an_invalid_combination_is_named(section: str, values: dict[str, Any], message: str) -> None:
    wrong = {**MINIMAL, section: values}
    if not message:
        assert values.items() <= make_config(wrong).generation.model_dump().items()
        wrong["algorithm"] = {"async_rollout": True}
        message = "plays episodes meanwhile" if "options" in values else "async_rollout = false"
    with pytest.raises(UsageError, match=message):
        make_config(wrong)


def test_a_setting_that_is_off_in_words_is_off() -> None:
    for sleep in ("False", "no", 0, "maybe"):  # the last is refused with the other options of the generator
        found = make_config(
            {**MINIMAL, "generation": {"options": {"sleep": sleep}}, "algorithm": {"async_rollout": True}}
        )
        assert not found.generation.sleeps


@pytest.mark.parametrize("advantage", ["gigpo", "rtmc", "tree_grpo"])
def test_what_compares_turns_plays_without_an_agent(advantage: str) -> None:
    collect = {"branches": int(advantage == "tree_grpo")}
    whole = {**MINIMAL, "algorithm": {"advantage": advantage}, "collect": collect}
    apart = {"train": {"first": 0}, "held_out": {"first": 9}}
    assert make_config(whole).algorithm.signed == (advantage != "tree_grpo")
    assert make_config({**whole, "collect": {**collect, "ignore": ["x"]}}).collect.ignore == ("x",)
    assert make_config(whole).algorithm.discount == (0.95 if advantage == "gigpo" else 0.99)
    with pytest.raises(UsageError, match=f"{advantage}' needs the calls of each turn"):
        make_config({**whole, "env": {"agent": "mini", **apart}})
    if advantage == "tree_grpo":
        with pytest.raises(UsageError, match="does not wait for them"):
            make_config({**whole, "algorithm": {"advantage": advantage, "async_rollout": True}})
        with pytest.raises(UsageError, match="use 'token-mean' with"):
            make_config({**whole, "algorithm": {"advantage": advantage, "loss_agg": "seq-mean-token-mean"}})
        with pytest.raises(UsageError, match="in its place"):
            make_config({**whole, "collect": {"prefixes": True}})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    config = load_config(path, ["model.path=m"])
    assert config.env.id == "SWE/Micro-v0"
    assert config.model.matmul_precision == "highest"  # less is bfloat16 on a CPU with AMX, unlike vLLM's float32


def test_overrides_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[env.held_out]\nfirst = 1000\n')
    changes = [
        "optim.lr=3e-5",
        "run.output=runs/other",
        "algorithm.prompts_per_step = 2",
        "env.options={difficulty = [1, 2]}",
    ]
    config = load_config(path, changes)
    assert config.optim.lr == 3e-5
    assert config.run.output == "runs/other"
    assert config.algorithm.prompts_per_step == 2
    assert config.env.options == {"difficulty": [1, 2]}
    words = ["env.agent=command", "env.agent_options.command=true", "env.agent_options.env.DEBUG=1.10", "run.output=7"]
    config = load_config(path, words)
    assert config.env.agent_options == {"command": "true", "env": {"DEBUG": "1.10"}}
    assert config.run.output == "7"
    for change in ("optim.lr", "=3", "model.path.x=1", "optim.lr=fast"):
        with pytest.raises(UsageError):
            load_config(path, [change])
    with pytest.raises(UsageError, match="cannot read"):
        load_config(tmp_path / "none.toml")
    path.write_text("[model\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_config(path)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_former_name_is_an_error_that_names_the_new_one(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[env.held_out]\nfirst = 1000\n')
    value = "{episodes = 1}" if old == "warm_start" else "1"
    with pytest.raises(UsageError, match=f"{old} was renamed: use {new}"):
        load_config(path, [f"{old}={value}"])
    section, _, field = new.partition(".")
    kind: Any = TrainConfig.model_fields[section].annotation
    assert not field or field.partition(".")[0] in kind.model_fields


@pytest.mark.parametrize("algorithm", [{"loss_agg": "seq-mean-token-sum-norm"}, {"loss_length": 100}])
def test_a_constant_length_and_its_aggregation_come_together(algorithm: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="divides by loss_length, a number of tokens: set both or neither"):
        make_config({"model": {"path": "m"}, "algorithm": algorithm})
