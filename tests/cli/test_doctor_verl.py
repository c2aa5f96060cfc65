"""`swe-gym doctor --training` on Hydra's configurations, with Hydra and verl's defaults: each mistake has its fix."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.testing.loopback import Exchange, HttpAnswer, LoopbackServer

if "verl" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") and not importlib.util.find_spec("verl"):
    pytest.skip("verl is tested in a separate environment", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # verl and its dependencies emit warnings


EXAMPLES = Path(__file__).parents[2] / "examples"
Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    return f"actor_rollout_ref.model.path={tmp_path / 'model'}"


class Hub(LoopbackServer):
    """A hub that has every model."""

    def answer(self, exchange: Exchange) -> None:
        raise HttpAnswer(200, {"id": exchange.asked.path})


def test_an_example_passes_once_its_rows_exist(cli, doctor: Doctor, model: str) -> None:
    config = EXAMPLES / "verl/small.yaml"
    assert doctor(config, model)["failed"] == {
        "rows": "swe-gym tasks export micro_train.parquet --to verl --source SOURCE"
    }
    cli("tasks", "export", "micro_train.parquet", "--to", "verl", "--source", "toy", "--limit", "5")
    assert "export micro_test.parquet" in doctor(config, model)["failed"]["rows"]
    cli("tasks", "export", "micro_test.parquet", "--to", "verl", "--source", "toy", "--limit", "2")
    report = doctor(config, model)
    assert report["failed"] == {}
    assert report["found"]["sandboxes"]["detail"].endswith("; 40 in all (5 rows x 2 epochs x 4)")  # n of common.yaml


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        (["data.max_response_length=40000"], "tokens per GPU", "actor.ppo_max_token_len_per_gpu=45056"),
        (["trainer.n_gpus_per_node=3"], "batch", "data.train_batch_size=6"),
        (["trainer.use_v1=false"], "trainer", "trainer.use_v1=True"),
        (["trainer.use_v1=False"], "trainer", "trainer.use_v1=True"),
        (["data.train_batch_size=8"], "sandboxes", "or a higher quota"),
        (["env_args.backend=dokker"], "backend dokker", "Did you mean 'docker'?"),
        (["+env_args.sandbox_options.options.pul=never"], "backend ags", "pul"),
        (["+env_args.max_turn=3"], "agent", "Did you mean 'max_turns'?"),
        (["env_args.tools=r2"], "agent", "unknown preset of tools 'r2'"),
        (["env_id=SWE/Micr-v0"], "agent", "Did you mean 'SWE/Micro-v0'?"),
        (["+agent_args.max_token=3"], "agent", "max_token"),
    ],
)
def test_a_mistake_has_its_fix(doctor: Doctor, model: str, changes: list[str], what: str, fix: str) -> None:
    report = doctor(EXAMPLES / "verl/ags.yaml", model, "data.train_files=[]", "--quota", "16", *changes)
    assert set(report["failed"]) == {what, "rows"}
    assert fix in str(report["found"][what])


def test_credentials_must_be_present(doctor: Doctor, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    failed = doctor(EXAMPLES / "verl/ags.yaml", model)["failed"]
    assert "environment variable E2B_API_KEY" in failed["backend ags"]
    assert "higher quota" in failed["sandboxes"]  # 16 at once; a personal account has ten


def test_the_hub_must_have_the_model(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.inject("*", status=401, skip=1)
        assert "hub" not in doctor(EXAMPLES / "verl/ags.yaml")["failed"]
        assert "set HF_TOKEN" in doctor(EXAMPLES / "verl/ags.yaml")["failed"]["hub"]
        assert server.paths() == ["GET /api/models/Qwen/Qwen3-8B"] * 2
    assert "HF_ENDPOINT" in doctor(EXAMPLES / "verl/ags.yaml")["failed"]["hub"]  # nobody answers


def test_a_wrong_file_is_named(cli, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "rows.yaml").write_bytes(b"PAR1\xff")
    (tmp_path / "trl.yaml").write_text("model: base\nmax_steps: 16\n")
    (tmp_path / "alone.yaml").write_text("defaults: [other]\ndata: {train_batch_size: 4}\n")
    for name, said in (
        ("missing.yaml", "there is no file"),
        ("list.yaml", "Hydra cannot compose"),
        ("bad.yaml", "Hydra cannot compose"),
        ("rows.yaml", "Hydra cannot compose"),
        ("trl.yaml", "is not a configuration of verl or rLLM"),
        ("alone.yaml", "Could not load 'other'"),
    ):
        outcome = cli("doctor", "--training", name)
        assert (outcome.status, said in outcome.err) == (2, True), outcome


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.train_batch_size=four", "data.train_batch_size='four' must be a whole number"),
        ("data.train_files=${nothing}", "data.train_files cannot be resolved: "),
        ("data.train_batch=4", "Could not override 'data.train_batch'"),
    ],
)
def test_a_wrong_override_is_named(cli, model: str, change: str, said: str) -> None:
    outcome = cli("doctor", "--training", EXAMPLES / "verl/small.yaml", model, change)
    assert (outcome.status, said in outcome.err) == (2, True), outcome


def test_defaults_and_references_are_hydras(
    cli, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("tasks", "export", tmp_path / "rows.parquet", "--to", "verl", "--source", "toy", "--limit", "5")
    (tmp_path / "own.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: ['pkg://verl.trainer.config']}\n"
        "data: {train_files: ~/rows.parquet, val_files: '${data.train_files}', train_batch_size: 8}\n"
        "actor_rollout_ref: {model: {path: '${oc.env:HOME}'}}\n"
    )
    report = doctor(tmp_path / "own.yaml")
    assert report["failed"] == {}
    assert "(5 rows x 30 epochs x 1)" in report["found"]["sandboxes"]["detail"]  # epochs and n of verl
