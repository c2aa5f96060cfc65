import re
import threading
import time
from pathlib import Path

import pytest

from swe_gym.errors import SandboxError, UsageError
from swe_gym.sandboxes import Sandbox, SandboxSpec
from swe_gym.sandboxes.fake import FakeSandbox, Fault
from swe_gym.testing import sandbox_contract
from swe_gym.testing.sandbox_contract import CASES, Case, Opener, case


def fake(**fields: object) -> Sandbox:
    return FakeSandbox(SandboxSpec.model_validate(fields)).start()


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_every_case_has_a_name_of_its_own_a_promise_and_a_topic() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 140
    assert all(case.promise.endswith(".") and case.tags and case.budget > 0 for case in CASES)


def test_the_documentation_has_every_topic_and_names_only_cases() -> None:
    page = Path(__file__).parents[2].joinpath("docs/sandboxes/contract.md").read_text("utf-8")
    assert [case.name for case in CASES if not any(f"| `{tag}` |" in page for tag in case.tags)] == []
    names = {case.name for case in CASES}.union(*(case.tags for case in CASES))
    deviations = page.partition("## Deviations of the local backend")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in deviations.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+)`", " ".join(cells)))
    assert len(named) > 15
    assert named <= names


def test_a_backend_that_breaks_a_promise_fails_its_case() -> None:
    with pytest.raises(AssertionError):
        named("hello").run(fake)


def test_a_backend_that_keeps_a_promise_passes_and_its_sandboxes_are_closed() -> None:
    opened: list[Sandbox] = []

    def make(**fields: object) -> Sandbox:
        opened.append(fake(**fields))
        return opened[-1]

    named("closing_twice_and_together").run(make)
    named("unknown_options").run(make)
    assert opened
    assert all(sandbox.closed for sandbox in opened)


def test_a_case_that_would_hurt_the_machine_is_not_tried_without_isolation() -> None:
    for name in ("killing_everything", "killing_the_first_process", "killing_every_python", "fork_bomb"):
        opened: list[FakeSandbox] = []

        def make(opened: list[FakeSandbox] = opened, **fields: object) -> Sandbox:
            opened.append(FakeSandbox(SandboxSpec.model_validate(fields)).start())
            return opened[-1]

        with pytest.raises(AssertionError, match="not tried"):
            named(name).run(make)
        assert [call for sandbox in opened for call in sandbox.calls if call.at == "exec"] == []


def test_a_backend_that_hangs_fails_at_the_budget_and_is_closed() -> None:
    sandbox = FakeSandbox(faults=[Fault(at="exec", stall=True)]).start()

    @case("commands", budget=0.2)
    def waits(make: Opener) -> None:
        """Nothing."""
        make().exec("sleep 60", timeout=60)

    before = time.monotonic()
    with pytest.raises(AssertionError, match="waits did not end within"):
        waits.run(lambda: sandbox)
    assert time.monotonic() - before < 20
    assert sandbox.closed


def test_a_close_that_raises_fails_the_case() -> None:
    sandbox = FakeSandbox(faults=[Fault(at="close", error="SandboxError")]).start()

    @case("life")
    def opens(make: Opener) -> None:
        """Nothing."""
        make()

    with pytest.raises(SandboxError):
        opens.run(lambda: sandbox)


def test_a_slow_reply_fails() -> None:
    @case("deadlines")
    def is_fast(make: Opener) -> None:
        """It is."""
        with make.within(0.05, "the call"):
            threading.Event().wait(0.15)

    with pytest.raises(AssertionError, match="the call took"):
        is_fast.run(fake)


def test_cases_are_chosen_by_tag_and_by_name() -> None:
    network = sandbox_contract.cases(only=["network"])
    assert {"no_network_udp", "no_network_tcp"} <= {case.name for case in network}
    assert sandbox_contract.cases(only=["network"], exclude=["network"]) == ()
    chosen = sandbox_contract.cases(only=["hello", "exit_codes"], exclude=["hello"])
    assert [case.name for case in chosen] == ["exit_codes"]
    assert sandbox_contract.cases() == CASES


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'memory_limit'"):
        sandbox_contract.parametrize({"memory_limits": "reason"})
    with pytest.raises(UsageError, match="Did you mean 'network'"):
        sandbox_contract.cases(exclude=["networks"])


@sandbox_contract.parametrize({"hello": "a fake prints nothing"}, only=["hello", "unknown_options"])
def test_a_deviation_is_an_expected_failure(case: Case) -> None:
    case.run(fake)
