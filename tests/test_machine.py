"""Tests skip what a machine lacks. Where `SWE_GYM_REQUIRE` says that it may lack nothing, that is a failure."""

import os
import shutil
from pathlib import Path

import chromium
import pytest

from swe_gym.sandboxes.local import problem
from swe_gym.sandboxes.local.tiers import TIERS

REQUIRED = [what for what in os.environ.get("SWE_GYM_REQUIRE", "").split(",") if what]
"""`chromium`: a browser that tests can drive; `local`: every tier of the local sandbox, with and without network;
`network`: the package index; `docker` and `kubernetes`: engines; `e2b`: its SDK; `data`: the folder of published
rows, logs and trajectories beside the checkout; `mini`, `claude-code` and `qwen-code`: the kits of these
agents; `node` and `go`: programs that run tests in other languages."""


def test_what_is_required_can_be_required() -> None:
    frameworks = {"anthropic", "nemo_gym", "openenv", "rllib", "serve", "trl", "verifiers", "verl", "vllm"}
    machine = {"chromium", "data", "docker", "e2b", "go", "kubernetes", "local", "network", "node"}
    assert set(REQUIRED) <= machine | frameworks | {"claude-code", "mini", "qwen-code"}


@pytest.mark.parametrize("tier", TIERS)
def test_required_local_sandboxes_work(tier: str) -> None:
    assert "local" not in REQUIRED or problem(tier) == ""


def test_required_local_sandboxes_can_connect_outwards() -> None:
    assert "local" not in REQUIRED or problem("namespace", "egress") == ""


def test_the_required_package_index_can_be_reached(request: pytest.FixtureRequest) -> None:
    assert "network" not in REQUIRED or request.getfixturevalue("index_problem") == ""


def test_the_required_data_are_there() -> None:
    assert "data" not in REQUIRED or (Path(__file__).parents[2] / "shared" / "data").is_dir()


def test_the_required_browser_can_be_driven() -> None:
    assert "chromium" not in REQUIRED or chromium.problem() == ""


@pytest.mark.parametrize("program", ["go", "node"])
def test_required_programs_are_there(program: str) -> None:
    assert program not in REQUIRED or shutil.which(program)
