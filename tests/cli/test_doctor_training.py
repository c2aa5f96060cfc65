"""`swe-gym doctor --training`: each mistake of a configuration has a finding with its fix."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_gym.cli import doctor_training
from swe_gym.testing.loopback import Exchange, HttpAnswer, LoopbackServer

pytest.importorskip("yaml")

EXAMPLES = Path(__file__).parents[2] / "examples"
Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    return f"actor_rollout_ref.model.path={tmp_path / 'model'}"


@pytest.fixture
def doctor(cli, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setenv("E2B_API_KEY", "e2b_key")

    def run(config: Path, *changes: str) -> dict[str, Any]:
        outcome = cli("doctor", "--json", "--training", config, *changes)
        found = {finding["what"]: finding for finding in json.loads(outcome.out)}
        failed = {what: finding["fix"] for what, finding in found.items() if not finding["works"]}
        assert outcome.status == (1 if failed else 0)
        ray = failed.pop("Ray", "")  # of another program on this machine
        return {"found": found, "failed": failed, "ray": ray}

    return run


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


@pytest.mark.parametrize(
    ("numpy", "numba", "datasets", "failed"),
    [
        ("2.2.6", "numpy<2.3,>=1.24", "4.5.0", []),
        ("2.3.0", "numpy<2.3,>=1.24", "4.4.9", ["datasets", "numpy"]),
        ("2.10", "numpy>=1.24", "5.2.0", []),
    ],
)
def test_versions(
    doctor: Doctor,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    numpy: str,
    numba: str,
    datasets: str,
    failed: list[str],
    tmp_path: Path,
) -> None:
    for name, version, rule in (("numpy", numpy, ""), ("numba", "0.61", numba), ("datasets", datasets, "")):
        folder = tmp_path / f"site/{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        needs = f"Requires-Dist: {rule}\n" if rule else ""
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    monkeypatch.syspath_prepend(tmp_path / "site")
    report = doctor(EXAMPLES / "verl/ags.yaml", model, "--quota", "16")
    assert sorted(set(report["failed"]) - {"rows"}) == failed


def test_processes_of_ray_are_found(doctor: Doctor, model: str, tmp_path: Path) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    with subprocess.Popen([tmp_path / "raylet", "60"]) as left:
        try:
            report = doctor(EXAMPLES / "verl/ags.yaml", model)
        finally:
            left.kill()
    assert (report["ray"], str(left.pid) in report["found"]["Ray"]["detail"]) == ("ray stop --force", True)


def test_the_reference_trainers_own_configuration(doctor: Doctor, tmp_path: Path) -> None:
    report = doctor(EXAMPLES / "vllm_ppo/cpu.toml", f"model.path={tmp_path}")
    assert report["failed"] == {}
    assert "updates x " in report["found"]["sandboxes"]["detail"]


def test_a_wrong_file_is_named(cli, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "rows.yaml").write_bytes(b"PAR1\xff")
    (tmp_path / "trl.yaml").write_text("model: base\nmax_steps: 16\n")
    (tmp_path / "batch.yaml").write_text("data: {train_batch_size: four}\n")
    for name, said in (
        ("missing.yaml", "cannot be read"),
        ("list.yaml", "is not a configuration"),
        ("bad.yaml", "cannot be read"),
        ("rows.yaml", "cannot be read"),
        ("trl.yaml", "is not a configuration of verl or rLLM"),
        ("batch.yaml", "data.train_batch_size='four' must be a whole number"),
    ):
        outcome = cli("doctor", "--training", name)
        assert (outcome.status, said in outcome.err) == (2, True), outcome
    assert "need --training CONFIG" in cli("doctor", "trainer.nnodes=2").err


def test_what_a_file_leaves_out_is_found(cli, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cli("tasks", "export", tmp_path / "rows.parquet", "--to", "verl", "--source", "toy", "--limit", "5")
    (tmp_path / "one.yaml").write_text("defaults: [two, group/two, {override hydra/job_logging: none}, _self_]\n")
    (tmp_path / "two.yaml").write_text("defaults: [one]\ndata: {train_files: ~/rows.parquet, train_batch_size: 8}\n")
    report = doctor(tmp_path / "one.yaml")
    assert report["failed"] == {"hub": "actor_rollout_ref.model.path=NAME"}
    assert "(5 rows x 30 epochs x 1)" in report["found"]["sandboxes"]["detail"]
    (tmp_path / "none.yaml").write_text("defaults:\ndata: {train_files: 3}\n")
    assert set(doctor(tmp_path / "none.yaml")["failed"]) == {"rows", "hub"}


def test_defaults_and_references_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("data: {max_prompt_length: 7, train_files: a.parquet}\n")
    (tmp_path / "own.yaml").write_text(
        "defaults: [ppo_trainer, base, _self_]\ndata: {train_files: b.parquet}\n"
        "actor_rollout_ref: {rollout: {n: '${data.max_prompt_length}'}}\nloop: '${loop}'\n"
    )
    config = doctor_training.VerlConfig(doctor_training.read_yaml(tmp_path / "own.yaml"), ["data.max_prompt_length=9"])
    names = ("data.train_files", "actor_rollout_ref.rollout.n", "trainer.nnodes", "loop")
    assert [config.get(name) for name in names] == ["b.parquet", 9, 1, "${loop}"]
