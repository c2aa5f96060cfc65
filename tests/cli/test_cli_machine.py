"""`swe-gym doctor` and `swe-gym bench`."""

import re

import pytest

from swe_gym.sandboxes.local import best_tier, problem
from swe_gym.sandboxes.local.tiers import TIERS
from swe_gym.testing.loopback import Exchange, HttpAnswer, LoopbackServer


class RootlessEngine(LoopbackServer):
    """An engine that has no delegated controllers."""

    def answer(self, exchange: Exchange) -> None:
        assert exchange.asked.path.endswith(("/version", "/info"))
        told = {"ApiVersion": "1.44", "ServerVersion": "27.0", "OperatingSystem": "Linux"}
        raise HttpAnswer(200, {**told, "MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": False})


@pytest.fixture
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://localhost:1/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")


@pytest.mark.usefixtures("_no_index")
def test_doctor_reports_what_works_and_how_to_fix_the_rest(cli) -> None:
    result = cli("doctor", "--verbose")
    assert (result.status, result.err) == (0, "")
    for what in ("Python 3.11+", "git", "cache", "tier process", "extra parquet", "extra render"):
        assert f"ok  {what} " in result.out
    assert re.search(rf"^ok  tier {best_tier()} .* the default$", result.out, re.MULTILINE)
    kit = r"^no  agent mini +2\.\S+ the kit is built at its first use\n    fix: swe-gym agents mini$"
    assert re.search(kit, result.out, re.MULTILINE)
    assert re.search(r"^no  package index .*\n    fix: configure pip", result.out, re.MULTILINE)


@pytest.mark.usefixtures("_no_index")
def test_doctor_names_the_address_of_an_unreachable_engine(cli) -> None:
    pytest.importorskip("docker")
    assert re.search(r"^no  docker  .*no Docker engine answers.*\n    fix: Start it", cli("doctor").out, re.MULTILINE)


@pytest.mark.usefixtures("_no_index")
def test_doctor_names_limits_that_an_engine_does_not_enforce(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with RootlessEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url.replace("http", "tcp"))
        out = cli("doctor").out
    assert re.search(r"^ok  docker  .*engine 27.0 on Linux$", out, re.MULTILINE)
    assert re.search(r"^no  docker limits .*not enforced: memory, CPU\n    fix: delegate", out, re.MULTILINE)


@pytest.mark.usefixtures("_no_index")
def test_doctor_checks_the_cluster(cli) -> None:
    pytest.importorskip("kubernetes")
    result = cli("doctor", "--backend", "kubernetes", "--backend-option", "kubeconfig=/nowhere/config")
    assert result.status == 1
    assert re.search(r"^no  configuration .*no Kubernetes cluster is configured", result.out, re.MULTILINE)
    wrong = cli("doctor", "--backend", "kubernetes", "--backend-option", "namespce=x")
    assert "did you mean 'namespace'" in wrong.err.lower()
    assert "needs exactly one --backend" in cli("doctor", "--backend-option", "namespace=x").err


@pytest.mark.usefixtures("_no_index")
def test_doctor_prints_every_gap_of_every_tier(cli) -> None:
    said = " ".join(cli("doctor", "--verbose").out.split())
    for name, tier in TIERS.items():
        assert f"What tier {name} isolates: + {tier.isolates}" in said
        for gap in tier.notes():
            assert f"- {gap}" in said


@pytest.mark.usefixtures("_no_index")
def test_doctor_fails_if_nothing_can_run(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", "/proc/nowhere")
    monkeypatch.setenv("PATH", "")
    problem.cache_clear()  # as in a process that has not asked yet
    result = cli("doctor", "--verbose")
    assert (result.status, result.err) == (1, "")
    for tier in TIERS:
        assert f"no  tier {tier:15}  unknown: cannot use the cache" in result.out
    assert "no  git                   not on the PATH\n    fix: apt-get install git\n" in result.out
    assert re.search(r"^no  cache .*/proc/nowhere: .*\n    fix: set SWE_GYM_CACHE", result.out, re.MULTILINE)


def test_bench_measures_the_machine(cli) -> None:
    result = cli("bench", "sandbox", "--rounds", 5)
    assert (result.status, result.err) == (0, "")
    assert f"isolation {best_tier()}; times are medians of 5" in result.out
    for what in (
        r"bash -c true +[\d.]+ ms +[\d.]+ ms +[\d.]+x",
        r"true +[\d.]+ ms +[\d.]+ ms +[\d.]+x",
        r"open, first command +[\d.]+ ms",
        r"close +[\d.]+ ms",
        r"true on 16 threads +[\d.]+/s +[\d.]+/s +[\d.]+x",
        r"memory of each of 3 +-?[\d.]+ MB",
    ):
        assert re.search(f"^{what} *$", result.out, re.MULTILINE)
