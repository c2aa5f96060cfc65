"""Infrastructure failures: never an observation, never a reward, never an exception from `step`."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from env_parts import SECRETS, SUBMIT, CountedSandbox, call

from swe_gym.envs.swe_env import SANDBOX_FAILED, SweEnv
from swe_gym.errors import SandboxClosed, SandboxLost, SandboxStartError, UsageError
from swe_gym.testing.sandbox_contract.case import Background

Make = Callable[..., SweEnv]


def assert_no_reward(result: tuple[str, float, bool, bool, dict[str, Any]], error: str) -> None:
    observation, reward, terminated, truncated, info = result
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["outcome"], info["reward_valid"], info["resolved"]) == ("infra_failed", False, False)
    assert info["reward_components"] == {}
    assert info["limit"] == ""
    assert info["failure"].startswith(error)
    assert "scripted" not in observation


def fault(at: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "error": "SandboxLost", "message": "a scripted fault", "retryable": False, **fields}


def assert_nothing_left(env: SweEnv) -> None:
    env.close()  # waits: after the last step, sandboxes close in the background
    assert all(sandbox.closed for sandbox in CountedSandbox.started)


@pytest.mark.parametrize(
    ("at", "action"),
    [
        ("exec", call("bash", command="true")),
        ("read", call("view", path="a.py")),
        ("write", call("rewrite", path="a.py", new_code="x = 2\n")),
    ],
)
def test_a_fault_in_a_tool_ends_the_episode_without_a_reward(fake_env: Make, at: str, action: str) -> None:
    env = fake_env(faults=[fault(at, reason="oom")])
    env.reset()
    result = env.step(action)
    assert_no_reward(result, "SandboxLost (oom)")
    assert result[0] == SANDBOX_FAILED
    assert_nothing_left(env)


@pytest.mark.parametrize("at", ["manifest", "close"])
def test_a_fault_while_taking_the_work_gives_no_reward(fake_env: Make, at: str) -> None:
    env = fake_env(faults=[fault(at)])
    env.reset()
    assert_no_reward(env.step(SUBMIT), "SandboxLost")
    assert_nothing_left(env)


@pytest.mark.parametrize("at", ["start", "manifest", "exec"])
@pytest.mark.parametrize("limit", [1, 50])
def test_a_fault_of_the_graders_sandbox_gives_no_reward(fake_env: Make, at: str, limit: int) -> None:
    env = fake_env({"max_turns": limit}, strikes=2, faults=[fault(at)])
    env.reset()
    result = env.step(SUBMIT if limit > 1 else call("bash", command="true"))
    assert_no_reward(result, "SandboxLost")
    assert_nothing_left(env)


def test_a_graders_sandbox_that_cannot_be_closed_costs_no_reward(
    fake_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    env = fake_env({}, strikes=2, faults=[fault("close")])
    env.reset()
    assert env.step(SUBMIT)[1] == 1.0
    assert_nothing_left(env)
    assert "a sandbox was not closed; its ttl will end it: a scripted fault" in caplog.text


def test_the_reward_does_not_wait_until_the_graders_sandbox_is_closed(fake_env: Make) -> None:
    env = fake_env({}, strikes=2, faults=[{"at": "close", "stall": True}])
    env.reset()
    assert env.step(SUBMIT)[1] == 1.0
    judge = CountedSandbox.started[1]
    assert judge.stalled.wait(60)
    closing = Background(env.close)
    assert not closing.wait(0.2), "close does not wait for it"
    judge.release()
    closing.result(60)


def test_without_a_fault_the_same_episode_has_a_reward(fake_env: Make) -> None:
    env = fake_env()
    env.reset()
    _, reward, terminated, _, info = env.step(SUBMIT)
    assert (reward, terminated, info["outcome"]) == (1.0, True, "submitted")
    assert_nothing_left(env)


def test_a_failure_is_short_and_names_no_host_path(fake_env: Make) -> None:
    env = fake_env(faults=[fault("exec", message="no answer from /run/user/0/x.sock for /testbed/a.py\nlog " * 99)])
    env.reset()
    info = env.step(call("bash", command="true"))[4]
    assert info["failure"] == "SandboxLost: no answer from <path> for /testbed/a.py"
    assert "/run/user" in env.stats["failure"]


def test_reset_raises_start_errors(fake_env: Make) -> None:
    env = fake_env(faults=[fault("start", error="SandboxStartError", reason="image")])
    with pytest.raises(SandboxStartError, match="scripted"):
        env.reset()
    assert len(CountedSandbox.started) == 1
    assert_nothing_left(env)
    with pytest.raises(Exception, match="call reset"):
        env.step(SUBMIT)


def test_a_retryable_start_is_retried_once(fake_env: Make) -> None:
    env = fake_env(faults=[fault("start", error="SandboxStartError", retryable=True)])
    assert env.reset()[1]["outcome"] == "running"  # the fault strikes only the first sandbox
    assert len(CountedSandbox.started) == 2
    assert CountedSandbox.started[0].closed


def test_a_start_is_retried_only_once(fake_env: Make) -> None:
    env = fake_env({"backend": "fake"}, faults=[fault("start", retryable=True)])
    with pytest.raises(SandboxLost):
        env.reset()


def test_an_episode_after_a_failed_one_is_a_normal_one(fake_env: Make) -> None:
    env = fake_env(faults=[fault("exec", match="true")])
    env.reset()
    env.step(call("bash", command="true"))
    env.reset()
    assert env.step(SUBMIT)[1] == 1.0


@pytest.mark.parametrize("at", ["start", "exec"])
def test_close_unblocks_hanging_calls(fake_env: Make, at: str) -> None:
    env = fake_env(faults=[{"at": at, "stall": True}])
    results: list[Any] = []

    def work() -> None:
        try:
            env.reset()
            results.append(env.step(call("bash", command="true", timeout=100)))
        except SandboxClosed as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not CountedSandbox.started:
        threading.Event().wait(0.001)
    assert CountedSandbox.started[0].stalled.wait(60)
    env.close()
    thread.join(60)
    assert not thread.is_alive()
    if at == "start":
        assert isinstance(results[0], SandboxClosed)
    else:
        assert_no_reward(results[0], "SandboxClosed")
    assert_nothing_left(env)


def test_the_task_is_chosen_by_options_then_by_argument_then_by_the_seed(fake_env: Make) -> None:
    env = fake_env()
    drawn = [env.reset(seed=seed)[1]["task_id"] for seed in range(12)]
    assert set(drawn) == {"one", "two", "three"}
    assert [env.reset(seed=seed)[1]["task_id"] for seed in range(12)] == drawn
    fixed = fake_env({"task_id": "two"})
    assert fixed.reset(seed=0)[1]["task_id"] == "two"
    assert fixed.reset(options={"task_id": "three"})[1]["task_id"] == "three"
    assert fixed.reset(options={})[1]["task_id"] == "two"


def test_unknown_tasks_and_options_are_refused_with_a_suggestion(fake_env: Make) -> None:
    env = fake_env()
    with pytest.raises(UsageError, match="Did you mean 'three'"):
        env.reset(options={"task_id": "thre"})
    with pytest.raises(UsageError, match="Did you mean 'task_id'"):
        env.reset(options={"taskid": "three"})
    with pytest.raises(UsageError, match="'task_id' must be text"):
        env.reset(options={"task_id": 3})


def test_a_refused_reset_leaves_the_episode_as_it_was(fake_env: Make) -> None:
    env = fake_env()
    env.reset()
    with pytest.raises(UsageError):
        env.reset(options={"nonsense": 1})
    assert env.step(SUBMIT)[1] == 1.0


def test_the_oracle_is_never_shown(fake_env: Make) -> None:
    env = fake_env({"render_mode": "ansi"})
    seen = [repr(env), str(env.reset()), repr(env.task), str(env.config)]
    for action in (*env.action_space.examples, "hm", SUBMIT):
        seen += [str(env.step(action)), str(env.render()), str(env.stats)]
    for secret in SECRETS:
        assert not [text for text in seen if secret in text]


@pytest.mark.slow
def test_a_thousand_environments_start_nothing(fake_env: Make) -> None:
    environments = [fake_env() for _ in range(1000)]
    assert CountedSandbox.started == []
    assert len({id(env.source) for env in environments}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "toys"}, "Did you mean 'toy'"),
        ({"source": "toy", "source_options": {"path": "x"}}, "unknown option of task source 'toy'"),
        ({"source": "file"}, "requires the argument 'path'"),
        ({"source": "toy", "backend": "locl"}, "Did you mean 'local'"),
        ({"source": "toy", "sandbox_options": {"memory": 5}}, "Did you mean 'memory_mb'"),
        ({"source": "toy", "sandbox_options": {"memory_mb": -5}}, "memory_mb"),
        ({"source": "toy", "sandbox_options": {"options": {"nonsense": 1}}}, "nonsense"),
        ({"source": "toy", "tools": "defualt"}, "Did you mean 'default'"),
        ({"source": "toy", "tools": ["bash", "veiw"]}, "Did you mean 'view'"),
        ({"source": "toy", "action_format": "jsn"}, "Did you mean 'json'"),
        ({"source": "toy", "action_format": "bash", "tools": ["view", "submit"]}, "'bash'"),
        ({"source": "toy", "reward": "binnary"}, "Did you mean 'binary'"),
        ({"source": "toy", "render_mode": "rgb_aray"}, "Did you mean 'rgb_array'"),
        ({"source": "toy", "max_turns": 0}, "max_turns must be a positive whole number"),
        ({"source": "toy", "max_turns": 1.5}, "max_turns must be a positive whole number"),
        ({"source": "toy", "max_invalid": 0}, "max_invalid"),
        ({"source": "toy", "max_observation": True}, "max_observation"),
        ({"source": "toy", "time_limit": float("inf")}, "time_limit must be a positive number"),
        ({"source": "toy", "sandbox_options": {"env": {1, 2}}}, "plain JSON"),
        ({"source": "file", "source_options": {"path": Path("x.jsonl")}}, r"plain JSON .* give it as str"),
        ({"source": 3}, "source must be text, not 3"),
        ({"source": "toy", "task_id": 3}, "task_id must be text or None, not 3"),
        ({"source": "toy", "backend": None}, "backend must be text, not None"),
        ({"source": "toy", "tools": 3}, "tools must be text or a list, not 3"),
        ({"source": "toy", "tools": [3]}, "invalid tool 3: give its name"),
        ({"source": "toy", "sandbox_options": ["memory_mb"]}, "sandbox_options must be a dictionary"),
        ({"source": "toy", "record": "/nowhere/r.jsonl"}, "no record file /nowhere/r.jsonl: `swe-gym validate"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SweEnv(**arguments)
