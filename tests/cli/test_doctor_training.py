"""`swe-gym doctor --training` without Hydra: versions, Ray, and the configuration of the reference trainer."""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
Doctor = Callable[..., dict[str, Any]]
Check = Callable[[], dict[str, Any]]


@pytest.fixture
def small(doctor: Doctor, tmp_path: Path) -> Check:
    """Checks a configuration of the reference trainer that is right."""
    return lambda: doctor(EXAMPLES / "vllm_ppo/cpu.toml", f"model.path={tmp_path}")


@pytest.mark.parametrize(
    ("numpy", "numba", "datasets", "failed"),
    [
        ("2.2.6", "numpy<2.3,>=1.24", "4.5.0", []),
        ("2.3.0", "numpy<2.3,>=1.24", "4.4.9", ["datasets", "numpy"]),
        ("2.10", "numpy>=1.24", "5.2.0", []),
    ],
)
def test_versions(
    small: Check,
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
    assert sorted(small()["failed"]) == failed


def test_processes_of_ray_are_found(small: Check, tmp_path: Path) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    with subprocess.Popen([tmp_path / "raylet", "60"]) as left:
        try:
            report = small()
        finally:
            left.kill()
    assert (report["ray"], str(left.pid) in report["found"]["Ray"]["detail"]) == ("ray stop --force", True)


def test_the_reference_trainers_own_configuration(small: Check) -> None:
    report = small()
    assert report["failed"] == {}
    assert "updates x " in report["found"]["sandboxes"]["detail"]


def test_without_hydra_what_is_not_checked_is_named(doctor: Doctor) -> None:
    if importlib.util.find_spec("hydra"):
        pytest.skip("Hydra is installed")
    failed = doctor(EXAMPLES / "verl/ags.yaml", "trainer.nnodes=2")["failed"]
    assert set(failed) == {"configuration"}
    assert "swe-gym[verl]" in failed["configuration"]


def test_a_wrong_call_is_named(cli) -> None:
    assert "there is no file missing.yaml" in cli("doctor", "--training", "missing.yaml").err
    assert "need --training CONFIG" in cli("doctor", "trainer.nnodes=2").err
