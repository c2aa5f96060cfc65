"""What the command says of the machine: doctor and bench."""

import re

import pytest

from swe_gym.sandboxes.local import best_tier
from swe_gym.sandboxes.local.tiers import TIERS


@pytest.fixture
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://localhost:1/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.mark.usefixtures("_no_index")
def test_doctor_says_what_works_and_how_to_mend_what_does_not(cli) -> None:
    result = cli("doctor")
    assert (result.status, result.err) == (0, "")
    for what in ("Python 3.11+", "git", "cache", "tier process", "extra parquet", "extra render"):
        assert f"ok  {what} " in result.out
    assert re.search(rf"^ok  tier {best_tier()} .* taken by default$", result.out, re.MULTILINE)
    assert re.search(r"^no  package index .*\n    fix: configure pip", result.out, re.MULTILINE)


@pytest.mark.usefixtures("_no_index")
def test_doctor_hides_no_gap_of_any_tier(cli) -> None:
    said = " ".join(cli("doctor").out.split())
    for name, tier in TIERS.items():
        assert f"What tier {name} isolates: + {tier.isolates}" in said
        for gap in tier.gaps:
            assert f"- {gap}" in said


@pytest.mark.usefixtures("_no_index")
def test_doctor_fails_where_nothing_can_run(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_GYM_CACHE", "/proc/nowhere")
    monkeypatch.setenv("PATH", "")
    result = cli("doctor")
    assert result.status == 1
    assert "no  git                   not on the PATH\n    fix: apt-get install git\n" in result.out
    assert re.search(r"^no  cache .*/proc/nowhere: .*\n    fix: set SWE_GYM_CACHE", result.out, re.MULTILINE)


def test_bench_measures_the_machine(cli) -> None:
    result = cli("bench", "sandbox", "--rounds", 5, "--live", 3)
    assert (result.status, result.err) == (0, "")
    assert f"isolation {best_tier()}; times are medians of 5" in result.out
    for what in (
        r"bash -c true +[\d.]+ ms +[\d.]+ ms +[\d.]+x",
        r"true +[\d.]+ ms +[\d.]+ ms +[\d.]+x",
        r"open, first command +\d+ ms",
        r"close +\d+ ms",
        r"true on 16 threads +\d+/s +\d+/s +[\d.]+x",
        r"memory of each of 3 +-?[\d.]+ MB",
    ):
        assert re.search(f"^{what} *$", result.out, re.MULTILINE)
