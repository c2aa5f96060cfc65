"""Commands treat a backend given by a dotted path as they treat their own: they ask it what works."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from swe_gym.errors import SandboxStartError, UsageError
from swe_gym.sandboxes import Finding, SandboxSpec
from swe_gym.sandboxes.fake import FakeSandbox
from swe_gym.sandboxes.types import parse_options
from swe_gym.types import Frozen, JsonMapping

BACKEND = "test_foreign_backends:Foreign"
WHERE = ["--backend-option", "region=moon"]


class Options(Frozen):
    """Options of `Foreign`."""

    region: str = "earth"


class Foreign(FakeSandbox):
    """A backend of another package, whose service answers in one region only."""

    name = "foreign"

    def __init__(self, spec: SandboxSpec) -> None:
        parse_options(Options, spec.options, self.name)
        super().__init__(spec.model_copy(update={"options": {}}))

    @classmethod
    def check(cls, specs: Sequence[SandboxSpec]) -> list[Finding]:
        return cls.diagnose(specs[0].options)

    @classmethod
    def diagnose(cls, options: JsonMapping) -> list[Finding]:
        region = parse_options(Options, options, cls.name).region
        return [Finding("service", region == "earth", f"{region} answers or not", "choose region=earth")]

    @classmethod
    def sweep(cls, options: JsonMapping) -> list[str]:
        if parse_options(Options, options, cls.name).region != "earth":
            raise SandboxStartError("the service does not answer", reason="setup")
        return ["left-1", "left-2"]

    def _start(self, deadline: float) -> None:  # noqa: ARG002  nothing starts
        raise AssertionError("a sandbox was started")


class NotABackend:
    """It lacks everything."""


@pytest.mark.parametrize(
    "command",
    [
        ["rollout", "toy[:1]"],
        ["eval", "toy[:1]", "policy.name=gold"],
        ["validate", "toy", "--limit", "1"],
        ["demo", "--match", "rota-month-end"],
    ],
    ids=lambda command: command[0],
)
def test_a_check_that_fails_refuses_the_run(cli, command: list[str]) -> None:
    refused = cli(*command, "--backend", BACKEND, "--sandbox-option", "options.region=moon")
    assert refused.status != 0
    assert "service: moon answers or not. Fix: choose region=earth" in refused.err


def test_what_the_check_found_is_shown(cli) -> None:
    shown = cli("eval", "toy[:1]", "policy.name=gold", "--backend", BACKEND, "--check")
    assert (shown.status, shown.err) == (0, "")
    assert "service earth answers or not\n" in shown.out


def test_doctor_asks_a_backend_that_is_named(cli) -> None:
    good, bad = (cli("doctor", "--backend", BACKEND, *options) for options in ([], WHERE))
    assert good.status == 0
    assert re.search("^ok  service +earth answers", good.out, re.MULTILINE)
    assert bad.status == 1
    assert re.search("^no  service +moon answers or not\n    fix: choose region=earth", bad.out, re.MULTILINE)
    assert "did you mean 'region'" in cli("doctor", "--backend", BACKEND, "--backend-option", "regio=x").err.lower()


def test_clean_sweeps_a_backend_that_is_named(cli) -> None:
    swept = cli("clean", "--backend", BACKEND, "--json")
    assert json.loads(swept.out) == {BACKEND: {"removed": ["left-1", "left-2"]}}
    refused = cli("clean", "--backend", BACKEND, *WHERE)
    assert (refused.status, refused.out) == (1, f"{BACKEND}: the service does not answer\n")


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package, whose entry points name `Foreign`, and a backend that is broken."""
    folder = tmp_path / "site" / "foreign-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    named = f"[swe_gym.backends]\nforeign = {BACKEND}\nbroken = nowhere.at_all:Backend\n"
    (folder / "entry_points.txt").write_text(named)
    monkeypatch.syspath_prepend(str(folder.parent))


@pytest.mark.usefixtures("_installed")
def test_entry_points_are_asked_without_being_named(cli) -> None:
    found = json.loads(cli("clean", "--json").out)
    assert found["foreign"] == {"removed": ["left-1", "left-2"]}
    assert "broken" not in found
    report = cli("doctor")
    assert report.status == 0
    assert re.search("^no  broken +.*cannot import 'nowhere.at_all'", report.out, re.MULTILINE)
    assert cli("clean", "--backend", "foreign").out == "foreign: 2 removed left-1 left-2\n"


@pytest.mark.parametrize("command", ["rollout", "validate", "doctor", "clean"])
def test_another_class_is_refused_by_name(cli, command: str) -> None:
    refused = cli(command, "--backend", "test_foreign_backends:NotABackend")
    assert "is not a subclass of swe_gym.sandboxes.Sandbox" in refused.err


@pytest.mark.slow
def test_a_service_that_does_not_answer_is_refused_for_every_backend_of_its_kind(
    cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("e2b")
    for name in ("E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("E2B_API_KEY", "key")
    for backend in ("e2b", "ags"):
        where = ["--backend", backend, "--sandbox-option", "options.api_url=http://127.0.0.1:9"]
        refused = cli("rollout", "toy[:1]", *where)
        assert "the sandboxes of http://127.0.0.1:9 cannot be used" in refused.err, refused


def test_the_error_of_a_wrong_option_names_the_backend() -> None:
    with pytest.raises(UsageError, match="option of backend 'foreign': 'regio'"):
        Foreign(SandboxSpec(options={"regio": 1}))
